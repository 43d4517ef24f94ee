// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/copy_turns.h"

#include <thread>

namespace mooncake::shm {

namespace {

/// Goes in as soon as there is room; false after a while.
bool enter_in_turn(CopyTurns::Place& place) noexcept {
    const Time give_up = Clock::now() + CopyTurns::kPatience;
    do {
        for (int i = 0; i < 64; ++i) {
            uint32_t inside = place.inside.load(std::memory_order_relaxed);
            if (inside < CopyTurns::kAtOnce && place.inside.compare_exchange_strong(inside, inside + 1, std::memory_order_acquire))
                return true;
            std::this_thread::yield();
        }
    } while (Clock::now() < give_up);
    return false;
}

}  // namespace

bool CopyTurns::Place::begin(uint32_t number, Time now) noexcept {
    const uint32_t in_round = number % kRound;
    const int64_t at = now.time_since_epoch().count();
    // One thread at most has each of these numbers, and the others of its round come later or do not mind.
    if (in_round == 0) {
        trial_began.store(at, std::memory_order_relaxed);
    } else if (in_round == kTrial) {
        other_began.store(at, std::memory_order_relaxed);
    } else if (in_round == 2 * kTrial) {
        const int64_t other = other_began.load(std::memory_order_relaxed);
        const int64_t in_turns = other - trial_began.load(std::memory_order_relaxed), at_once = at - other;
        turns_pay.store(in_turns + in_turns / 8 < at_once, std::memory_order_relaxed);  // by so much that it is no accident
    }
    if (in_round < 2 * kTrial) return in_round < kTrial;
    return turns_pay.load(std::memory_order_relaxed);
}

CopyTurns::Turn CopyTurns::take(uint64_t address, uint64_t span, uint64_t bytes) noexcept {
    if (bytes < kLeastBytes || address / kSharedBytes != (address + span - 1) / kSharedBytes) return Turn();
    Place& place = place_of(address);
    const uint32_t number = place.entered.fetch_add(1, std::memory_order_relaxed);
    if (!place.begin(number, Clock::now()) || !enter_in_turn(place)) place.inside.fetch_add(1, std::memory_order_relaxed);
    return Turn(&place);
}

}  // namespace mooncake::shm
