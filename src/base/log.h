// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "base/format.h"
#include "base/time.h"

namespace mooncake {

enum class LogLevel : uint8_t { kTrace, kInfo, kWarning, kError, kOff };

/// Where log lines go; set from the options. Thread-safe, and usable in a forked child whatever the parent's threads did.
struct LogOptions {
    LogLevel level = LogLevel::kInfo;
    std::string directory;  // a file of this process in it; empty: stderr
    std::string file;       // this one, whatever `directory` says
};
MC_EXPORT void configure_log(const LogOptions& options);
MC_EXPORT LogLevel log_level() noexcept;
/// TRACE, INFO, WARNING, ERROR, OFF (any case; also DEBUG and WARN); the given default for anything else.
MC_EXPORT LogLevel parse_log_level(std::string_view text, LogLevel otherwise) noexcept;
MC_EXPORT void log_line(LogLevel level, fmt::string_view text, fmt::format_args arguments) noexcept;

/// Lets one line through per interval, so that a fault cannot flood the log. Thread-safe.
class MC_EXPORT LogLimit {
public:
    explicit constexpr LogLimit(Duration interval) noexcept : interval_(interval) {}
    bool allow() noexcept;

private:
    const Duration interval_;
    std::atomic<Duration::rep> next_{0};
};

template <typename... Args>
void log_format(LogLevel level, fmt::format_string<Args...> text, Args&&... arguments) noexcept {
    log_line(level, text, fmt::make_format_args(arguments...));
}

}  // namespace mooncake

#define MC_LOG(level, ...) \
    do { \
        if (level >= ::mooncake::log_level()) ::mooncake::log_format(level, __VA_ARGS__); \
    } while (false)
#define MC_LOG_TRACE(...) MC_LOG(::mooncake::LogLevel::kTrace, __VA_ARGS__)
#define MC_LOG_INFO(...) MC_LOG(::mooncake::LogLevel::kInfo, __VA_ARGS__)
#define MC_LOG_WARNING(...) MC_LOG(::mooncake::LogLevel::kWarning, __VA_ARGS__)
#define MC_LOG_ERROR(...) MC_LOG(::mooncake::LogLevel::kError, __VA_ARGS__)
/// As MC_LOG_WARNING, from this place at most once per interval.
#define MC_LOG_WARNING_EVERY(interval, ...) \
    do { \
        static constinit ::mooncake::LogLimit mc_log_limit(interval); \
        if (mc_log_limit.allow()) MC_LOG_WARNING(__VA_ARGS__); \
    } while (false)
