// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "store/service/locked_master.h"

namespace mooncake::store {

/// A Removal from beginning to end. `matches` runs without the lock, and is kept if it is forced while nodes are away. How many went; none of a tenant that there is not.
uint64_t remove_in_parts(LockedMaster& master, std::optional<std::string_view> tenant,
                         const std::function<bool(std::string_view key)>& matches, bool force);

}  // namespace mooncake::store
