// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/put_start.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "store/master/ops/object_ops.h"
#include "store/master/ops/reachable.h"
#include "store/master/ops/writes.h"
#include "store/master/walk_counter.h"

namespace mooncake::store {

namespace {

StoreCode check_config(const MasterOptions& options, const WriteConfig& config) {
    if (config.replica_num == 0 || config.replica_num > kReplicasMax) return StoreCode::kInvalidParams;
    if (!config.soft_pin_ttl) return StoreCode::kOk;
    const bool sensible = config.soft_pin == SoftPinAction::kEnable && *config.soft_pin_ttl >= Duration::zero() &&
                          *config.soft_pin_ttl <= options.soft_pin_ttl_max;
    return sensible ? StoreCode::kOk : StoreCode::kInvalidParams;
}

}  // namespace

/// One part of it, under one hold of the lock.
class PutStarter::Part {
public:
    Part(PutStarter& whole, Transaction& transaction, Time now)
        : whole_(whole), transaction_(transaction), request_(whole.request_), now_(now), upsert_(whole.upsert_), reply_(whole.reply_),
          placer_(transaction, request_.config, request_.unreachable, now) {}

    bool run(size_t steps) {
        const StoreCode refused = admit();
        reply_.release = state().options().put_release_timeout;
        for (; steps != 0; --steps) {
            if (whole_.undoing_ != nullptr) {
                undo_one();
                continue;
            }
            if (whole_.next_ == request_.items.size()) break;
            start_next(refused);
        }
        return whole_.next_ == request_.items.size() && whole_.undoing_ == nullptr;
    }

private:
    static constexpr size_t kReplicasInAnswer = 8 << 20;  // 128 MiB; clients take no more

    void start_next(StoreCode refused) {
        const size_t i = whole_.next_++;
        if (refused == StoreCode::kOk && i - prefetched_from_ >= kPrefetch) prefetch(i);
        placer_.expect(of_same_length(i));
        const std::string_view group_name = request_.items[i].group;
        Group* const group = group_name.empty() ? nullptr : &whole_.groups_[group_name];
        PutStartItem& item = reply_.items[i];
        item.code = refused != StoreCode::kOk ? refused : group != nullptr ? group->refused : StoreCode::kOk;
        if (item.code == StoreCode::kOk) item.code = start(i, group);
        if (item.code == StoreCode::kNoAvailableHandle && reply_.retry_after == Duration::zero()) {
            reply_.retry_after = placer_.retry_after(request_.items[i].length);
            reply_.disk_wait = placer_.disk_wait(request_.items[i].length);
        }
        if (group == nullptr || !failed(item.code)) return;
        if (group->refused == StoreCode::kOk) group->refused = item.code;
        if (group->last_started != kNone) whole_.undoing_ = group;
    }

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

    void prefetch(size_t from) {
        prefetched_from_ = from;
        std::array<std::string_view, kPrefetch> keys;
        const size_t count = std::min(kPrefetch, request_.items.size() - from);
        for (size_t i = 0; i < count; ++i) keys[i] = request_.items[from + i].key;
        hashes_ = state().objects().prefetch_many(tenant_, std::span(keys).first(count));
    }

    /// How many of one length come one after the other from here on.
    size_t of_same_length(size_t i) {
        size_t& end = whole_.run_end_;
        if (i >= end)
            for (end = i + 1; end < request_.items.size() && request_.items[end].length == request_.items[i].length;) ++end;
        return end - i;
    }

