// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/time.h"

namespace mooncake::shm {

/// Lets threads take turns where they would hold each other up inside the kernel. A copy into or out of another process takes a lock for each
/// small page, and all small pages of one 2 MiB share that lock: four threads in there together get two thirds of what one gets
/// alone. Huge pages have no such lock, and threads there are best left alone. Nobody tells which it is, so it is measured: what a byte costs alone,
/// and what it costs together. Turns are a matter of speed only: who has waited for long goes on without one. Thread-safe.
class CopyTurns {
public:
    static constexpr uint64_t kSharedBytes = uint64_t{2} << 20;  // what one lock of the kernel's covers
    static constexpr uint64_t kLeastBytes = 64 << 10;            // less is over before it is worth a look at the clock
    static constexpr Duration kPatience = 200us;
    static constexpr uint32_t kTrial = 64;  // one copy in so many goes without a turn, to see what that costs

    /// What is known of one place; a place is shared by addresses that are far apart, which costs nothing but accuracy.
    struct alignas(64) Place {
        std::atomic<uint32_t> inside{0};
        std::atomic<uint32_t> entered{0};
        // Picoseconds per byte, smoothed; 0: not known. Together: divided by the number of those who shared.
        std::atomic<uint32_t> alone{0}, together{0};
    };

    /// A copy under way; over with this object.
    class Turn {
    public:
        Turn() = default;
        Turn(Turn&& other) noexcept;
        Turn& operator=(Turn&&) = delete;
        ~Turn();
        explicit operator bool() const noexcept { return place_ != nullptr; }

    private:
        friend class CopyTurns;
        Place* place_ = nullptr;
        uint64_t bytes_ = 0;
        uint32_t together_ = 0;  // how many were in there when it began
        Time started_{};
    };

    /// Of [address, address + span) in the peer's memory, of which `bytes` are copied. Waits for its turn if that pays.
    Turn take(uint64_t address, uint64_t span, uint64_t bytes) noexcept;

    Place& place_of(uint64_t address) noexcept { return places_[address / kSharedBytes % places_.size()]; }
    /// Whether threads wait for each other there, by what has been measured.
    static bool turns_pay(const Place& place) noexcept;
    /// Notes what a copy took.
    static void learn(Place& place, uint32_t together, uint64_t bytes, Duration took) noexcept;

private:
    static void wait(Place& place) noexcept;

    std::array<Place, 64> places_;
};

}  // namespace mooncake::shm
