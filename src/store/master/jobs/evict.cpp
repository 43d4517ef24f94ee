// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/jobs/jobs.h"
#include "store/master/ops/evictor.h"

namespace mooncake::store {

EvictionRun evict_to_watermark(Transaction& transaction, Time now) {
    constexpr size_t kEntriesMax = 4096;
    const MasterState& state = transaction.state();
    const auto capacity = static_cast<double>(state.segments().capacity());
    // What is in quarantine comes back by itself.
    const auto used = static_cast<double>(state.segments().used_bytes() - state.quarantine().bytes());
    const double over = used - capacity * state.options().high_watermark;
    EvictionRun run;
    if (over <= 0 || !state.options().evict_ahead) return run;
    run.over = true;
    const auto target = static_cast<uint64_t>(std::min(used, over + capacity * state.options().eviction_ratio));
    const uint64_t least = std::max(target / 2, static_cast<uint64_t>(over));
    Evictor evictor(transaction, now);
    const auto evict_until = [&](uint64_t bytes, Sacrifice most) {
        while (run.bytes < bytes && run.entries < kEntriesMax) {
            const ObjectId unit = evictor.next(0, most);
            if (unit == 0) return;
            run.bytes += evictor.evict(unit);
            ++run.entries;
        }
    };
    evict_until(target, Sacrifice::kPlain);
    evict_until(least, Sacrifice::kSoftPinned);
    run.more = run.entries == kEntriesMax;
    return run;
}

}  // namespace mooncake::store
