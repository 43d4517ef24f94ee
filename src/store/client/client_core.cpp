// SPDX-License-Identifier: Apache-2.0
#include "store/client/client_core.h"

#include <cerrno>
#include <utility>
#include <vector>

namespace mooncake::store {

namespace {

constexpr Duration kProbePatience = 100ms;

}  // namespace

ClientCore::ClientCore(PoolAccess& access, ClientConfig client_config)
    : pool(access), config(std::move(client_config)), metrics(pool.metrics), doubts(doubt_hooks()) {
    // Nothing that relies on a segment that failed is promised any more.
    pool.on_segment_failed([this] { leases.forget_soft_leases(); });
}

DoubtfulWrites::Hooks ClientCore::doubt_hooks() {
    const auto fence_if_alive = [this](const std::string& endpoint) {
        // Only if it answers: to fence it ends what others of our threads move there just now.
        const auto alive = pool.engine->probe(endpoint, Deadline::after(kProbePatience));
        return (alive || alive.error().system_errno() == ECONNREFUSED) && pool.fence_peer(endpoint);
    };
    const auto tell_master = [this](std::span<const DoubtfulWrites::Write> settled) {
        std::vector<PutEndItem> items;
        for (const DoubtfulWrites::Write& write : settled) items.push_back({.key = write.key, .generation = write.generation});
        const PutRevokeRequest request{.client = pool.id, .tenant = config.tenant, .items = items};
        return pool.ask(MasterCall::kPutRevoke, [&] { return pool.master->put_revoke(request, pool.rpc_deadline()); }).has_value();
    };
    return {.fence = fence_if_alive, .tell = tell_master};
}

}  // namespace mooncake::store
