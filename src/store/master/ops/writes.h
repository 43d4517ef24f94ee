// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "store/master/transaction.h"

namespace mooncake::store {

/// Nobody waits for this write any more: it took too long, or its writer is gone.
inline bool preemptible(const MasterState& state, const Write& write, Time now) {
    if (now - write.started >= state.options().put_discard_timeout || !state.clients().alive(write.client)) return true;
    const Time stream_down_since = state.clients()[write.client].stream_down_since;
    return stream_down_since != Time::max() && now - stream_down_since >= state.options().stream_down_writer_timeout;
}

/// Drops a write whose writer was not asked: its bytes may still land, so its ranges are in quarantine.
inline void preempt(Transaction& transaction, WriteId id, Time now) {
    const Write& write = transaction.state().write(id);
    const MasterOptions& options = transaction.state().options();
    const Time quarantine_until = write.started + options.put_release_timeout + options.release_margin(write.length);
    transaction.apply(WriteDropped{.write = id, .quarantine_until = quarantine_until, .now = now});
}

}  // namespace mooncake::store
