// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY
#define SPDLOG_FMT_EXTERNAL
#define SPDLOG_HEADER_ONLY
#include "base/log.h"

#include <fmt/format.h>
#include <pthread.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <strings.h>
#include <unistd.h>

#include <cstdio>
#include <iterator>
#include <memory>

#include "base/log_output.h"
#include "base/thread_annotations.h"

namespace mooncake {

namespace {

constinit std::atomic<LogLevel> current_level{LogLevel::kInfo};

// Held around each line and across fork(), so that a child never finds a lock of the logger taken. Ready before main() and never
// destroyed: threads may log while the process starts and exits.
constinit Mutex output_mutex;
constinit spdlog::logger* output MC_PT_GUARDED_BY(output_mutex) = nullptr;

// The thread that forks takes the lock before and gives it back after, in both processes.
void before_fork() MC_NO_THREAD_ANALYSIS { output_mutex.lock(); }
void after_fork() MC_NO_THREAD_ANALYSIS { output_mutex.unlock(); }
[[maybe_unused]] const int installed = ::pthread_atfork(before_fork, after_fork, after_fork);

/// Our lock is held around it.
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
    void sink_it_(const spdlog::details::log_msg& message) override {
        spdlog::memory_buf_t line;
        formatter_->format(message, line);
        output_.write({line.data(), line.size()});
    }
    void flush_() override {}

    LogOutput output_{STDERR_FILENO};
};

std::unique_ptr<spdlog::logger> make_logger(const LogOptions& options) {
    spdlog::sink_ptr sink = std::make_shared<StderrSink>();
    std::string path = options.file;
    if (path.empty() && !options.directory.empty()) path = format_text("{}/mooncake.{}.log", options.directory, ::getpid());
    if (!path.empty()) {
        try {
            sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
        } catch (const spdlog::spdlog_ex& failure) {
            std::fprintf(stderr, "mooncake: cannot log to %s: %s\n", path.c_str(), failure.what());
        }
    }
    auto made = std::make_unique<spdlog::logger>("mooncake", std::move(sink));
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    made->set_pattern("%Y-%m-%d %H:%M:%S.%f %P %L mooncake: %v");
    return made;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
    switch (level) {
        case LogLevel::kTrace: return spdlog::level::trace;
        case LogLevel::kInfo: return spdlog::level::info;
        case LogLevel::kWarning: return spdlog::level::warn;
        case LogLevel::kError: return spdlog::level::err;
        case LogLevel::kOff: return spdlog::level::off;
    }
    return spdlog::level::off;
}

}  // namespace

void configure_log(const LogOptions& options) {
    current_level.store(options.level, std::memory_order_relaxed);
    Lock lock(output_mutex);
    delete std::exchange(output, make_logger(options).release());
}

LogLevel log_level() noexcept { return current_level.load(std::memory_order_relaxed); }

LogLevel parse_log_level(std::string_view text, LogLevel otherwise) noexcept {
    constexpr std::pair<std::string_view, LogLevel> kNames[] = {
        {"trace", LogLevel::kTrace},  {"debug", LogLevel::kTrace}, {"info", LogLevel::kInfo}, {"warning", LogLevel::kWarning},
        {"warn", LogLevel::kWarning}, {"error", LogLevel::kError}, {"off", LogLevel::kOff},
    };
    for (const auto& [name, level] : kNames)
        if (name.size() == text.size() && ::strncasecmp(name.data(), text.data(), name.size()) == 0) return level;
    return otherwise;
}

void log_line(LogLevel level, fmt::string_view text, fmt::format_args arguments) noexcept {
    try {
        fmt::memory_buffer line;
        fmt::vformat_to(std::back_inserter(line), text, arguments);
        Lock lock(output_mutex);
        if (output == nullptr) output = make_logger({}).release();
        output->log(spdlog_level(level), spdlog::string_view_t(line.data(), line.size()));
    } catch (...) {
        LogOutput(STDERR_FILENO).write("mooncake: a log line could not be written\n");
    }
}

bool LogLimit::allow() noexcept {
    const Duration::rep now = Clock::now().time_since_epoch().count();
    Duration::rep next = next_.load(std::memory_order_relaxed);
    return now >= next && next_.compare_exchange_strong(next, now + interval_.count(), std::memory_order_relaxed);
}

}  // namespace mooncake
