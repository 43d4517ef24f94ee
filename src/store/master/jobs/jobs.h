// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "store/master/transaction.h"

/// What the master does by itself, one file each: called now and then by whoever owns the clock, each bounded in what it does.
namespace mooncake::store {

/// Evicts by bytes when more than the high watermark is in use, down to eviction_ratio below it. Breaks no soft lease. Bounded per run:
/// call again soon while `more`.
struct EvictionRun {
    size_t entries = 0;
    uint64_t bytes = 0;
    bool more = false;  // of this, or of another job
    bool over = false;  // the mark was exceeded
};
EvictionRun evict_to_watermark(Transaction& transaction, Time now);
/// Ends clients that have sent no heartbeat for client_ttl, or for stream_down_client_ttl since their event stream broke. Returns how many: call
/// again soon unless none, since no more is done in one run than gives back some thousand ranges, or one segment that has more.
size_t expire_clients(Transaction& transaction, Time now);
/// Drops writes that are older than put_release_timeout, some thousand per run. Returns how many.
size_t expire_writes(Transaction& transaction, Time now);
/// Takes away segments whose grace is over. Returns how many.
size_t finish_unmounts(Transaction& transaction, Time now);

/// Fails tasks that waited or took too long, and orders the copies of those that can begin. Returns how many it tried.
size_t dispatch_tasks(Transaction& transaction, Time now);
/// Goes on with all drains. Bounded per run: returns whether to call it again soon.
bool run_drains(Transaction& transaction, Time now);

/// Queues what is to be offloaded soon, and orders what waits for disks. Bounded per run: returns whether to call it again soon.
bool run_tiers(Transaction& transaction, Time now);

/// All of them, in a good order; each may run without the others.
struct Job {
    const char* name;
    void (*run)(Transaction& transaction, Time now, EvictionRun& result);
    bool grows = false;  // makes the state grow: can wait while there is no memory
};
std::span<const Job> all_jobs() noexcept;
/// Every 10 ms or so.
EvictionRun run_jobs(Transaction& transaction, Time now);

}  // namespace mooncake::store
