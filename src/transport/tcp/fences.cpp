// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/fences.h"

#include <algorithm>

namespace mooncake::tcp {

void Fences::drop_if_empty(Incarnation target) {
    const auto found = targets_.find(target.value);
    if (found != targets_.end() && found->second.members.empty() && found->second.sessions.empty()) targets_.erase(found);
}

void Fences::join(Incarnation target, Member& member) {
    Lock lock(mutex_);
    Entry& entry = targets_[target.value];
    // Who joins may have to be put in doubt where there is no memory. Nobody has more than one session there at a time.
    entry.sessions.reserve(entry.sessions.size() + entry.members.size() + 1);
    entry.members.push_back(&member);
}

void Fences::leave(Incarnation target, const Member& member) {
    Lock lock(mutex_);
    std::erase(targets_[target.value].members, &member);
    drop_if_empty(target);
}

void Fences::doubt(Incarnation target, const SessionId& session) {
    Lock lock(mutex_);
    std::vector<SessionId>& sessions = targets_[target.value].sessions;
    if (std::find(sessions.begin(), sessions.end(), session) == sessions.end()) sessions.push_back(session);
}

void Fences::outdate_others(Incarnation target, const Member* except) {
    Lock lock(mutex_);
    for (Member* const member : targets_[target.value].members)
        if (member != except) member->outdated.store(true, std::memory_order_release);
    drop_if_empty(target);
}

std::vector<SessionId> Fences::in_doubt(Incarnation target) const {
    Lock lock(mutex_);
    const auto found = targets_.find(target.value);
    return found == targets_.end() ? std::vector<SessionId>() : found->second.sessions;
}

bool Fences::in_doubt(Incarnation target, const SessionId& session) const {
    Lock lock(mutex_);
    const auto found = targets_.find(target.value);
    return found != targets_.end() &&
           std::find(found->second.sessions.begin(), found->second.sessions.end(), session) != found->second.sessions.end();
}

void Fences::settled(Incarnation target, std::span<const SessionId> sessions) {
    Lock lock(mutex_);
    const auto found = targets_.find(target.value);
    if (found == targets_.end()) return;
    for (const SessionId& session : sessions) std::erase(found->second.sessions, session);
    drop_if_empty(target);
}

}  // namespace mooncake::tcp
