// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "store/master/transaction.h"

namespace mooncake::store {

/// Nobody waits for this write any more: it took too long, or its writer is gone.
inline bool preemptible(const MasterState& state, const Write& write, Time now) {
    return now - write.started >= state.options().put_discard_timeout || !state.clients().alive(write.client);
}

/// Drops a write whose writer was not asked: its bytes may still land, so its ranges rest.
inline void preempt(Transaction& transaction, WriteId id, Time now) {
    const Write& write = transaction.state().write(id);
    transaction.apply(
        WriteDropped{.write = id, .rest_until = write.started + transaction.state().options().put_release_timeout, .now = now});
}

}  // namespace mooncake::store
