// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <vector>

#include "store/master/ops/object_ops.h"
#include "store/master/ops/placer.h"
#include "store/master/ops/writes.h"

namespace mooncake::store {

namespace {

StoreCode check_config(const MasterOptions& options, const WriteConfig& config) {
    if (config.replica_num == 0 || config.replica_num > kReplicasMax) return StoreCode::kInvalidParams;
    if (!config.soft_pin_ttl) return StoreCode::kOk;
    const bool sensible = config.soft_pin == SoftPinAction::kEnable && *config.soft_pin_ttl >= Duration::zero() &&
                          *config.soft_pin_ttl <= options.soft_pin_ttl_max;
    return sensible ? StoreCode::kOk : StoreCode::kInvalidParams;
}

/// One put_start or upsert_start from its first item to its last.
class Starter {
public:
    Starter(Transaction& transaction, const PutStartRequest& request, Time now, bool upsert)
        : transaction_(transaction), request_(request), now_(now), upsert_(upsert),
          placer_(transaction, request.config, request.unreachable, now) {}

    PutStartReply run() {
        reply_.items.resize(request_.items.size());
        reply_.replicas.reserve(request_.items.size());
        StoreCode refused = admit();
        for (size_t i = 0; i < request_.items.size(); ++i) {
            if (refused == StoreCode::kOk && i % kPrefetch == 0) prefetch(i);
            placer_.expect(of_same_length(i));
            PutStartItem& item = reply_.items[i];
            item.code = refused != StoreCode::kOk ? refused : group_refused(i);
            if (item.code == StoreCode::kOk) item.code = start(i);
            if (item.code == StoreCode::kNoAvailableHandle && reply_.retry_after == Duration::zero())
                reply_.retry_after = placer_.retry_after(request_.items[i].length);
            if (failed(item.code) && !request_.items[i].group.empty()) undo_group(i);
        }
        return std::move(reply_);
    }

private:
    static constexpr size_t kPrefetch = 32;
    static constexpr size_t kReplicasInAnswer = 8 << 20;  // 128 MiB; clients take no more

    const MasterState& state() const { return transaction_.state(); }
    /// Not as wanted: neither started nor there, nor on its way by another.
    static bool failed(StoreCode code) {
        return code != StoreCode::kOk && code != StoreCode::kObjectAlreadyExists && code != StoreCode::kReplicaIsNotReady;
    }

    /// What concerns the request as a whole.
    StoreCode admit() {
        if (!request_.client) return StoreCode::kInvalidParams;
        if (const StoreCode code = check_config(state().options(), request_.config); code != StoreCode::kOk) return code;
        if (request_.items.size() * placer_.replicas_max() > kReplicasInAnswer) return StoreCode::kInvalidParams;
        tenant_ = state().tenant(request_.tenant);
        if (tenant_ == 0 || (state().options().tenants && !state().tenants()[tenant_].requested_quota))
            return StoreCode::kTenantNotRegistered;
        ClientNumber client = state().clients().find(request_.client);
        if (!state().clients().alive(client)) {
            transaction_.apply(ClientSeen{.client = request_.client, .expires = now_ + state().options().client_ttl});
            client = state().clients().find(request_.client);
        }
        client_ = client;
        return state().clients()[client].closed(request_.request_id) ? StoreCode::kInvalidWrite : StoreCode::kOk;
    }

    void prefetch(size_t from) const {
        std::array<std::string_view, kPrefetch> keys;
        const size_t count = std::min(kPrefetch, request_.items.size() - from);
        for (size_t i = 0; i < count; ++i) keys[i] = request_.items[from + i].key;
        state().objects().prefetch_many(tenant_, std::span(keys).first(count));
    }

    /// How many of one length come one after the other from here on.
    size_t of_same_length(size_t i) {
        if (i >= run_end_)
            for (run_end_ = i + 1; run_end_ < request_.items.size() && request_.items[run_end_].length == request_.items[i].length;)
                ++run_end_;
        return run_end_ - i;
    }

