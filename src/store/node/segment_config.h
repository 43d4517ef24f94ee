// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/protocol/codes.h"
#include "store/protocol/ids.h"

/// What a node is told to lend, and what it answers.
namespace mooncake::store {

struct MountedSegments {
    StoreCode code = StoreCode::kOk;
    std::vector<SegmentId> segments;
    uint64_t bytes = 0;
};
/// A file whose pages are lent.
struct FileToMount {
    std::string path;
    uint64_t size = 0, offset = 0;
    std::string protocol = "tcp", location;
};

}  // namespace mooncake::store
