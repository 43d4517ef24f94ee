// SPDX-License-Identifier: Apache-2.0
#include "store/client/client_core.h"

#include <utility>
#include <vector>

namespace mooncake::store {

ClientCore::ClientCore(PoolAccess& access, ClientConfig client_config)
    : pool(access), config(std::move(client_config)), metrics(pool.metrics), nodes(pool.engine->incarnation()), doubts(doubt_hooks()) {
    // Nothing that relies on a segment that failed is promised any more.
    pool.on_segment_failed([this] { leases.forget_soft_leases(); });
}

DoubtfulWrites::Hooks ClientCore::doubt_hooks() {
    const auto tell_master = [this](std::span<const DoubtfulWrites::Write> settled) {
        std::vector<PutEndItem> items;
        for (const DoubtfulWrites::Write& write : settled) items.push_back({.key = write.key, .generation = write.generation});
        const PutRevokeRequest request{.client = pool.id, .tenant = config.tenant, .items = items};
        return pool.ask(MasterCall::kPutRevoke, [&] { return pool.master->put_revoke(request, pool.rpc_deadline()); }).has_value();
    };
    return {.fence = [this](const std::string& endpoint) { return pool.fence_if_alive(endpoint); }, .tell = tell_master};
}

}  // namespace mooncake::store
