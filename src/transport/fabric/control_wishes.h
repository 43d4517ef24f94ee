// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/time.h"
#include "transport/fabric/doubts.h"
#include "transport/fabric/remote_keys.h"

namespace mooncake::fabric {

/// What is to be asked of a target over the control plane.
struct Wishes {
    bool look = false;      // whether it is there, and what became of its endpoints
    bool announce = false;  // tell it the addresses we write from
    std::vector<WantedKeys> ranges;
    Doubts fences;

    bool empty() const noexcept { return !look && !announce && ranges.empty() && fences.empty(); }
};

/// Gathers wishes while one task at a time sees to those before. As long as there are wishes, somebody sees to them: who adds some calls
/// begin() and, if told so, starts the task, which calls take() until that is empty. Knows since when there is a question that the target has
/// not answered. Not thread-safe: belongs to the peer.
class ControlWishes {
public:
    void look() noexcept { wishes_.look = true; }
    void announce() noexcept { wishes_.announce = true; }
    void keys(const WantedKeys& range) { wishes_.ranges.push_back(range); }
    void fence(uint32_t remote, uint64_t epoch) { wishes_.fences.emplace(remote, epoch); }
    void fence(const Doubts& doubts) { wishes_.fences.insert(doubts.begin(), doubts.end()); }
    /// Nobody needs them any more.
    void drop_keys() { wishes_.ranges.clear(); }

    /// True: a task has to be started for them.
    bool begin(Time now) noexcept {
        if (asking_ || wishes_.empty()) return false;
        asking_ = true;
        unanswered_since_ = now;
        return true;
    }
    /// What to ask now. Empty: nothing; the task is over.
    Wishes take(Time now) {
        asking_ = !wishes_.empty();
        if (!asking_) unanswered_since_ = Time{};
        else if (unanswered_since_ == Time{}) unanswered_since_ = now;
        return std::exchange(wishes_, {});
    }
    /// They got no answer.
    void again(const Wishes& wishes) {
        wishes_.look |= wishes.look;
        wishes_.announce |= wishes.announce;
        wishes_.ranges.insert(wishes_.ranges.end(), wishes.ranges.begin(), wishes.ranges.end());
        fence(wishes.fences);
    }
    /// The target has answered something.
    void answered() noexcept { unanswered_since_ = Time{}; }
    /// It has not, although it was asked so long ago.
    bool is_silent(Time now, Duration limit) const noexcept { return unanswered_since_ != Time{} && now - unanswered_since_ >= limit; }
    /// The task is over, whatever is wished.
    void stop() noexcept {
        asking_ = false;
        unanswered_since_ = Time{};
    }
    bool asking() const noexcept { return asking_; }

private:
    Wishes wishes_;
    bool asking_ = false;
    Time unanswered_since_{};
};

}  // namespace mooncake::fabric
