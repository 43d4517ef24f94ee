// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/node/master_link.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// One mounted segment as this client sees it. Immutable but for its health.
struct SegmentRecord {
    uint32_t number = 0;
    SegmentSpec spec;
};
using SegmentHandle = std::shared_ptr<const SegmentRecord>;

/// Numbers to segments, for the current life of the master, fetched when an unknown number turns up; and which of them this client
/// could not reach lately. Thread-safe.
class SegmentDirectory {
public:
    explicit SegmentDirectory(MasterApi& master) : master_(master) {}

    /// Asks the master at most once per unknown number and epoch; single-flight. kNotFound: it knows no such segment; kStale: the epoch is over.
    Result<SegmentHandle> find(uint64_t epoch, uint32_t number, Deadline deadline);
    void forget_all();

    /// A transfer to or from it failed: not tried again for a while that doubles with each failure (50 ms to 5 s), and the master is told.
    void failed(const SegmentHandle& segment, Time now);
    void worked(const SegmentHandle& segment);
    bool reachable(const SegmentHandle& segment, Time now) const;
    /// The numbers of those not worth trying now, for KeysRequest::unreachable.
    std::vector<uint32_t> unreachable(Time now) const;
    bool all_reachable() const noexcept;  // cheap: nothing is suspected

private:
    MasterApi& master_;
};

}  // namespace mooncake::store
