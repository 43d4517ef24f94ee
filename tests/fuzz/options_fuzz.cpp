// SPDX-License-Identifier: Apache-2.0
// The environment: whatever its variables hold, what comes out lies within the documented bounds.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake;
    static const bool quiet = [] {
        configure_log({.level = LogLevel::kOff});
        return true;
    }();
    MC_CHECK(quiet);
    // Values cannot hold a zero byte.
    const std::string text(reinterpret_cast<const char*>(data), size);
    const std::string value = text.substr(0, text.find('\0'));
    const EngineOptions options = load_options([&](const char*) { return std::optional<std::string>(value); });
    MC_CHECK(options.transfer_timeout >= 5s);
    MC_CHECK(options.port_min > 0 && options.port_min <= options.port_max);
    MC_CHECK(options.message_bytes_max >= 1 << 20 && options.message_bytes_max <= 128 << 20);
    MC_CHECK(options.redis_database >= 0 && options.redis_database <= 255);
    MC_CHECK(options.tcp_lanes >= 1 && options.tcp_lanes <= 16 && options.tcp_io_threads >= 0);
    MC_CHECK(options.listen_backlog > 0 && options.connect_timeout > 0s && options.refresh_interval >= 0s && options.metrics_interval > 0s);
    return 0;
}
