// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/error.h"
#include "store/master/state.h"

namespace mooncake::store {

/// Whether everything the state says twice agrees: allocators against objects, writes, copies and quarantine; charges; groups; the
/// eviction order; who refers to whom. kInternal names the first contradiction. Linear; for tests and for doctors.
Result<> check_state(const MasterState& state);

/// The whole state as text, the same for equal states.
std::string dump_state(const MasterState& state);

}  // namespace mooncake::store
