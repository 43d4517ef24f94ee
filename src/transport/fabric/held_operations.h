// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/time.h"
#include "transport/fabric/doubts.h"
#include "transport/fabric/queue.h"
#include "transport/fabric/remote_rails.h"

namespace mooncake::fabric {

/// A piece that failed, until we know what became of the endpoint it went to.
struct Held {
    Piece piece;
    uint32_t rail = 0, remote = 0;
    uint64_t epoch = 0;
    uint32_t generation = 0;
    Time since{};
    bool posted = false;    // it got as far as that
    bool doubtful = false;  // it may still land
    bool stale = false;     // the target did not know key or address
    bool settled = false;   // the target has answered since
    bool given_up = false;  // it was the last try: fails as soon as it cannot land any more
    Error reason;
};

/// What may still land at a target although it ended here: pieces that failed, and the endpoints at which there is something of pieces that
/// nobody waits for any more (doubts). Nothing leaves before the target has answered and the endpoint is closed, or the piece could not land
/// anyway (ADR 0030). Not thread-safe: belongs to the peer.
class HeldOperations {
public:
    /// All of them outlive it.
    HeldOperations(const RemoteRails& remotes, const TimeSource& time, DoubtTable& heirs, Incarnation target)
        : remotes_(remotes), time_(time), heirs_(heirs), target_(target) {}

    void hold(Held held) { held_.push_back(std::move(held)); }
    /// The target has answered what was asked at `asked`. `judge` is shown every piece that failed before, to an endpoint that is still there:
    /// it was the way to it, or the operation itself. False ends it at once; then nothing is held any more.
    void settle(Time asked, const std::function<bool(Held&)>& judge);
    /// Hands out what has been settled and cannot land any more.
    void release(const std::function<void(const Held&)>& take);
    /// Gives up the pieces of one completion (null: of all) and hands them out. What may still land of them is a doubt from now on.
    void give_up(const Completion* completion, const std::function<void(const Piece&)>& take);

    // ---- doubts
    void add_doubt(uint32_t remote, uint64_t epoch);
    void forget_closed();
    bool in_doubt() const noexcept { return !doubts_.empty(); }
    Doubts doubts() const;
    /// Leaves them to whoever connects next; also those that come from now on.
    void bequeath();

private:
    const RemoteRails& remotes_;
    const TimeSource& time_;
    DoubtTable& heirs_;
    const Incarnation target_;
    bool bequeathed_ = false;
    std::deque<Held> held_;
    std::map<std::pair<uint32_t, uint64_t>, Time> doubts_;  // since when
};

}  // namespace mooncake::fabric
