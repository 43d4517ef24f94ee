// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "store/protocol/behind_clients.h"
#include "store/protocol/events.h"

namespace mooncake::store {

/// How far a member has heard its masters: what it must remember to come back as itself. Plain data.
struct Standing {
    HistoryPoint heard;                          // until then it has heard everything
    uint64_t followed_epoch = 0;                 // whose event stream it followed last; 0: none
    uint64_t missed_epoch = 0;                   // the first that went on without it, if no complete event stream has come since
    uint64_t whole_epoch = 0, whole_update = 0;  // of that life it has missed nothing up to this update
    uint64_t last_update = 0;                    // of the event stream it followed last, heard
    bool following = false;                      // the end of that event stream was not heard
    bool whole = false;                          // it has told everything there was at its beginning
    bool forgotten = false;                      // nobody knows what it has missed

    bool operator==(const Standing&) const = default;

    void hear(const EventView& update) {
        last_update = update.sequence;
        if (update.complete) {
            heard = update.now;
            missed_epoch = 0;
            forgotten = false;
            whole = following;
        }
        if (!whole) return;
        whole_update = update.sequence;
        whole_epoch = followed_epoch;
    }
    void end(bool orderly) { following = following && !orderly; }
};

/// What a process that takes the place of one that is gone knows from it.
struct FormerLife {
    Standing standing;
    std::vector<Behind> behind;
    bool exact = false;  // what is in use is known, if the master it followed tells it what it has missed since
};

/// With what others did not hear, as the last master told. Moves only.
struct Remembered {
    Standing standing;
    BehindClients behind;

    void hear(const EventView& update, const ClientId& self) {
        if (update.reset) behind.clear();
        for (const Behind& one : update.behind) {
            if (one.client != self) behind.add(one);
            else if (standing.missed_epoch == 0) standing.missed_epoch = standing.followed_epoch;
        }
        for (const ClientId& client : update.caught_up) behind.erase(client);
        standing.hear(update);
    }
};

}  // namespace mooncake::store
