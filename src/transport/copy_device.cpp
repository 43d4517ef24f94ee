// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_device.h"

namespace mooncake {

void DeviceCopies::add(const Owner& owner, MemoryKind to, MemoryKind from, const CopyPart& part) {
    if (to != to_ || from != from_) flush();
    to_ = to;
    from_ = from;
    parts_.push_back(part);
    parts_.back().ordered = owner.ordered;
    owners_.push_back(owner);
}

void DeviceCopies::show(size_t part) const noexcept {
    const Owner& owner = owners_[part];
    const CopyPart& copied = parts_[part];
    if (owner.copier == nullptr || (to_ != MemoryKind::kHost && from_ != MemoryKind::kHost)) return;
    // Of a read, too, only now: what changes meanwhile in the peer's memory becomes wrong there, and never right again.
    owner.copier->passed(owner.local, to_ == MemoryKind::kHost ? copied.to : copied.from, copied.length);
}

void DeviceCopies::flush() {
    if (parts_.empty()) return;
    auto copied = devices_.copy(to_, from_, parts_);
    if (!copied && copied.error().code() == Code::kTimedOut) {
        // It waited for work of the program, and would again for each piece.
        for (const Owner& owner : owners_) failures_.emplace_back(owner.slice, copied.error());
    } else if (!copied && parts_.size() > 1) {
        // One bad piece does not cost the others. What was copied before may be copied again.
        for (size_t i = 0; i < parts_.size(); ++i) {
            if (auto alone = devices_.copy(to_, from_, std::span(parts_).subspan(i, 1)); !alone)
                failures_.emplace_back(owners_[i].slice, std::move(alone).error());
            else show(i);
        }
    } else if (!copied) {
        failures_.emplace_back(owners_.front().slice, std::move(copied).error());
    } else {
        for (size_t i = 0; i < parts_.size(); ++i) show(i);
    }
    drop();
}

}  // namespace mooncake
