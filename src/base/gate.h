// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/futex.h"
#include "base/thread_number.h"

namespace mooncake {

/// Lets work in while open; close() refuses new work and waits for the old. Thread-safe. Threads that come and go do not share a cache line
/// (up to kSlots of them), so every call of a busy object may pass through one.
class Gate {
public:
    static constexpr uint32_t kSlots = 16;

    /// Proof that work is inside; leaves on destruction, in any thread. Empty when the gate was closed.
    class Pass {
    public:
        Pass() noexcept = default;
        Pass(Pass&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
        Pass& operator=(Pass&& other) noexcept {
            std::swap(state_, other.state_);
            return *this;
        }
        ~Pass() {
            if (state_ != nullptr) leave(*state_);
        }
        explicit operator bool() const noexcept { return state_ != nullptr; }

    private:
        friend class Gate;
        explicit Pass(std::atomic<uint32_t>* state) noexcept : state_(state) {}

        std::atomic<uint32_t>* state_ = nullptr;
    };

    Pass enter() noexcept {
        std::atomic<uint32_t>& state = slots_[thread_number() % kSlots].state;
        if (state.fetch_add(kOne, std::memory_order_acquire) & kClosed) {
            leave(state);
            return Pass();
        }
        return Pass(&state);
    }
    bool closed() const noexcept { return slots_.front().state.load(std::memory_order_acquire) & kClosed; }

    /// True when everybody has left; false at the deadline (the gate stays closed). May be called again.
    bool close(Deadline deadline = Deadline::never()) noexcept {
        for (Slot& slot : slots_) slot.state.fetch_or(kClosed, std::memory_order_acq_rel);
        for (Slot& slot : slots_) {
            uint32_t state = slot.state.load(std::memory_order_acquire);
            while (state != kClosed) {
                if (deadline.passed()) return false;
                futex_wait(slot.state, state, deadline);
                state = slot.state.load(std::memory_order_acquire);
            }
        }
        return true;
    }
    /// Lets work in again. Only by who closed it, and only after close() returned true.
    void reopen() noexcept {
        for (Slot& slot : slots_) slot.state.fetch_and(~kClosed, std::memory_order_release);
    }

private:
    static constexpr uint32_t kClosed = 1;
    static constexpr uint32_t kOne = 2;

    struct alignas(64) Slot {
        std::atomic<uint32_t> state{0};
    };

    static void leave(std::atomic<uint32_t>& state) noexcept {
        // The closer may destroy the gate as soon as it reads the new value; futex_wake_all() only names the address.
        if (state.fetch_sub(kOne, std::memory_order_acq_rel) == (kOne | kClosed)) futex_wake_all(&state);
    }

    std::array<Slot, kSlots> slots_;
};

}  // namespace mooncake
