// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "base/time.h"

namespace mooncake::shm {

/// Lets threads take turns where they would hold each other up inside the kernel. A copy into or out of another process takes a lock for each
/// small page, and all small pages of one 2 MiB share that lock: four threads in there together get half of what two get.
/// Huge pages have no such lock, and threads there are best left alone. Nobody tells which it is, so both ways are tried now and then, and the
/// faster one is kept. Turns are a matter of speed only: who has waited for long goes on without one. Thread-safe.
class CopyTurns {
public:
    static constexpr uint64_t kSharedBytes = uint64_t{2} << 20;  // what one lock of the kernel's covers
    static constexpr uint64_t kLeastBytes = 64 << 10;            // less is over before it is worth a look
    static constexpr Duration kPatience = 200us;
    static constexpr uint32_t kAtOnce = 2;  // where turns are taken
    // Of kRound copies at one place the first kTrial take turns and the next kTrial do not; the others do what was faster.
    static constexpr uint32_t kRound = 1024, kTrial = 32;

    /// What is known of one place; addresses that are far apart may share one.
    struct alignas(64) Place {
        std::atomic<uint32_t> inside{0};
        std::atomic<uint32_t> entered{0};
        std::atomic<bool> turns_pay{false};
        std::atomic<int64_t> trial_began{0}, other_began{0};  // ns, of this round

        /// The copy with this number begins: whether it should wait for its turn.
        bool begin(uint32_t number, Time now) noexcept;
    };

    /// A copy under way; over with this object.
    class Turn {
    public:
        Turn() = default;
        explicit Turn(Place* place) noexcept : place_(place) {}
        Turn(Turn&& other) noexcept : place_(std::exchange(other.place_, nullptr)) {}
        Turn& operator=(Turn&&) = delete;
        ~Turn() {
            if (place_ != nullptr) place_->inside.fetch_sub(1, std::memory_order_release);
        }
        explicit operator bool() const noexcept { return place_ != nullptr; }

    private:
        Place* place_ = nullptr;
    };

    /// Of [address, address + span) in the peer's memory, of which `bytes` are copied. Waits for its turn if that pays.
    Turn take(uint64_t address, uint64_t span, uint64_t bytes) noexcept;

    Place& place_of(uint64_t address) noexcept { return places_[address / kSharedBytes % places_.size()]; }

private:
    std::array<Place, 64> places_;
};

}  // namespace mooncake::shm
