// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "store/master/matched_keys.h"
#include "store/master/transaction.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

class EventHub;

/// store::remount() of a member, with what it has heard of others: a node that an earlier master went on without is not believed what it tells of
/// that one's values. If it has told us already, it has to tell again, and what was copied on its word alone goes as well. Before it reports it is told
/// what it has missed of us. `matched`: the keys of its first segment, tried before. With the master's lock.
RemountReply remount_member(EventHub& hub, Transaction& transaction, const RemountRequest& request, Time now,
                            const MatchedKeys& matched = {});

}  // namespace mooncake::store
