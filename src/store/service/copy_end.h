// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/protocol/tasks.h"
#include "store/protocol/tiers.h"
#include "store/service/event_hub.h"

namespace mooncake::store {

/// Before store::end_task() of a copy that went well: tells the nodes of the new replicas that they are there, and adds that they must have heard it. For a move
/// the source goes then, and neither a connection that breaks nor a master that is killed may take along all that is known of the value. Till then
/// these nodes know more than the master does, which harms nobody. With the master's lock.
void tell_of_copies(EventHub& hub, const MasterState& state, const TaskEnd& end, EventHub::Caused& caused);
/// The same before store::end_copies(): memory is given up later for what lies on a disk, and the disk's own node has to know of that.
void tell_of_copies(EventHub& hub, const MasterState& state, const CopiesEnd& ends, EventHub::Caused& caused);

}  // namespace mooncake::store
