// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coordination/directory.h"

namespace mooncake {

/// The twin of the real directories: a map inside this process. All directories of one name share it; it lives as long as the
/// process, as a server outlives its clients.
std::unique_ptr<Directory> make_memory_directory(const std::string& name);

}  // namespace mooncake
