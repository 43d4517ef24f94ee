// SPDX-License-Identifier: Apache-2.0
#include "capi/graceful_shutdown.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/unique_fd.h"

namespace mooncake::capi {

namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT};
constexpr unsigned char kStop = 0;  // no signal has this number

// For the signal handler, which may touch nothing else.
constinit std::atomic<int> signal_pipe{-1};
constinit std::atomic<pid_t> watching_process{0};

extern "C" void on_exit_signal(int signal_number) {
    if (::getpid() != watching_process.load(std::memory_order_acquire)) {
        // A forked child: nobody reads the pipe here. The signal is blocked while we are in its handler and comes after it.
        ::signal(signal_number, SIG_DFL);
        ::raise(signal_number);
        return;
    }
    const int saved_errno = errno;
    const auto byte = static_cast<unsigned char>(signal_number);
    [[maybe_unused]] const ssize_t written = ::write(signal_pipe.load(std::memory_order_relaxed), &byte, 1);
    errno = saved_errno;
}

/// Waits for the byte of the handler. Lives until exit(), once started.
class ExitWatcher {
public:
    static Result<std::unique_ptr<ExitWatcher>> start() {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno(Code::kNoSpace, errno, "cannot make the pipe for signals");
        auto watcher = std::unique_ptr<ExitWatcher>(new ExitWatcher(UniqueFd(ends[0]), UniqueFd(ends[1])));
        MC_RETURN_IF_ERROR(watcher->install());
        return watcher;
    }

    /// Only of one that could not be installed.
    ~ExitWatcher() {
        keep_in_child(read_end_.get());
        keep_in_child(write_end_.get());
    }

    void add(EngineHandle handle) {
        Lock lock(mutex_);
        std::erase_if(engines_, [](EngineHandle known) { return !use_engine(known); });
        engines_.push_back(handle);
    }

    /// Closes the engines and joins the thread.
    void stop() {
        close_engines();
        [[maybe_unused]] const ssize_t written = ::write(write_end_.get(), &kStop, 1);
        if (thread_.joinable()) thread_.join();
    }

private:
    ExitWatcher(UniqueFd read_end, UniqueFd write_end) : read_end_(std::move(read_end)), write_end_(std::move(write_end)) {
        ::fcntl(read_end_.get(), F_SETFL, 0);  // the thread waits, the handler must not
        close_in_child(read_end_.get());
        close_in_child(write_end_.get());
    }

    Result<> install() {
        MC_ASSIGN_OR_RETURN(thread_, try_start_thread("mc-exit", [this] { watch(); }));
        signal_pipe.store(write_end_.get(), std::memory_order_relaxed);
        watching_process.store(::getpid(), std::memory_order_release);
        struct sigaction action {};
        action.sa_handler = on_exit_signal;
        action.sa_flags = SA_RESTART;
        for (const int signal_number : kSignals) MC_CHECK(::sigaction(signal_number, &action, nullptr) == 0);
        return {};
    }

    void watch() {
        unsigned char byte = kStop;
        while (::read(read_end_.get(), &byte, 1) < 0 && errno == EINTR) {}
        if (byte == kStop) return;
        for (const int signal_number : kSignals) ::signal(signal_number, SIG_DFL);
        MC_LOG_INFO("signal {}: closing the transfer engines", int{byte});
        close_engines();
        ::_exit(128 + byte);
    }

    void close_engines() {
        std::vector<EngineHandle> engines;
        {
            Lock lock(mutex_);
            engines.swap(engines_);
        }
        for (const EngineHandle handle : engines)
            if (EngineUse engine = use_engine(handle)) engine->close();
    }

    const UniqueFd read_end_;
    const UniqueFd write_end_;
    Mutex mutex_;
    std::vector<EngineHandle> engines_ MC_GUARDED_BY(mutex_);
    std::jthread thread_;
};

struct Watching {
    Mutex mutex;
    ExitWatcher* watcher MC_GUARDED_BY(mutex) = nullptr;  // never destroyed: exit() stops it
};
constinit PerProcess<Watching> watching;
constinit std::atomic<bool> stopped_by_exit{false};  // in this process image, forked children included

void stop_at_exit() {
    if (::getpid() != watching_process.load(std::memory_order_acquire)) return;
    ExitWatcher* watcher = nullptr;
    {
        Watching& now = watching.get();
        Lock lock(now.mutex);
        watcher = now.watcher;
    }
    if (watcher != nullptr) watcher->stop();
}

}  // namespace

Result<> close_on_exit(EngineHandle handle) {
    Watching& now = watching.get();
    Lock lock(now.mutex);
    if (now.watcher == nullptr) {
        MC_ASSIGN_OR_RETURN(auto started, ExitWatcher::start());
        now.watcher = started.release();
        if (!stopped_by_exit.exchange(true, std::memory_order_relaxed)) std::atexit(stop_at_exit);
    }
    now.watcher->add(handle);
    return {};
}

}  // namespace mooncake::capi
