// SPDX-License-Identifier: Apache-2.0
#include "engine/caller_life.h"

#include <algorithm>
#include <unordered_map>

namespace mooncake {

namespace {

/// What a thread remembers of one session. While it does, no other session can have the same name.
struct Known {
    std::weak_ptr<const int> session;
    std::shared_ptr<CallerLife> life;
};

struct KnownSessions {
    std::unordered_map<const int*, Known> all;
    const int* last = nullptr;  // who transfers mostly does so to the peer it did last
    const std::shared_ptr<CallerLife>* last_life = nullptr;
    size_t clean_at = 64;

    /// Now and then, so that it stays within twice what there is.
    void forget_ended() {
        if (all.size() < clean_at) return;
        std::erase_if(all, [](const auto& entry) { return entry.second.session.expired(); });
        clean_at = std::max<size_t>(64, 2 * all.size());
    }
};

KnownSessions& known() {
    static thread_local KnownSessions sessions;
    return sessions;
}

}  // namespace

const std::shared_ptr<CallerLife>& CallerKey::of_this_thread() const {
    KnownSessions& sessions = known();
    if (sessions.last == alive_.get()) return *sessions.last_life;
    auto found = sessions.all.find(alive_.get());
    if (found == sessions.all.end()) {
        sessions.forget_ended();
        found = sessions.all.emplace(alive_.get(), Known{.session = alive_, .life = std::make_shared<CallerLife>()}).first;
    }
    sessions.last = alive_.get();
    sessions.last_life = &found->second.life;
    return found->second.life;
}

size_t CallerKey::known_to_this_thread() { return known().all.size(); }

}  // namespace mooncake
