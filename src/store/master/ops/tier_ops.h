// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "store/master/transaction.h"
#include "store/protocol/objects.h"
#include "store/protocol/tiers.h"

/// How values move between memory and disks (docs/tiers.md). `now` never runs backwards.
namespace mooncake::store {

/// A node has carried out orders between its tiers, or given them up and stopped, but for what is in doubt. Per item: kOk, kTaskNotFound (it had been taken back),
/// kIllegalClient, kInvalidParams (no such order can be).
CodesReply end_copies(Transaction& transaction, const CopiesEnd& request, Time now);
/// Values that a disk does not hold any more, whether we know of them or not: kOk, kSegmentNotFound, kIllegalClient, kInvalidParams (memory).
StoreCode replicas_gone(Transaction& transaction, const ReplicasGone& request, Time now);
/// Orders of what waits for that node, as many as its window takes and no more than `most`. Returns how many entries it looked at. For the operations and jobs.
size_t order_tier_copies(Transaction& transaction, ClientNumber client, Time now, size_t most);

}  // namespace mooncake::store
