// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/futex.h"

namespace mooncake {

/// Lets work in while open; close() refuses new work and waits for the old. Thread-safe.
class Gate {
public:
    /// Proof that work is inside; leaves on destruction. Empty when the gate was closed.
    class Pass {
    public:
        Pass() noexcept = default;
        explicit Pass(Gate* gate) noexcept : gate_(gate) {}
        Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
        Pass& operator=(Pass&& other) noexcept {
            std::swap(gate_, other.gate_);
            return *this;
        }
        ~Pass() {
            if (gate_ != nullptr) gate_->leave();
        }
        explicit operator bool() const noexcept { return gate_ != nullptr; }

    private:
        Gate* gate_ = nullptr;
    };

    Pass enter() noexcept {
        if (state_.fetch_add(kOne, std::memory_order_acquire) & kClosed) {
            leave();
            return Pass();
        }
        return Pass(this);
    }
    bool closed() const noexcept { return state_.load(std::memory_order_acquire) & kClosed; }

    /// True when everybody has left; false at the deadline (the gate stays closed). May be called again.
    bool close(Deadline deadline = Deadline::never()) noexcept {
        uint32_t state = state_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
        while (state != kClosed) {
            if (deadline.passed()) return false;
            futex_wait(state_, state, deadline);
            state = state_.load(std::memory_order_acquire);
        }
        return true;
    }
    /// Lets work in again. Only by who closed it, and only after close() returned true.
    void reopen() noexcept { state_.fetch_and(~kClosed, std::memory_order_release); }

private:
    static constexpr uint32_t kClosed = 1;
    static constexpr uint32_t kOne = 2;

    void leave() noexcept {
        // The closer may destroy the gate as soon as it reads the new value; futex_wake_all() only names the address.
        if (state_.fetch_sub(kOne, std::memory_order_acq_rel) == (kOne | kClosed)) futex_wake_all(&state_);
    }

    std::atomic<uint32_t> state_{0};
};

}  // namespace mooncake
