// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/copy_turns.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace mooncake::shm {

namespace {

/// An eighth of the way to what was just seen. One that was held up by something else must not count for much.
void smooth(std::atomic<uint32_t>& value, uint64_t seen) noexcept {
    const uint64_t old = value.load(std::memory_order_relaxed);
    if (old != 0) seen = (7 * old + std::min(seen, 4 * old)) / 8;
    value.store(static_cast<uint32_t>(std::clamp<uint64_t>(seen, 1, UINT32_MAX)), std::memory_order_relaxed);
}

}  // namespace

CopyTurns::Turn::Turn(Turn&& other) noexcept
    : place_(std::exchange(other.place_, nullptr)), bytes_(other.bytes_), together_(other.together_), started_(other.started_) {}

CopyTurns::Turn::~Turn() {
    if (place_ == nullptr) return;
    learn(*place_, together_, bytes_, Clock::now() - started_);
    place_->inside.fetch_sub(1, std::memory_order_release);
}

bool CopyTurns::turns_pay(const Place& place) noexcept {
    const uint32_t alone = place.alone.load(std::memory_order_relaxed), together = place.together.load(std::memory_order_relaxed);
    return alone != 0 && together >= alone;
}

void CopyTurns::learn(Place& place, uint32_t together, uint64_t bytes, Duration took) noexcept {
    const auto picoseconds = static_cast<uint64_t>(std::max<int64_t>(took.count(), 1)) * 1000 / bytes;
    if (together == 1) smooth(place.alone, picoseconds);
    else smooth(place.together, picoseconds / together);
}

void CopyTurns::wait(Place& place) noexcept {
    const Time give_up = Clock::now() + kPatience;
    do {
        for (int i = 0; i < 64; ++i) {
            if (place.inside.load(std::memory_order_acquire) == 0) return;
            std::this_thread::yield();
        }
    } while (Clock::now() < give_up);
}

CopyTurns::Turn CopyTurns::take(uint64_t address, uint64_t span, uint64_t bytes) noexcept {
    Turn turn;
    if (bytes < kLeastBytes || address / kSharedBytes != (address + span - 1) / kSharedBytes) return turn;
    Place& place = place_of(address);
    const bool trial = place.entered.fetch_add(1, std::memory_order_relaxed) % kTrial == 0;
    if (!trial && place.inside.load(std::memory_order_relaxed) > 0 && turns_pay(place)) wait(place);
    turn.place_ = &place;
    turn.bytes_ = bytes;
    turn.together_ = place.inside.fetch_add(1, std::memory_order_relaxed) + 1;
    turn.started_ = Clock::now();
    return turn;
}

}  // namespace mooncake::shm
