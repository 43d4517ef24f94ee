// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "store/master/jobs/jobs.h"
#include "store/master/ops/tier_ops.h"

namespace mooncake::store {

namespace {

constexpr uint64_t kAheadShare = 16;    // of the memory, that is to be on disks among the coldest
constexpr size_t kLooksMax = 1024;      // per run
constexpr size_t kWaitingMax = 128;     // of those that were set aside for disks, looked at again per run
constexpr size_t kOrdersMax = 1024;     // per node and run
constexpr Duration kRateInterval = 1s;  // how long what is put is counted for

void expire_copies(Transaction& transaction, Time now) {
    const MasterState& state = transaction.state();
    const MasterOptions& options = state.options();
    if (options.processing_task_timeout == Duration::zero()) return;
    while (!state.tiers().copies.empty()) {
        const CopyId oldest = state.tiers().copies.begin()->second;
        if (now - state.copy(oldest).started < options.processing_task_timeout) break;
        transaction.apply(CopyEnded{.copy = oldest,
                                    .code = StoreCode::kRpcTimeout,
                                    .message = {},
                                    .quarantine_until = now + options.put_release_timeout,  // it may still be at it
                                    .now = now});
    }
}

/// Looks at the coldest values of a tenant until that many bytes of them were looked at; what no disk has is queued. False: there is more to do than was done.
bool look_ahead(Transaction& transaction, TenantNumber tenant, uint64_t bytes, size_t& looks) {
    const MasterState& state = transaction.state();
    const EvictionPolicy& policy = state.tenants()[tenant].order.policy();
    while (policy.seen_bytes() < bytes) {
        const ObjectId unit = policy.first_unseen();
        if (unit == 0) return true;
        if (looks == 0) return false;
        --looks;
        transaction.apply(LookedAhead{.object = unit});
    }
    return true;
}

bool queues_full(const MasterState& state) {
    return std::any_of(state.tiers().nodes.begin(), state.tiers().nodes.end(),
                       [&](const auto& one) { return one.second.offloads.size() >= state.options().offload_queue_max; });
}

/// What will have to go soon is written to disks before.
bool clean_ahead(Transaction& transaction) {
    const MasterState& state = transaction.state();
    const uint64_t capacity = state.segments().capacity();
    const uint64_t used = state.segments().used_bytes() - std::min(state.segments().used_bytes(), state.quarantine().bytes());
    const uint64_t wanted = std::max(capacity / kAheadShare, state.tiers().last_second_bytes);
    if (used + 2 * wanted < capacity || queues_full(state)) return true;
    size_t looks = kLooksMax;
    if (!state.options().tenants) return look_ahead(transaction, TenantTable::kDefault, wanted, looks);
    bool done = true;
    for (TenantNumber number = 1; number < state.tenants().limit(); ++number) {
        if (!state.tenants().exists(number) || state.tenants()[number].order.size() == 0) continue;
        const double share = static_cast<double>(state.tenants()[number].charged_bytes) / static_cast<double>(std::max<uint64_t>(used, 1));
        done &= look_ahead(transaction, number, static_cast<uint64_t>(share * static_cast<double>(wanted)) + 1, looks);
    }
    return done;
}

/// Some of those that wait for a disk: whoever need not wait any more comes back, and the others are queued again where they are not.
void look_after_waiting(Transaction& transaction) {
    const MasterState& state = transaction.state();
    for (TenantNumber number = 1; number < state.tenants().limit(); ++number) {
        if (!state.tenants().exists(number)) continue;
        const EvictionOrder& order = state.tenants()[number].order;
        for (size_t left = std::min(kWaitingMax, order.aside(Shelf::kDirty)); left != 0; --left) {
            const ObjectId unit = order.first_aside(Shelf::kDirty);
            if (state.waits_for_disk(unit)) transaction.apply(SetAside{.object = unit, .shelf = Shelf::kDirty, .until = Time::max()});
            else transaction.apply(BroughtBack{.object = unit});
        }
    }
}

}  // namespace

bool run_tiers(Transaction& transaction, Time now) {
    const MasterState& state = transaction.state();
    if (state.segments().disks() == 0) return false;
    expire_copies(transaction, now);
    bool more = false;
    if (now - state.tiers().looked >= kRateInterval) transaction.apply(TiersLooked{.now = now});
    look_after_waiting(transaction);
    if (state.offloads()) more = !clean_ahead(transaction);
    std::vector<ClientNumber> nodes;
    for (const auto& [client, node] : state.tiers().nodes)
        if (!node.offloads.empty() || !node.promotions.empty()) nodes.push_back(client);
    for (const ClientNumber client : nodes) more |= order_tier_copies(transaction, client, now, kOrdersMax) == kOrdersMax;
    return more;
}

}  // namespace mooncake::store
