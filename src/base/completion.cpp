// SPDX-License-Identifier: Apache-2.0
#include "base/completion.h"

#include "base/error_copy.h"
#include "base/futex.h"

namespace mooncake {

void Completion::succeed(uint64_t bytes, uint32_t operations) noexcept {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    finish(operations);
}

void Completion::fail(Error error, uint32_t operations) noexcept {
    Failure none = Failure::kNone;
    if (failure_.compare_exchange_strong(none, Failure::kWriting, std::memory_order_acquire)) {
        error_ = std::move(error);
        failure_.store(Failure::kSet, std::memory_order_release);
    }
    finish(operations);
}

void Completion::finish(uint32_t operations) noexcept {
    if (operations == 0) return;
    // Everything we need later is read before the count may reach zero: after that the owner may be gone.
    CompletionHook* const hook = hook_;
    Completion* const parent = parent_;
    const uint32_t before = state_.fetch_sub(operations * kOne, std::memory_order_acq_rel);
    MC_CHECK(before / kOne >= operations);
    if (before / kOne != operations) return;
    if (before & kWaiting) futex_wake_all(&state_);
    if (parent == nullptr) {
        if (hook != nullptr) hook->on_done(*this);
        return;
    }
    // A part lives until its parent is done, so it may still be read here. The parent is told last: then all is over.
    const bool failed_here = failure_.load(std::memory_order_acquire) == Failure::kSet;
    Error error = failed_here ? copy_error(error_) : Error();
    const uint64_t moved = bytes_.load(std::memory_order_relaxed);
    if (hook != nullptr) hook->on_done(*this);
    if (failed_here) parent->fail(std::move(error));
    else parent->succeed(moved);
}

bool Completion::wait(Deadline deadline, Duration spin) noexcept {
    if (done()) return true;
    const Deadline spin_end = Deadline::after(spin).earlier(deadline);
    SpinPause pause;
    for (uint32_t i = 1; spin > Duration::zero(); ++i) {
        if (done()) return true;
        pause();
        if (i % 16 == 0 && spin_end.passed()) break;
    }
    for (;;) {
        const uint32_t state = state_.fetch_or(kWaiting, std::memory_order_acq_rel) | kWaiting;
        if ((state & ~kWaiting) == 0) return true;
        if (deadline.passed()) return false;
        futex_wait(state_, state, deadline);
    }
}

Result<uint64_t> Completion::result() const {
    MC_CHECK(done());
    if (failure_.load(std::memory_order_acquire) == Failure::kSet) return Unexpected(copy_error(error_));
    return bytes();
}

void Completion::reset() noexcept {
    MC_CHECK(done());
    state_.store(0, std::memory_order_relaxed);
    bytes_.store(0, std::memory_order_relaxed);
    if (!failed()) return;
    failure_.store(Failure::kNone, std::memory_order_relaxed);
    error_ = Error();
}

}  // namespace mooncake
