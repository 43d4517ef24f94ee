// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>

#include <memory>

#include "base/fork.h"
#include "base/gate.h"
#include "engine/engine.h"

/// How native calls live with the interpreter: they leave its lock behind while they may block, and they are all over before
/// it goes away.
///
/// CPython ends a thread that asks for the interpreter lock during finalization, in the middle of its C++ frames, which
/// terminates the process. So an atexit hook closes every engine - which ends whatever runs inside - and then waits until no
/// thread is between giving up the lock and having it again. Later calls fail without giving it up.
namespace mooncake::python {

namespace nb = nanobind;

/// Lets threads in that are about to give up the interpreter lock; closed for good when the interpreter exits.
extern constinit Gate calls;

/// True once the exit hook ran: engines are closed, and new ones are refused. Asked under the interpreter lock.
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

/// Sees to it that the engine is closed when the interpreter exits. Under the interpreter lock.
void close_at_exit(const std::shared_ptr<Engine>& engine);

/// Shares an engine with Python objects. Destroying the last one joins threads, so the interpreter lock is given up meanwhile. In
/// a forked child the engine is never destroyed: its threads exist in the parent only, and what they wait on must stay.
class EngineRef {
public:
    EngineRef() = default;
    explicit EngineRef(std::shared_ptr<Engine> engine);
    EngineRef(const EngineRef&) = default;
    EngineRef(EngineRef&& other) noexcept = default;
    EngineRef& operator=(EngineRef&& other) noexcept;
    ~EngineRef() { reset(); }

    /// Born in this process, not in the one that forked it.
    bool ours() const noexcept { return fork_generation_ == fork_generation(); }
    bool shared() const noexcept { return engine_.use_count() > 1; }
    void reset() noexcept;
    Engine* get() const noexcept { return engine_.get(); }
    Engine* operator->() const noexcept { return engine_.get(); }
    explicit operator bool() const noexcept { return engine_ != nullptr; }

private:
    std::shared_ptr<Engine> engine_;
    uint32_t fork_generation_ = 0;
};

/// Why an engine cannot be used that exists.
Error engine_unusable();

}  // namespace mooncake::python
