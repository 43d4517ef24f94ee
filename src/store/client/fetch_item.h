// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "store/client/lease_cache.h"
#include "store/protocol/codes.h"

namespace mooncake::store {

/// How far the reading of one value has come. Not thread-safe.
///
///     kFirst --nothing left to try: the master is asked--> kAgain --nothing left to try--> kDone, with the last failure
///     either --arrived, or refused--> kDone
///
/// Within a stage each replica is tried once at most. An answer that only renews the lease begins no stage: a replica that failed is not tried
/// again, as long as it is of the same value at the same place. So an item comes to its end however short leases and slow replicas are;
/// and of a value that is replaced faster than it can be read, after so many answers.
class FetchItem {
public:
    static constexpr uint8_t kAnswersMax = 16;

    const Place& place() const noexcept { return place_; }
    bool done() const noexcept { return stage_ == Stage::kDone; }
    StoreCode code() const noexcept { return code_; }

    /// The first answer.
    void begin(const Place& place) { place_ = place; }
    /// Whether the master may be asked, for a lease that lasts.
    bool may_renew() const noexcept { return !done() && answers_ < kAnswersMax; }
    void renew(const Place& place) {
        ++answers_;
        tried_ = place.generation == place_.generation ? tried_at(place) : 0;
        place_ = place;
    }
    /// Whether the master may be asked because nothing is left to try.
    bool may_restart() const noexcept { return stage_ == Stage::kFirst && may_renew(); }
    void restart(const Place& place) {
        ++answers_;
        stage_ = Stage::kAgain;
        tried_ = 0;
        place_ = place;
    }

    bool tried(size_t replica) const noexcept { return (tried_ & (1u << replica)) != 0; }
    void choose(size_t replica) noexcept { chosen_ = static_cast<uint8_t>(replica); }
    const ReplicaLocation& chosen() const noexcept { return place_.replicas[chosen_]; }
    void chosen_failed(StoreCode why) noexcept {
        tried_ |= static_cast<uint8_t>(1u << chosen_);
        last_failure_ = why;
    }

    void finish(StoreCode code) noexcept {
        code_ = code;
        stage_ = Stage::kDone;
    }
    void give_up() noexcept { finish(last_failure_); }

private:
    enum class Stage : uint8_t { kFirst, kAgain, kDone };
    static_assert(Place::kReplicasMax <= 8);  // one bit each

    /// Which of these replicas are those that were tried.
    uint8_t tried_at(const Place& place) const noexcept {
        uint8_t tried = 0;
        const auto before = place_.all_replicas();
        for (size_t i = 0; i < place.replica_count; ++i) {
            const auto same = std::find(before.begin(), before.end(), place.replicas[i]);
            if (same != before.end() && this->tried(static_cast<size_t>(same - before.begin()))) tried |= static_cast<uint8_t>(1u << i);
        }
        return place.epoch == place_.epoch ? tried : 0;  // another master numbers segments otherwise
    }

    Place place_;
    StoreCode code_ = StoreCode::kOk;
    StoreCode last_failure_ = StoreCode::kObjectNotFound;  // a miss, as long as nothing was tried
    Stage stage_ = Stage::kFirst;
    uint8_t tried_ = 0;  // one bit per replica
    uint8_t chosen_ = 0;
    uint8_t answers_ = 0;  // after the first
};

}  // namespace mooncake::store
