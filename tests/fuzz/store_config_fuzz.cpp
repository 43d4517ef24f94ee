// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "store/service/config_file.h"
#include "store/service/config_quotas.h"
#include "store/service/flags_client.h"
#include "store/service/flags_master.h"

/// The bytes are a configuration file, a policy of quotas, and a command line with one word per line.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    (void)mooncake::store::parse_config(text);
    (void)mooncake::store::parse_quota(text);
    if (const auto quotas = mooncake::store::parse_quotas(text)) {
        const auto again = mooncake::store::parse_quotas(mooncake::store::format_quotas(*quotas));
        MC_CHECK(again && *again == *quotas);
    }
    std::vector<std::string> words(1);
    for (const char c : text) {
        if (c == '\n') words.emplace_back();
        else words.back() += c;
    }
    const mooncake::store::MasterFlagSources sources{.read_file = [&](const std::string&) { return mooncake::Result<std::string>(text); },
                                                     .environment = [](const char*) { return std::optional<std::string>(); }};
    (void)mooncake::store::parse_master_flags(words, sources);
    (void)mooncake::store::parse_client_flags(words);
    return 0;
}
