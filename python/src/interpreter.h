// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <string_view>
#include <utility>

#include "base/fork.h"
#include "base/gate.h"
#include "base/log.h"
#include "engine/engine.h"

/// How native calls live with the interpreter: they leave its lock behind while they may block, and they are all over before
/// it goes away.
///
/// CPython ends a thread that asks for the interpreter lock during finalization, in the middle of its C++ frames, which
/// terminates the process. So an atexit hook closes every engine or store - which ends whatever runs inside - and then waits until no
/// thread is between giving up the lock and having it again. Later calls fail without giving it up.
namespace mooncake::python {

namespace nb = nanobind;

/// Lets threads in that are about to give up the interpreter lock; closed for good when the interpreter exits.
extern constinit Gate calls;

/// True once the exit hook ran: everything is closed, and nothing new is made. Asked under the interpreter lock.
inline bool exiting() noexcept { return calls.closed(); }

/// A thread that came back too late to be waited for: sleeps until the process ends.
void stop_if_abandoned() noexcept;
[[noreturn]] void sleep_for_ever() noexcept;

/// For calls refused because of the exit: a daemon thread that repeats them at once would keep the interpreter lock from the
/// thread that exits, so it is made to pause without it.
void slow_down_at_exit() noexcept;

/// Runs what may come to execute Python code - conversions of the caller's own types. There, too, the interpreter may try to end
/// the thread during finalization; it sleeps instead, as newer versions of CPython do by themselves.
template <typename Body>
auto running_python(Body&& body) {
    try {
        return body();
    } catch (const abi::__forced_unwind&) {
        sleep_for_ever();
    }
}

/// Runs `body` without the interpreter lock. Not in the exit phase: ask exiting() first.
template <typename Body>
auto without_gil(Body&& body) {
    const Gate::Pass pass = calls.enter();
    PyThreadState* const state = PyEval_SaveThread();
    try {
        auto result = body();
        stop_if_abandoned();
        PyEval_RestoreThread(state);  // not in a destructor: those must not be unwound through
        return result;
    } catch (const std::exception&) {
        PyEval_RestoreThread(state);
        throw;
    }
}

/// Logs without the interpreter lock: who reads our standard error may be a thread of this interpreter, and wait for it. Long texts are cut.
/// Under the interpreter lock.
void log_from_python(LogLevel level, std::string_view text);

/// Sees to it that `thing` is closed, without the interpreter lock, when the interpreter exits. Under the interpreter lock.
void close_at_exit(std::weak_ptr<void> thing, void (*close)(void* thing));
template <typename T>
void close_at_exit(const std::shared_ptr<T>& thing) {
    close_at_exit(thing, [](void* closed) { static_cast<T*>(closed)->close(); });
}

/// Shares an engine or a store with Python objects. Destroying the last one joins threads, so the interpreter lock is given up
/// meanwhile. In a forked child it is never destroyed: its threads exist in the parent only, and what they wait on must stay.
template <typename T>
class NativeRef {
public:
    NativeRef() = default;
    explicit NativeRef(std::shared_ptr<T> thing) : thing_(std::move(thing)), fork_generation_(fork_generation()) {}
    NativeRef(const NativeRef&) = default;
    NativeRef(NativeRef&& other) noexcept = default;
    NativeRef& operator=(NativeRef&& other) noexcept {
        if (this == &other) return *this;
        reset();
        thing_ = std::move(other.thing_);
        fork_generation_ = other.fork_generation_;
        return *this;
    }
    ~NativeRef() { reset(); }

    /// Born in this process, not in the one that forked it.
    bool ours() const noexcept { return fork_generation_ == fork_generation(); }
    bool shared() const noexcept { return thing_.use_count() > 1; }
    void reset() noexcept {
        if (!thing_) return;
        if (!ours()) {
            [[maybe_unused]] const auto* const kept_for_ever = new std::shared_ptr<T>(std::move(thing_));
        } else if (exiting() || shared()) {
            thing_.reset();
        } else {
            without_gil([this] { return thing_.reset(), 0; });
        }
    }
    const std::shared_ptr<T>& share() const noexcept { return thing_; }
    T* get() const noexcept { return thing_.get(); }
    T* operator->() const noexcept { return thing_.get(); }
    T& operator*() const noexcept { return *thing_; }
    explicit operator bool() const noexcept { return thing_ != nullptr; }

private:
    std::shared_ptr<T> thing_;
    uint32_t fork_generation_ = 0;
};
using EngineRef = NativeRef<Engine>;

/// False, with an ImportError set, in another interpreter than the first one of the process: the exit of any of them would end the engines of
/// all, and what nanobind shares between modules belongs to one. So it is asked before nanobind begins to make a module.
bool in_main_interpreter();

/// Why an engine cannot be used that exists.
Error engine_unusable();

}  // namespace mooncake::python
