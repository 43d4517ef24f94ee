// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "store/master/ops/evictor.h"
#include "store/master/ops/task_ops.h"
#include "store/master/ops/tier_ops.h"

namespace mooncake::store {

namespace {

/// Orders what waits for one node.
class TierOrders {
public:
    TierOrders(Transaction& transaction, ClientNumber client, Time now) : transaction_(transaction), client_(client), now_(now) {}

    size_t run(size_t most) {
        if (node().paused_until > now_ || !hears()) return 0;
        size_t looked = 0;
        bool promotion = false;  // by turns
        for (bool blocked = false; looked < most; promotion = !promotion) {
            if (queue(promotion).empty() || !order_next(promotion)) {
                if (blocked) break;
                blocked = true;
                continue;
            }
            blocked = false;
            ++looked;
        }
        return looked;
    }

private:
    const MasterState& state() const { return transaction_.state(); }
    const SegmentTable& segments() const { return state().segments(); }
    const TierNode& node() const { return state().tiers().nodes.at(client_); }
    const std::deque<TierNode::Entry>& queue(bool promotion) const { return promotion ? node().promotions : node().offloads; }
    bool well(SegmentNumber segment) const {
        return segments()[segment].writable && !segments()[segment].stream_down && segments()[segment].heard_until > now_;
    }
    bool hears() const {
        const std::vector<SegmentNumber>& disks = state().clients()[client_].disks;
        return std::any_of(disks.begin(), disks.end(), [&](SegmentNumber disk) { return well(disk); });
    }

    /// False: not now.
    bool order_next(bool promotion) {
        const TierNode::Entry entry = queue(promotion).front();
        const auto is_it = [&] {
            return state().objects().exists(entry.object) && state().objects()[entry.object].generation == entry.generation &&
                   state().objects()[entry.object].copy == 0 && state().objects()[entry.object].write == 0;
        };
        if (is_it() && !node().has_room(state().rounded(state().objects()[entry.object].length))) return false;
        transaction_.apply(TierTaken{.client = client_, .promotion = promotion});
        if (!is_it()) return true;
        auto change = promotion ? promotion_of(entry.object) : offload_of(state().objects()[entry.object]);
        if (!change || !is_it()) return true;  // what had to go for it may have taken it along
        change->task = state().next_tier_task();
        change->object = entry.object;
        change->now = now_;
        transaction_.apply(*std::move(change));
        return true;
    }

    /// Its replica among those of this node, in memory or on a disk.
    SegmentNumber own_replica(const Object& object, bool disk) const {
        for (size_t i = 0; i < object.replicas.size(); ++i) {
            const SegmentNumber segment = object.replicas[i].segment;
            if (segments()[segment].client == client_ && segments().is_disk(segment) == disk) return segment;
        }
        return 0;
    }

    std::optional<TierCopyStarted> offload_of(const Object& object) const {
        const SegmentNumber source = object.on_disk ? 0 : own_replica(object, false);
        const SegmentNumber disk = state().disk_for(client_, object.length);
        if (source == 0 || disk == 0 || !well(disk)) return std::nullopt;
        const auto name = segments()[disk].allocator.find(state().rounded(object.length));
        if (!name) return std::nullopt;
        return TierCopyStarted{.source = source, .target = {.segment = disk, .offset = *name}};
    }

