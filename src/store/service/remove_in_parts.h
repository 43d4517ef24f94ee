// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "store/master/ops/removal.h"
#include "store/service/locked_master.h"

namespace mooncake::store {

/// What is asked for now. Cheap.
Removal begin_removal(LockedMaster& master, Removal::Wish wish);
/// Carries it out, from beginning to end: patterns run without the lock, and are kept if it is forced while nodes are away. How many went, none of a tenant
/// that there is not; nothing if it was stopped on the way, which is asked between any two keys.
std::optional<uint64_t> remove_in_parts(LockedMaster& master, Removal& removal, const std::function<bool()>& stopped);

}  // namespace mooncake::store
