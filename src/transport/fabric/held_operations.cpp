// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/held_operations.h"

#include <algorithm>

namespace mooncake::fabric {

// ---- what peers leave to their successors

void DoubtTable::add(Incarnation target, const Doubts& doubts) {
    if (doubts.empty()) return;
    Lock lock(mutex_);
    if (doubts_.size() >= kTargetsMax && !doubts_.contains(target.value)) doubts_.erase(doubts_.begin());
    doubts_[target.value].insert(doubts.begin(), doubts.end());
}

Doubts DoubtTable::take(Incarnation target) {
    Lock lock(mutex_);
    const auto found = doubts_.find(target.value);
    if (found == doubts_.end()) return {};
    Doubts doubts = std::move(found->second);
    doubts_.erase(found);
    return doubts;
}

void DoubtTable::add_lost(Incarnation target) {
    Lock lock(mutex_);
    if (lost_.size() >= kTargetsMax) lost_.erase(lost_.begin());
    lost_.insert(target.value);
}

bool DoubtTable::is_lost(Incarnation target) {
    Lock lock(mutex_);
    return lost_.contains(target.value);
}

void DoubtTable::found(Incarnation target) {
    Lock lock(mutex_);
    lost_.erase(target.value);
}

// ---- what a peer holds

void HeldOperations::settle(Time asked, const std::function<bool(Held&)>& judge) {
    // By number: whoever breaks off while judging gives everything up.
    for (size_t i = 0; i < held_.size(); ++i) {
        Held& held = held_[i];
        const bool replaced = remotes_.replaced(held.remote, held.epoch);
        if (held.since > asked || held.settled || replaced) {
            held.settled |= replaced;
            continue;
        }
        held.settled = true;
        if (!judge(held)) return;
    }
}

void HeldOperations::release(const std::function<void(const Held&)>& take) {
    std::erase_if(held_, [&](const Held& held) {
        if (!held.settled || (held.doubtful && !remotes_.is_closed(held.remote, held.epoch, held.since))) return false;
        take(held);
        return true;
    });
}

void HeldOperations::give_up(const Completion* completion, const std::function<void(const Piece&)>& take) {
    std::erase_if(held_, [&](const Held& held) {
        if (completion != nullptr && held.piece.run->completion != completion) return false;
        if (held.doubtful) add_doubt(held.remote, held.epoch);
        take(held.piece);
        return true;
    });
}

void HeldOperations::add_doubt(uint32_t remote, uint64_t epoch) {
    const Time now = time_.now();
    if (remotes_.is_closed(remote, epoch, now)) return;
    doubts_.emplace(std::pair(remote, epoch), now);
    // Whoever connects next may do so before we have left.
    if (bequeathed_) heirs_.add(target_, {{remote, epoch}});
}

void HeldOperations::forget_closed() {
    std::erase_if(doubts_, [this](const auto& doubt) { return remotes_.is_closed(doubt.first.first, doubt.first.second, doubt.second); });
}

Doubts HeldOperations::doubts() const {
    Doubts all;
    for (const auto& [doubt, since] : doubts_) all.insert(doubt);
    return all;
}

void HeldOperations::bequeath() {
    bequeathed_ = true;
    heirs_.add(target_, doubts());
}

}  // namespace mooncake::fabric