    StoreCode start(size_t i, Group* group) {
        const PutItem& item = request_.items[i];
        if (!is_key(item.key) || item.group.size() > kGroupBytesMax || item.length == 0) return StoreCode::kInvalidParams;
        const uint64_t hash = hashes_[i - prefetched_from_];
        ObjectId id = state().objects().find(tenant_, item.key, hash);
        regroups_ = false;
        if (id != 0) {
            if (repeated(i, id)) {
                note_started(i, group);
                return StoreCode::kOk;
            }
            if (const StoreCode code = make_way(id, item); code != StoreCode::kOk) return code;
            id = state().objects().find(tenant_, item.key, hash);  // that may have ended it
        }
        Placer::Placed placed = placer_.place({.tenant = tenant_, .key_hash = hash, .length = item.length, .keep = id});
        if (placed.code != StoreCode::kOk) return placed.code;
        PutStartItem& answer = reply_.items[i];
        answer.generation = state().next_generation();
        answer.first_replica = static_cast<uint32_t>(reply_.replicas.size());
        answer.replica_count = static_cast<uint32_t>(placed.replicas.size());
        reply_.replicas.insert(reply_.replicas.end(), placed.replicas.begin(), placed.replicas.end());
        const WriteConfig& config = request_.config;
        transaction_.apply(WriteStarted{.object = id,
                                        .regroups = id != 0 && regroups_,
                                        .tenant = tenant_,
                                        .key = id == 0 ? Text(item.key) : Text(),
                                        .group = id == 0 || regroups_ ? Text(item.group) : Text(),
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
        note_started(i, group);
        return StoreCode::kOk;
    }

    void note_started(size_t i, Group* group) {
        if (group == nullptr) return;
        if (whole_.started_before_.empty()) whole_.started_before_.resize(request_.items.size(), kNone);
        whole_.started_before_[i] = std::exchange(group->last_started, static_cast<uint32_t>(i));
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
        if (!upsert_ && object.has_value() && readable(id)) return StoreCode::kObjectAlreadyExists;
        if (state().has_task(object)) return upsert_ ? StoreCode::kObjectHasReplicationTask : StoreCode::kReplicaIsNotReady;
        const bool same_group = item.group == (object.group == 0 ? std::string_view() : state().groups()[object.group].name);
        if (upsert_ && !item.group.empty() && !same_group) return StoreCode::kInvalidParams;
        if (object.write != 0) {
            if (!upsert_ && !preemptible(state(), state().write(object.write), now_)) return StoreCode::kReplicaIsNotReady;
            const bool had_value = object.has_value();
            preempt(transaction_, object.write, now_);
            if (!had_value) return StoreCode::kOk;
        }
        // Among others it would be as lost as they are. Until the new value is there the old one stays, where it is.
        regroups_ = !upsert_ && !same_group;
        return StoreCode::kOk;
    }

    /// Whether the writer may be told that the value is there. In doubt it is not: to write it once more costs less than to be without.
    bool readable(ObjectId id) {
        if (!reach_) reach_.emplace(state(), request_.unreachable, client_, now_);
        return (*reach_)(id);
    }

    /// The last item that was started of a group that cannot be started as a whole.
    void undo_one() {
        Group& group = *whole_.undoing_;
        const uint32_t i = group.last_started;
        group.last_started = whole_.started_before_[i];
        if (group.last_started == kNone) whole_.undoing_ = nullptr;
        ++steps_walked();
        const ObjectId id = tenant_ == 0 ? 0 : state().objects().find(tenant_, request_.items[i].key);
        const WriteId write = id == 0 ? 0 : state().objects()[id].write;
        // Since an earlier part somebody may have ended it, or taken its place.
        if (write != 0 && state().write(write).generation == reply_.items[i].generation)
            transaction_.apply(WriteDropped{.write = write, .quarantine_until = now_, .now = now_});
        reply_.items[i] = {.code = group.refused};
    }

    PutStarter& whole_;
    Transaction& transaction_;
    const PutStartRequest& request_;
    const Time now_;
    const bool upsert_;
    PutStartReply& reply_;
    Placer placer_;
    TenantNumber tenant_ = 0;
    ClientNumber client_ = 0;
    std::optional<Reach> reach_;
    size_t prefetched_from_ = SIZE_MAX - kPrefetch;  // the item whose hash is the first of these
    ObjectTable::Hashes hashes_;
    bool regroups_ = false;  // what is started just now, if its key has a value
};

PutStarter::PutStarter(const PutStartRequest& request, bool upsert) : request_(request), upsert_(upsert) {
    reply_.items.resize(request.items.size());
    reply_.replicas.reserve(request.items.size());
}

bool PutStarter::run(Transaction& transaction, Time now, size_t steps) {
    transaction.advance(now);
    return Part(*this, transaction, now).run(steps);
}

PutStartReply put_start(Transaction& transaction, const PutStartRequest& request, Time now) {
    PutStarter starter(request, false);
    while (!starter.run(transaction, now, SIZE_MAX)) {}
    return starter.take_reply();
}

PutStartReply upsert_start(Transaction& transaction, const PutStartRequest& request, Time now) {
    PutStarter starter(request, true);
    while (!starter.run(transaction, now, SIZE_MAX)) {}
    return starter.take_reply();
}

}  // namespace mooncake::store
