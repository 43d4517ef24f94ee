// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coordination/directory.h"

namespace mooncake {

/// Keys of an etcd v3 cluster through the JSON gateway every etcd server carries. `endpoints`: "host:port[,host:port...]", each
/// with or without http:// before it; they are tried in turn, starting with the one that answered last. kInvalidArgument.
/// kNotSupported: https.
Result<std::unique_ptr<Directory>> make_etcd_directory(const std::string& endpoints);

}  // namespace mooncake
