// SPDX-License-Identifier: Apache-2.0
// Whatever HostPort::parse() and Incarnation::parse() accept must come back the same through to_string().
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/incarnation.h"
#include "base/options.h"
#include "net/address.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto parsed = net::HostPort::parse(text)) {
        MC_CHECK(!parsed->host.empty());
        const auto again = net::HostPort::parse(parsed->to_string());
        MC_CHECK(again && again->host == parsed->host && again->port == parsed->port && again->suffix.empty());
    }
    if (const auto incarnation = Incarnation::parse(text)) {
        MC_CHECK(Incarnation::parse(incarnation->to_string()).value() == *incarnation);
    }
    for (const std::string& part : split_list(text)) MC_CHECK(!part.empty() && part.find(',') == std::string::npos);
    (void)parse_flag(text);
    (void)parse_log_level(text, LogLevel::kOff);
    return 0;
}
