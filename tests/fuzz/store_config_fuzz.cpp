// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>

#include "apps/common/config_file.h"
#include "store/admin/config_quotas.h"

/// The bytes are a configuration file and a policy of quotas.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    (void)mooncake::store::parse_config(text);
    (void)mooncake::store::parse_quota(text);
    if (const auto quotas = mooncake::store::parse_quotas(text)) {
        const auto again = mooncake::store::parse_quotas(mooncake::store::format_quotas(*quotas));
        MC_CHECK(again && *again == *quotas);
    }
    return 0;
}
