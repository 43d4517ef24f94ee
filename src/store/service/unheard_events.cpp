// SPDX-License-Identifier: Apache-2.0
#include "store/service/unheard_events.h"

#include <algorithm>
#include <utility>

namespace mooncake::store {

void UnheardEvents::keep(uint64_t sequence, uint64_t first, EventWriter&& writer) {
    may_hold_ = true;
    if (sequence <= heard_) return;  // by the time it was sent
    bytes_ += writer.bytes();
    if (kept_.empty() || kept_.back().sequence < sequence) {
        kept_.emplace_back(sequence, first, std::move(writer));
    } else {  // whoever sends does so without a lock, and another event stream may have begun meanwhile
        const auto before = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& kept) { return kept.sequence < sequence; });
        kept_.emplace(before.base(), sequence, first, std::move(writer));
    }
    bound();
}

void UnheardEvents::seal() {
    if (unsent_.empty()) return;
    keep(next(), 0, std::exchange(unsent_, {}));
}

void UnheardEvents::give_up() noexcept {
    // What was not sent has no number; whatever is sent from now on comes after it. Otherwise none may be used up: a client that has heard all
    // it was ever sent has lost nothing.
    if (!unsent_.empty()) lost_up_to_ = next();
    else if (!kept_.empty()) lost_up_to_ = std::max(lost_up_to_, kept_.back().sequence);
    kept_.clear();
    unsent_.clear();
    bytes_ = 0;
}

std::deque<UnheardEvents::Kept> UnheardEvents::heard(uint64_t sequence) {
    std::deque<Kept> done;
    heard_ = std::max(heard_, sequence);
    if (!kept_.empty() && kept_.back().sequence <= sequence) {
        done.swap(kept_);
        bytes_ = 0;
    }
    while (!kept_.empty() && kept_.front().sequence <= sequence) {
        bytes_ -= kept_.front().writer.bytes();
        done.push_back(std::move(kept_.front()));
        kept_.pop_front();
    }
    if (lost_up_to_ <= sequence) lost_up_to_ = 0;
    return done;
}

UnheardEvents::Missed UnheardEvents::after(uint64_t sequence) {
    seal();
    // Who has heard more than we know of was away for so long that it was forgotten.
    Missed missed{.updates = {}, .lost = lost_up_to_ > sequence || sequence > sequence_};
    if (missed.lost) return missed;
    for (const Kept& kept : kept_)
        if (kept.sequence > sequence) missed.updates.push_back(kept.writer.encode({.sequence = kept.sequence}));
    return missed;
}

}  // namespace mooncake::store