    std::optional<TierCopyStarted> promotion_of(ObjectId id) {
        constexpr size_t kSegmentsMax = 64;  // of this node, that are looked at
        const Object& object = state().objects()[id];
        const SegmentNumber source = object.in_memory ? 0 : own_replica(object, true);
        if (source == 0 || !state().may_promote() || over_quota(object)) return std::nullopt;
        const uint64_t bytes = state().rounded(object.length);
        const std::vector<SegmentNumber> lent = state().clients()[client_].segments;
        const std::span<const SegmentNumber> some = std::span(lent).first(std::min(lent.size(), kSegmentsMax));
        for (const SegmentNumber segment : some) {
            if (segments().is_disk(segment) || !segments().is_trusted(segment, now_)) continue;
            if (const auto offset = segments()[segment].allocator.find(bytes))
                return TierCopyStarted{.source = source, .target = {.segment = segment, .offset = *offset}};
        }
        return in_place_of_clean(id, source, some);
    }
    /// Where values are evicted only once they are on disks, those may go for it.
    std::optional<TierCopyStarted> in_place_of_clean(ObjectId id, SegmentNumber source, std::span<const SegmentNumber> some) {
        constexpr size_t kTries = 4;
        if (!state().offloads() || state().options().offload_force_evict || node().failures != 0) return std::nullopt;
        const uint64_t length = state().objects()[id].length;
        size_t tries = kTries;
        for (const SegmentNumber segment : some) {
            if (segments().is_disk(segment) || !segments().is_trusted(segment, now_)) continue;
            if (tries-- == 0) break;
            Evictor evictor(transaction_, now_, id);
            if (!evictor.make_room_on(segment, length, Sacrifice::kPlain)) continue;
            if (const auto offset = evictor.find_room(segment, state().rounded(length)))
                return TierCopyStarted{.source = source, .target = {.segment = segment, .offset = *offset}};
        }
        return std::nullopt;
    }
    bool over_quota(const Object& object) const {
        if (!state().options().tenants) return false;
        const Tenant& tenant = state().tenants()[object.tenant];
        return tenant.charged_bytes + state().rounded(object.length) > tenant.effective_quota;
    }

    Transaction& transaction_;
    const ClientNumber client_;
    const Time now_;
};

StoreCode end_copy(Transaction& transaction, const ClientId& client, const CopyEnd& end, Time now) {
    const MasterState& state = transaction.state();
    if (!is_tier_task(end.task)) return StoreCode::kInvalidParams;
    const std::vector<SegmentNumber> in_doubt = end.in_doubt == 0 ? std::vector<SegmentNumber>{} : std::vector{end.in_doubt};
    if (feared(state, client, end.task))
        transaction.apply(CopierStopped{.task = end.task, .client = client, .now = now, .in_doubt = in_doubt});
    const CopyId copy = state.find_tier_copy(end.task);
    if (copy == 0) return StoreCode::kTaskNotFound;
    if (state.clients()[state.copy(copy).client].id != client) return StoreCode::kIllegalClient;
    transaction.apply(CopyEnded{.copy = copy, .code = end.code, .message = {}, .quarantine_until = now, .now = now, .in_doubt = in_doubt});
    return StoreCode::kOk;
}

}  // namespace

CodesReply end_copies(Transaction& transaction, const CopiesEnd& request, Time now) {
    const MasterState& state = transaction.state();
    CodesReply reply;
    reply.codes.reserve(request.items.size());
    for (const CopyEnd& end : request.items) reply.codes.push_back(end_copy(transaction, request.client, end, now));
    const ClientNumber client = state.clients().find(request.client);
    const auto node = state.tiers().nodes.find(client);
    if (client != 0 && node != state.tiers().nodes.end() && request.window_bytes != 0 && request.window_bytes != node->second.window)
        transaction.apply(TierWindowSet{.client = client, .bytes = request.window_bytes});
    return reply;
}

StoreCode replicas_gone(Transaction& transaction, const ReplicasGone& request, Time now) {
    const MasterState& state = transaction.state();
    const SegmentNumber segment = state.segments().find(request.segment);
    if (segment == 0) return StoreCode::kSegmentNotFound;
    if (state.clients()[state.segments()[segment].client].id != request.client) return StoreCode::kIllegalClient;
    if (!state.segments().is_disk(segment)) return StoreCode::kInvalidParams;
    DiskReplicasGone change{.segment = segment, .now = now};
    for (const GoneReplica& gone : request.items) {
        const TenantNumber tenant = is_key(gone.key) ? state.tenant(gone.tenant) : 0;
        const ObjectId id = tenant == 0 ? 0 : state.objects().find(tenant, gone.key);
        const bool known = id != 0 && gone.generation != 0 && state.objects()[id].generation == gone.generation;
        if (known) change.objects.push_back(id);
        else if (state.segments()[segment].reporting) change.unknown.push_back(gone.generation);
    }
    if (!change.objects.empty() || !change.unknown.empty()) transaction.apply(std::move(change));
    return StoreCode::kOk;
}

size_t order_tier_copies(Transaction& transaction, ClientNumber client, Time now, size_t most) {
    if (!transaction.state().tiers().nodes.contains(client)) return 0;
    return TierOrders(transaction, client, now).run(most);
}

}  // namespace mooncake::store
