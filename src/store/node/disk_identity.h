// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/error.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

/// The id of the segment that a directory is, whoever mounts it: kept in a file there, made with the first use. Call it only while nobody else may use
/// the directory. kCorrupt: the file is not one of ours. Others: it can be neither read nor made.
Result<SegmentId> disk_identity(const std::string& directory);

}  // namespace mooncake::store
