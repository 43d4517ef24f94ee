// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/tcp/wire.h"

namespace mooncake::tcp {

/// Which of our sessions broke while their target may still apply bytes of them. Whoever connects to that target next has them ended
/// before anything else is sent to it; connections that are open already and know nothing of it are not used for anything new. Thread-safe.
class Fences {
public:
    /// One open connection (a peer). Stays where it is from join() to leave().
    struct Member {
        std::atomic<bool> outdated{false};  // another session of ours with the target broke since
    };

    void join(Incarnation target, Member& member);
    void leave(Incarnation target, const Member& member);

    /// Before anybody can notice that the session broke. Of who has joined: needs no memory.
    void doubt(Incarnation target, const SessionId& session);
    /// Before anybody hears of a write that is in doubt.
    void outdate_others(Incarnation target, const Member* except);
    std::vector<SessionId> in_doubt(Incarnation target) const;
    bool in_doubt(Incarnation target, const SessionId& session) const;
    /// They have ended, or had nothing under way.
    void settled(Incarnation target, std::span<const SessionId> sessions);

private:
    struct Entry {
        std::vector<Member*> members;
        std::vector<SessionId> sessions;
    };
    void drop_if_empty(Incarnation target) MC_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::unordered_map<uint64_t, Entry> targets_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::tcp
