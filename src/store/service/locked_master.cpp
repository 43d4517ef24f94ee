// SPDX-License-Identifier: Apache-2.0
#include "store/service/locked_master.h"

namespace mooncake::store {

LockedMaster::LockedMaster(const MasterOptions& options, StateObserver* observer, EventSink* sink)
    : state_(options, observer), sink_(sink) {}

}  // namespace mooncake::store