    StoreCode start(size_t i) {
        const PutItem& item = request_.items[i];
        if (item.key.empty() || item.length == 0) return StoreCode::kInvalidParams;
        ObjectId id = state().objects().find(tenant_, item.key);
        if (id != 0) {
            if (repeated(i, id)) return StoreCode::kOk;
            if (const StoreCode code = make_way(id, item); code != StoreCode::kOk) return code;
            id = state().objects().find(tenant_, item.key);  // pre-empting may have ended it
        }
        Placer::Placed placed = placer_.place(
            {.tenant = tenant_, .key_hash = state().objects().hash(tenant_, item.key), .length = item.length, .keep = id});
        if (placed.code != StoreCode::kOk) return placed.code;
        PutStartItem& answer = reply_.items[i];
        answer.generation = state().next_generation();
        answer.first_replica = static_cast<uint32_t>(reply_.replicas.size());
        answer.replica_count = static_cast<uint32_t>(placed.replicas.size());
        reply_.replicas.insert(reply_.replicas.end(), placed.replicas.begin(), placed.replicas.end());
        const WriteConfig& config = request_.config;
        transaction_.apply(WriteStarted{.object = id,
                                        .tenant = tenant_,
                                        .key = id == 0 ? Text(item.key) : Text(),
                                        .group = id == 0 ? Text(item.group) : Text(),
                                        .client = request_.client,
                                        .request_id = request_.request_id,
                                        .generation = answer.generation,
                                        .length = item.length,
                                        .replicas = std::move(placed.replicas),
                                        .soft_pin_ttl = config.soft_pin_ttl.value_or(state().options().soft_pin_ttl),
                                        .soft_pin = config.soft_pin,
                                        .data_type = config.data_type,
                                        .hard_pin = config.hard_pin,
                                        .now = now_});
        if (!item.group.empty()) started_.push_back(i);
        return StoreCode::kOk;
    }

    /// The same request once more: the same answer.
    bool repeated(size_t i, ObjectId id) {
        const WriteId write_id = state().objects()[id].write;
        if (write_id == 0 || request_.request_id == 0) return false;
        const Write& write = state().write(write_id);
        if (write.client != client_ || write.request_id != request_.request_id || write.length != request_.items[i].length) return false;
        PutStartItem& answer = reply_.items[i];
        answer.generation = write.generation;
        answer.first_replica = static_cast<uint32_t>(reply_.replicas.size());
        answer.replica_count = static_cast<uint32_t>(write.replicas.size());
        for (size_t r = 0; r < write.replicas.size(); ++r) reply_.replicas.push_back({write.replicas[r].segment, write.replicas[r].offset});
        return true;
    }

    /// The key is taken: by a value, by an unfinished write, or both.
    StoreCode make_way(ObjectId id, const PutItem& item) {
        const Object& object = state().objects()[id];
        if (!upsert_ && object.has_value()) return StoreCode::kObjectAlreadyExists;
        if (object.copy != 0) return StoreCode::kObjectHasReplicationTask;
        if (upsert_ && !item.group.empty() && (object.group == 0 || state().groups()[object.group].name != item.group))
            return StoreCode::kInvalidParams;
        if (object.write == 0) return StoreCode::kOk;
        if (!upsert_ && !preemptible(state(), state().write(object.write), now_)) return StoreCode::kReplicaIsNotReady;
        preempt(transaction_, object.write, now_);
        return StoreCode::kOk;
    }

    StoreCode group_refused(size_t i) const {
        if (request_.items[i].group.empty()) return StoreCode::kOk;
        for (const auto& [group, code] : refused_groups_)
            if (group == request_.items[i].group) return code;
        return StoreCode::kOk;
    }

    /// Item i could not be started: neither are the others of its group. Nobody knows of their ranges yet.
    void undo_group(size_t i) {
        const std::string_view group = request_.items[i].group;
        if (group_refused(i) == StoreCode::kOk) refused_groups_.emplace_back(group, reply_.items[i].code);
        std::erase_if(started_, [&](size_t other) {
            if (request_.items[other].group != group) return false;
            const ObjectId id = state().objects().find(tenant_, request_.items[other].key);
            transaction_.apply(WriteDropped{.write = state().objects()[id].write, .rest_until = now_, .now = now_});
            reply_.items[other] = {.code = reply_.items[i].code};
            return true;
        });
    }

    Transaction& transaction_;
    const PutStartRequest& request_;
    const Time now_;
    const bool upsert_;
    Placer placer_;
    TenantNumber tenant_ = 0;
    ClientNumber client_ = 0;
    size_t run_end_ = 0;
    PutStartReply reply_;
    std::vector<size_t> started_;  // items with a group
    std::vector<std::pair<std::string_view, StoreCode>> refused_groups_;
};

}  // namespace

PutStartReply put_start(Transaction& transaction, const PutStartRequest& request, Time now) {
    transaction.advance(now);
    return Starter(transaction, request, now, false).run();
}

PutStartReply upsert_start(Transaction& transaction, const PutStartRequest& request, Time now) {
    transaction.advance(now);
    return Starter(transaction, request, now, true).run();
}

}  // namespace mooncake::store
