// SPDX-License-Identifier: Apache-2.0
#include "store/service/unheard_events.h"

#include <algorithm>
#include <utility>

namespace mooncake::store {

void UnheardEvents::keep(uint64_t sequence, uint64_t first, std::span<const std::byte> update) {
    may_hold_ = true;
    if (sequence <= heard_) return;  // by the time it was sent
    const Kept kept{.sequence = sequence, .first = first, .position = texts_.append(update), .bytes = update.size()};
    bytes_ += update.size();
    if (kept_.empty() || kept_.back().sequence < sequence) {
        kept_.push_back(kept);
    } else {  // whoever sends does so without a lock, and another event stream may have begun meanwhile
        const auto before = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept& one) { return one.sequence < sequence; });
        kept_.insert(before.base(), kept);
        disordered_ = true;
    }
    bound();
}

void UnheardEvents::seal() {
    if (unsent_.empty()) return;
    const uint64_t sequence = next();
    keep(sequence, 0, std::exchange(unsent_, {}).encode({.sequence = sequence}));
}

void UnheardEvents::give_up() noexcept {
    // What was not sent has no number; whatever is sent from now on comes after it. Otherwise none may be used up: a client that has heard all
    // it was ever sent has lost nothing.
    if (!unsent_.empty()) lost_up_to_ = next();
    else if (!kept_.empty()) lost_up_to_ = std::max(lost_up_to_, kept_.back().sequence);
    kept_.clear();
    note_dropped();
    unsent_.clear();
    bytes_ = 0;
}

void UnheardEvents::note_dropped() noexcept {
    disordered_ &= !kept_.empty();
    if (kept_.empty()) texts_.clear();
    else if (!disordered_) texts_.drop_before(kept_.front().position);
}

size_t UnheardEvents::heard(uint64_t sequence) {
    heard_ = std::max(heard_, sequence);
    size_t count = 0;
    for (; !kept_.empty() && kept_.front().sequence <= sequence; ++count) {
        bytes_ -= kept_.front().bytes;
        kept_.pop_front();
    }
    if (count != 0) note_dropped();
    if (lost_up_to_ <= sequence) lost_up_to_ = 0;
    return count;
}

UnheardEvents::Missed UnheardEvents::after(uint64_t sequence, uint64_t remembered) {
    seal();
    // Who has told us of more than it remembers has lost something, and we have not got it any more. (Or it was we who forgot.)
    const bool torn = remembered != 0 && (remembered - 1 < heard_ || remembered - 1 > sequence_);
    // Who has heard more than we know of was away for so long that it was forgotten.
    Missed missed{.updates = {}, .lost = torn || lost_up_to_ > sequence || sequence > sequence_};
    if (missed.lost) return missed;
    for (const Kept& kept : kept_) {
        if (kept.sequence <= sequence) continue;
        const std::span<const std::byte> update = texts_.read(kept.position, kept.bytes);
        missed.updates.emplace_back(update.begin(), update.end());
    }
    return missed;
}

}  // namespace mooncake::store
