// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "store/service/locked_master.h"
#include "store/service/master_metrics.h"

namespace mooncake::store {

/// What can be seen of the state now, as Prometheus text: names of segments and tenants that are gone are gone from it.
std::string state_metrics(const LockedMaster& master);
/// State and counters in one line for the log and for people.
std::string state_summary(const LockedMaster& master, const MasterMetrics& metrics);
/// "1.50 GB"
std::string human_bytes(uint64_t bytes);

}  // namespace mooncake::store
