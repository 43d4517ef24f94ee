// SPDX-License-Identifier: Apache-2.0
#include "interpreter.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace mooncake::python {

constinit Gate calls;

namespace {

constexpr Duration kExitPatience = 5s;  // what is closed ends whatever runs inside, so this is never needed

constexpr std::chrono::milliseconds kRefusedPause(5);

constinit std::atomic<bool> abandoned{false};
constinit std::atomic<pthread_t> exiting_thread{0};
struct Open {
    std::weak_ptr<void> thing;
    void (*close)(void*);
};
std::vector<Open> all_open;  // guarded by the interpreter lock
bool hook_set = false;       // guarded by the interpreter lock

/// The threads that were inside a call do not exist in the child, and its exit hooks may have been dropped.
void forget_in_child() {
    new (&calls) Gate();
    hook_set = false;
}

[[maybe_unused]] const int installed = ::pthread_atfork(nullptr, nullptr, forget_in_child);

void close_all() {
    std::vector<std::pair<std::shared_ptr<void>, void (*)(void*)>> open;
    for (const Open& known : all_open)
        if (auto thing = known.thing.lock()) open.emplace_back(std::move(thing), known.close);
    all_open.clear();
    exiting_thread.store(::pthread_self(), std::memory_order_relaxed);
    calls.close(Deadline::after(0s));  // under the interpreter lock: whoever asked exiting() before is inside by now
    PyThreadState* const state = PyEval_SaveThread();
    for (const auto& [thing, close] : open) close(thing.get());
    if (!calls.close(Deadline::after(kExitPatience))) {
        abandoned.store(true, std::memory_order_release);
        MC_LOG_ERROR("a call did not end within {} s of the exit of the interpreter; its thread is left behind",
                     std::chrono::duration_cast<std::chrono::seconds>(kExitPatience).count());
    }
    open.clear();
    PyEval_RestoreThread(state);
}

}  // namespace

void sleep_for_ever() noexcept {
    for (;;) ::pause();
}

void stop_if_abandoned() noexcept {
    if (abandoned.load(std::memory_order_acquire)) sleep_for_ever();
}

void slow_down_at_exit() noexcept {
    if (!exiting() || exiting_thread.load(std::memory_order_relaxed) == ::pthread_self()) return;
    running_python([] {
        PyThreadState* const state = PyEval_SaveThread();
        std::this_thread::sleep_for(kRefusedPause);
        PyEval_RestoreThread(state);
        return 0;
    });
}

void log_from_python(LogLevel level, std::string_view text) {
    constexpr size_t kTextBytesMax = 16 << 10;
    if (level < log_level()) return;
    const bool cut = text.size() > kTextBytesMax;
    const auto write = [&] {
        log_format(level, "{}{}", text.substr(0, kTextBytesMax), cut ? "..." : "");
        return 0;
    };
    if (exiting()) write();
    else without_gil(write);
}

void close_at_exit(std::weak_ptr<void> thing, void (*close)(void*)) {
    std::erase_if(all_open, [](const Open& known) { return known.thing.expired(); });
    all_open.push_back({std::move(thing), close});
    if (hook_set) return;
    hook_set = true;
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(close_all));
}

bool in_main_interpreter() {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return true;
    PyErr_SetString(PyExc_ImportError, "mooncake works in the main interpreter of a process only, not in a subinterpreter");
    return false;
}

Error engine_unusable() {
    return exiting() ? error(Code::kUnavailable, "the interpreter is exiting")
                     : error(Code::kUnavailable, "it belongs to the process that forked this one");
}

}  // namespace mooncake::python
