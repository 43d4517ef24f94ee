// SPDX-License-Identifier: Apache-2.0
#include "store/member/local_segments.h"

#include <utility>

namespace mooncake::store {

void LocalSegments::add(Held segment) {
    const SegmentId id = segment.spec.id;
    auto held = std::make_shared<const Held>(std::move(segment));
    WriteLock lock(mutex_);
    held_.emplace(id, std::move(held));
}

std::shared_ptr<const LocalSegments::Held> LocalSegments::find(const SegmentId& id) const {
    ReadLock lock(mutex_);
    const auto found = held_.find(id);
    return found == held_.end() ? nullptr : found->second;
}

std::shared_ptr<const LocalSegments::Held> LocalSegments::remove(const SegmentId& id) {
    WriteLock lock(mutex_);
    const auto found = held_.find(id);
    if (found == held_.end()) return nullptr;
    auto held = std::move(found->second);
    held_.erase(found);
    return held;
}

void LocalSegments::clear() {
    // Giving memory back waits for the engine's fence, so it is not done under the lock.
    std::unordered_map<SegmentId, std::shared_ptr<const Held>> held;
    {
        WriteLock lock(mutex_);
        held.swap(held_);
    }
}

}  // namespace mooncake::store
