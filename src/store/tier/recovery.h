// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "store/tier/appender.h"

namespace mooncake::store::log {

/// Builds index and table of files from what lies on the disk, in parallel; files without a directory get one. What is on the disk decides nothing but
/// what is found: only a disk that cannot be listed is an error.
Result<TierFound> recover_files(Disk& disk, FileTable& files, Index& index, Appender& appender, size_t threads_max);

}  // namespace mooncake::store::log
