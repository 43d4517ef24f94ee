// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/error.h"
#include "base/options.h"
#include "store/node/disk_config.h"

namespace mooncake::store {

/// What the environment says about values on disk (docs/guide/store.md, "Values on SSD"); `path`, if there is one, stands above it. kInvalidArgument names the
/// variable and what is wrong with it. What has no meaning here is accepted, and the log says so.
MC_EXPORT Result<DiskConfig> load_disk_config(const Environment& environment, std::string_view path);

}  // namespace mooncake::store
