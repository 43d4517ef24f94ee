// SPDX-License-Identifier: Apache-2.0
// Whatever parse_size() accepts means the same when it is written as plain bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "store/process/store_options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake::store;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto bytes = parse_size(text)) MC_CHECK(parse_size(std::to_string(*bytes)).value() == *bytes);
    const mooncake::Environment environment = [&](const char*) { return std::optional<std::string>(text); };
    const StoreOptions options = load_store_options(environment);
    MC_CHECK(options.port_min >= 1024 && options.port_min <= options.port_max && options.setup_tries > 0);
    return 0;
}
