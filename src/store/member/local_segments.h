// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "store/member/local_disk.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// Segments that lie in this process, by id: what is there is copied without a transfer. Empty where no node lives. Thread-safe.
class LocalSegments {
public:
    struct Held {
        SegmentSpec spec;
        std::byte* base = nullptr;
        uint64_t size = 0;
        std::shared_ptr<void> memory;       // what keeps it there
        bool of_file = false;               // which others may cut off at any time: its bytes are touched with copy_if_there() alone
        std::shared_ptr<LocalDisk> disk{};  // of a disk, which has no base and no size
    };

    void add(Held segment);
    /// Empty: not ours.
    std::shared_ptr<const Held> find(const SegmentId& id) const;
    /// Takes it out; the memory lives until its last holder lets go.
    std::shared_ptr<const Held> remove(const SegmentId& id);
    void clear();

private:
    mutable SharedMutex mutex_;
    std::unordered_map<SegmentId, std::shared_ptr<const Held>> held_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
