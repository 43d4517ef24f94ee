// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/segments.h"

namespace mooncake::store {

std::string_view segment_status_name(SegmentStatus status) noexcept {
    switch (status) {
        case SegmentStatus::kUndefined: return "UNDEFINED";
        case SegmentStatus::kOk: return "OK";
        case SegmentStatus::kDraining: return "DRAINING";
        case SegmentStatus::kDrained: return "DRAINED";
        case SegmentStatus::kGracefullyUnmounting: return "GRACEFULLY_UNMOUNTING";
        case SegmentStatus::kUnmounting: return "UNMOUNTING";
    }
    return "UNDEFINED";
}

}  // namespace mooncake::store
