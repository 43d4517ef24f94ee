// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/object_ops.h"
#include "store/master/ops/reachable.h"

namespace mooncake::store {

namespace {

/// Memory comes before disks, and what answers before what does not; a disk that does not is named only where there is nothing else. Those the caller cannot
/// reach are left out.
void list_replicas(const MasterState& state, const Object& object, std::span<const uint32_t> unreachable, Time now,
                   std::vector<ReplicaLocation>& to) {
    const ReplicaList& replicas = object.replicas;
    if (replicas.size() == 1) {  // it is reachable, or nobody would ask for the list
        to.push_back({replicas[0].segment, replicas[0].offset});
        return;
    }
    const size_t before = to.size();
    for (const bool disk : {false, true}) {
        if (disk && !object.on_disk) return;
        for (const bool answering : {true, false})
            for (size_t i = 0; i < replicas.size(); ++i) {
                const SegmentNumber segment = replicas[i].segment;
                if (object.on_disk && state.segments().is_disk(segment) != disk) continue;
                if (disk && !answering && to.size() != before) continue;
                if (state.segments().answers(segment, now) == answering && !contains(unreachable, segment))
                    to.push_back({segment, replicas[i].offset});
            }
    }
}

}  // namespace

GetReply get_replicas(Transaction& transaction, const KeysRequest& request, Time now) {
    const MasterState& state = transaction.state();
    GetReply reply;
    reply.items.resize(request.keys.size());
    reply.replicas.reserve(request.keys.size());
    reply.lease = state.lease_time(now);
    std::vector<ObjectId> found(request.keys.size());
    if (const TenantNumber tenant = state.tenant(request.tenant); tenant != 0) state.objects().find_many(tenant, request.keys, found);
    LeasesGranted granted{.until = now + reply.lease, .soft_leased = now + state.soft_lease_time(now)};
    granted.objects.reserve(found.size());
    Reach reachable(state, request.unreachable);
    for (size_t i = 0; i < found.size(); ++i) {
        GetItem& item = reply.items[i];
        if (found[i] == 0) {
            item.code = too_long(request.keys[i]) ? StoreCode::kInvalidParams : StoreCode::kObjectNotFound;
            continue;
        }
        const Object& object = state.objects()[found[i]];
        if (!state.readable(object)) {
            item.code = StoreCode::kReplicaIsNotReady;
            continue;
        }
        if (!reachable(found[i])) {
            item.code = StoreCode::kObjectNotFound;
            continue;
        }
        item.length = object.length;
        item.checksum = object.checksum;
        item.generation = object.generation;
        item.data_type = object.data_type;
        item.first_replica = static_cast<uint32_t>(reply.replicas.size());
        list_replicas(state, object, request.unreachable, now, reply.replicas);
        item.replica_count = static_cast<uint32_t>(reply.replicas.size()) - item.first_replica;
        granted.objects.push_back(found[i]);
    }
    if (!granted.objects.empty()) transaction.apply(std::move(granted));
    return reply;
}

}  // namespace mooncake::store
