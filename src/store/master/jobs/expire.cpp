// SPDX-License-Identifier: Apache-2.0
#include "store/master/jobs/jobs.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

namespace {

constexpr size_t kWorkMax = 4096;  // ranges that are given back in one run, about

bool gone(const Client& client, const MasterOptions& options, Time now) {
    if (client.expires <= now) return true;
    const Time heard = client.expires - options.client_ttl;
    return client.stream_down_since != Time::max() && heard <= client.stream_down_since &&
           now - client.stream_down_since >= options.stream_down_client_ttl;
}

}  // namespace

size_t expire_clients(Transaction& transaction, Time now) {
    const MasterState& state = transaction.state();
    const ClientTable& clients = state.clients();
    size_t ended = 0, work = 0;
    for (ClientNumber number = 1; number < clients.limit() && work < kWorkMax; ++number) {
        if (!clients[number].alive) continue;
        if (!clients.leaving(number) && !gone(clients[number], state.options(), now)) continue;
        work += leave(transaction, number, ClientEnd::kSilent, now, kWorkMax - work);
        ++ended;
    }
    return ended;
}

size_t expire_writes(Transaction& transaction, Time now) {
    const MasterState& state = transaction.state();
    size_t dropped = 0;
    for (WriteId id = state.oldest_write(); id != 0 && dropped < kWorkMax; id = state.oldest_write(), ++dropped) {
        if (state.write(id).started + state.options().put_release_timeout > now) break;
        // Its writer knows that nothing of it may begin to move any more; what had begun has this time to end.
        transaction.apply(
            WriteDropped{.write = id, .quarantine_until = now + state.options().release_margin(state.write(id).length), .now = now});
    }
    return dropped;
}

size_t finish_unmounts(Transaction& transaction, Time now) {
    const SegmentTable& segments = transaction.state().segments();
    size_t removed = 0;
    for (size_t i = 0; i < segments.size();) {
        const SegmentNumber number = segments.numbers()[i];
        const Segment& segment = segments[number];
        if (segment.status == SegmentStatus::kGracefullyUnmounting && segment.status_end <= now) {
            give_up_segment(transaction, number, now);
            ++removed;
        } else {
            ++i;
        }
    }
    return removed;
}

std::span<const Job> all_jobs() noexcept {
    static constexpr Job kJobs[] = {
        {"advance", [](Transaction& transaction, Time now, EvictionRun&) { transaction.advance(now); }},
        {"expire_clients",
         [](Transaction& transaction, Time now, EvictionRun& result) { result.more |= expire_clients(transaction, now) != 0; }},
        {"expire_writes",
         [](Transaction& transaction, Time now, EvictionRun& result) { result.more |= expire_writes(transaction, now) != 0; }},
        {"finish_unmounts", [](Transaction& transaction, Time now, EvictionRun&) { finish_unmounts(transaction, now); }},
        {"dispatch_tasks", [](Transaction& transaction, Time now, EvictionRun&) { dispatch_tasks(transaction, now); }, /*grows=*/true},
        {"run_drains", [](Transaction& transaction, Time now, EvictionRun& result) { result.more |= run_drains(transaction, now); },
         /*grows=*/true},
        {"run_tiers", [](Transaction& transaction, Time now, EvictionRun& result) { result.more |= run_tiers(transaction, now); },
         /*grows=*/true},
        {"evict_to_watermark",
         [](Transaction& transaction, Time now, EvictionRun& result) {
             const bool more = result.more;
             result = evict_to_watermark(transaction, now);
             result.more |= more;
         }},
    };
    return kJobs;
}

EvictionRun run_jobs(Transaction& transaction, Time now) {
    EvictionRun result;
    for (const Job& job : all_jobs()) job.run(transaction, now, result);
    return result;
}

}  // namespace mooncake::store
