// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/object_ops.h"
#include "store/master/ops/writes.h"

namespace mooncake::store {

namespace {

/// Who reads or probes one of a group counts on all of it.
bool held(const MasterState& state, ObjectId id, Time now) { return state.lease_end(id, now) > now || state.soft_lease_end(id, now) > now; }

/// Whether one of the replicas that are left without these can be counted on.
bool trusted_elsewhere(const MasterState& state, const Object& object, std::span<const SegmentNumber> cleared, Time now) {
    for (size_t i = 0; i < object.replicas.size(); ++i) {
        const SegmentNumber segment = object.replicas[i].segment;
        const bool stays = std::find(cleared.begin(), cleared.end(), segment) == cleared.end();
        if (stays && state.segments().is_trusted(segment, now)) return true;
    }
    return false;
}

/// Whether the object may be removed now. A write that nobody waits for any more is dropped on the way; that can end the object.
StoreCode check_removable(Transaction& transaction, ObjectId id, bool force, Time now) {
    const MasterState& state = transaction.state();
    if (const WriteId write = state.objects()[id].write; write != 0) {
        if (!preemptible(state, state.write(write), now)) return StoreCode::kReplicaIsNotReady;
        const bool had_value = state.objects()[id].has_value();
        preempt(transaction, write, now);
        if (!had_value) return StoreCode::kObjectNotFound;
    }
    const Object& object = state.objects()[id];
    if (state.has_task(object)) return StoreCode::kObjectHasReplicationTask;
    if (!force && held(state, id, now)) return StoreCode::kObjectHasLease;
    return StoreCode::kOk;
}

}  // namespace

CodesReply remove(Transaction& transaction, const RemoveRequest& request, Time now) {
    const MasterState& state = transaction.state();
    CodesReply reply;
    reply.codes.reserve(request.keys.size());
    const TenantNumber tenant = state.tenant(request.tenant);
    for (const std::string_view key : request.keys) {
        if (too_long(key)) {
            reply.codes.push_back(StoreCode::kInvalidParams);
            continue;
        }
        const ObjectId id = tenant == 0 || key.empty() ? 0 : state.objects().find(tenant, key);
        StoreCode code = StoreCode::kObjectNotFound;
        if (id != 0) code = check_removable(transaction, id, request.force, now);
        if (code == StoreCode::kOk) transaction.apply(ObjectsRemoved{.objects = {id}, .cause = RemovalCause::kAsked, .now = now});
        if (code == StoreCode::kObjectNotFound && !key.empty())
            transaction.apply(TombstoneLeft{.tenant = std::string(state.tenant_name(request.tenant)), .key = std::string(key)});
        reply.codes.push_back(code);
    }
    return reply;
}

CodesReply replica_clear(Transaction& transaction, const ReplicaClearRequest& request, Time now) {
    const MasterState& state = transaction.state();
    const TenantNumber tenant = state.tenant(request.tenant);
    const ClientNumber client = state.clients().find(request.client);
    const auto clear = [&](std::string_view key) {
        if (too_long(key)) return StoreCode::kInvalidParams;
        const ObjectId id = tenant == 0 || key.empty() ? 0 : state.objects().find(tenant, key);
        if (id == 0) return StoreCode::kObjectNotFound;
        const Object& object = state.objects()[id];
        if (!object.has_value() || object.write != 0) return StoreCode::kReplicaIsNotReady;
        if (client == 0 || object.writer != client) return StoreCode::kIllegalClient;
        if (state.has_task(object)) return StoreCode::kObjectHasReplicationTask;
        if (held(state, id, now)) return StoreCode::kObjectHasLease;
        std::vector<SegmentNumber> cleared;
        for (size_t i = 0; i < object.replicas.size(); ++i) {
            const SegmentNumber segment = object.replicas[i].segment;
            if (request.segment_name.empty() || state.segments()[segment].spec.name == request.segment_name) cleared.push_back(segment);
        }
        if (cleared.empty()) return StoreCode::kReplicaNotFound;
        const bool all = cleared.size() == object.replicas.size();
        if (!all && !trusted_elsewhere(state, object, cleared, now)) return StoreCode::kReplicaIsNotReady;
        if (all) {
            transaction.apply(ObjectsRemoved{.objects = {id}, .cause = RemovalCause::kAsked, .now = now});
        } else {
            for (const SegmentNumber segment : cleared) transaction.apply(ReplicaRemoved{.object = id, .segment = segment, .now = now});
        }
        return StoreCode::kOk;
    };
    CodesReply reply;
    reply.codes.reserve(request.keys.size());
    for (const std::string_view key : request.keys) reply.codes.push_back(clear(key));
    return reply;
}

}  // namespace mooncake::store
