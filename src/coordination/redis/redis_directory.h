// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coordination/directory.h"

namespace mooncake {

/// Plain keys of a redis server. `address`: "[user[:password]@]host[:port][/database]"; the options give what it leaves out.
Result<std::unique_ptr<Directory>> make_redis_directory(const std::string& address, const EngineOptions& options);

}  // namespace mooncake
