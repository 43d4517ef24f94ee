// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/client/asked_keys.h"
#include "store/client/pool_client.h"
#include "store/client/pool_sessions.h"
#include "store/client/reader.h"
#include "store/client/writer.h"
#include "store/protocol/messages_objects.h"

/// The calls of PoolClient about values: each checks that the client is open and hands over.
namespace mooncake::store {

namespace {

constexpr auto kClosed = StoreCode::kUnavailableInCurrentStatus;
constexpr auto kClosedNumber = static_cast<int64_t>(kClosed);

/// The codes of an answer, or the same code for all when there is none.
std::vector<StoreCode> codes_of(const ClientCore& core, Result<CodesReply> reply, size_t count) {
    if (reply && reply->codes.size() == count) return std::move(reply->codes);
    return std::vector<StoreCode>(count, reply ? StoreCode::kRpcFail : core.pool.code_of(reply.error()));
}

}  // namespace

std::vector<StoreCode> PoolClient::write(std::span<const ValueToWrite> values, const WriteConfig& config, bool replace) {
    const auto pass = enter();
    if (!pass) return std::vector<StoreCode>(values.size(), kClosed);
    return values.empty() ? std::vector<StoreCode>() : write_values(*core_, values, config, replace);
}

std::vector<int64_t> PoolClient::read(std::span<const ValueToRead> values) {
    const auto pass = enter();
    if (!pass) return std::vector<int64_t>(values.size(), kClosedNumber);
    return values.empty() ? std::vector<int64_t>() : read_values(*core_, values);
}

std::vector<int64_t> PoolClient::read_parts(std::span<const PartToRead> parts) {
    const auto pass = enter();
    if (!pass) return std::vector<int64_t>(parts.size(), kClosedNumber);
    return parts.empty() ? std::vector<int64_t>() : read_value_parts(*core_, parts);
}

std::vector<ValueInfo> PoolClient::find(std::span<const std::string_view> keys) {
    std::vector<ValueInfo> infos(keys.size());
    const auto pass = enter();
    if (!pass) {
        for (ValueInfo& info : infos) info.code = kClosed;
        return infos;
    }
    if (keys.empty()) return infos;
    std::vector<Place> places(keys.size());
    std::vector<StoreCode> codes(keys.size(), StoreCode::kOk);
    find_places(*core_, keys, places, codes, Clock::now());
    SegmentLookup segments(pool_);
    for (size_t i = 0; i < keys.size(); ++i) {
        infos[i].code = codes[i];
        if (codes[i] != StoreCode::kOk) continue;
        infos[i].length = places[i].length;
        for (const ReplicaLocation& replica : places[i].all_replicas()) {
            const SegmentLookup::Found& found = segments.find(places[i].epoch, replica.segment);
            if (!found.segment) continue;
            const SegmentSpec& spec = found.segment->spec;
            infos[i].replicas.push_back({.segment_name = spec.name,
                                         .endpoint = spec.endpoint,
                                         .protocol = spec.protocol,
                                         .address = spec.kind == SegmentKind::kDisk ? 0 : spec.base + replica.offset,
                                         .length = places[i].length,
                                         .on_disk = spec.kind == SegmentKind::kDisk});
        }
        if (infos[i].replicas.empty()) infos[i].code = StoreCode::kObjectNotFound;
    }
    return infos;
}

std::vector<ValueInfo> PoolClient::locate(std::span<const std::string_view> keys) {
    if (const auto pass = enter()) core_->leases.forget(keys);
    return find(keys);
}

std::vector<int32_t> PoolClient::ask_existing(std::span<const std::string_view> batch) {
    ClientCore& core = *core_;
    const AskedKeys asked_keys(batch);
    const std::span<const std::string_view> keys = asked_keys.keys();
    constexpr auto kRefused = static_cast<int32_t>(StoreCode::kInvalidParams);
    if (keys.empty()) return std::vector<int32_t>(batch.size(), kRefused);
    const LeaseCache::Ticket ticket = core.leases.ticket();
    const Time asked = Clock::now();
    std::vector<uint32_t> unreachable;
    if (!core.pool.directory.all_reachable()) unreachable = core.pool.directory.unreachable(asked);
    const KeysRequest request{.tenant = core.config.tenant, .keys = keys, .unreachable = unreachable};
    auto reply = core.pool.ask_twice(MasterCall::kExist, [&] { return core.pool.master->exist(request, core.pool.rpc_deadline()); });
    if (!reply || reply->results.size() != keys.size()) {
        const auto why = static_cast<int32_t>(reply ? StoreCode::kRpcFail : core.pool.code_of(reply.error()));
        return asked_keys.spread(std::vector<int32_t>(keys.size(), why), kRefused);
    }
    core.leases.remember_existing(keys, reply->results, asked + reply->soft_lease, ticket);
    return asked_keys.spread(std::move(reply->results), kRefused);
}

std::vector<int32_t> PoolClient::exist(std::span<const std::string_view> keys) {
    const auto pass = enter();
    if (!pass) return std::vector<int32_t>(keys.size(), static_cast<int32_t>(kClosed));
    std::vector<int32_t> results(keys.size(), 0);
    if (keys.empty()) return results;
    const size_t known = core_->leases.find_existing(keys, Clock::now(), results);
    core_->metrics.lease_hits.add(known);
    if (known == keys.size()) return results;
    core_->metrics.lease_misses.add(keys.size() - known);
    if (known == 0) return ask_existing(keys);
    std::vector<std::string_view> wanted;
    for (size_t i = 0; i < keys.size(); ++i)
        if (results[i] != 1) wanted.push_back(keys[i]);
    const std::vector<int32_t> said = ask_existing(wanted);
    for (size_t i = 0, next = 0; i < keys.size(); ++i)
        if (results[i] != 1) results[i] = said[next++];
    return results;
}

std::vector<StoreCode> PoolClient::remove(std::span<const std::string_view> keys, bool force) {
    const auto pass = enter();
    if (!pass) return std::vector<StoreCode>(keys.size(), kClosed);
    if (keys.empty()) return {};
    const AskedKeys asked(keys);
    if (asked.keys().empty()) return std::vector<StoreCode>(keys.size(), StoreCode::kInvalidParams);
    const RemoveRequest request{.tenant = core_->config.tenant, .keys = asked.keys(), .force = force};
    auto reply = pool_.ask(MasterCall::kRemove, [&] { return pool_.master->remove(request, pool_.rpc_deadline()); });
    core_->leases.forget(asked.keys());
    return asked.spread(codes_of(*core_, std::move(reply), asked.keys().size()), StoreCode::kInvalidParams);
}

int64_t PoolClient::remove_matching(std::string_view pattern, bool force) {
    const auto pass = enter();
    if (!pass) return kClosedNumber;
    const auto reply = pool_.ask(MasterCall::kRemoveMatching,
                                 [&] { return pool_.master->remove_matching(core_->config.tenant, pattern, force, pool_.rpc_deadline()); });
    core_->leases.forget_all();
    return reply ? *reply : static_cast<int64_t>(pool_.code_of(reply.error()));
}

int64_t PoolClient::remove_by_regex(std::string_view pattern, bool force) {
    // To the master an empty pattern means everything; to a caller who asks for a match it is a mistake.
    return pattern.empty() || pattern.size() > kPatternBytesMax ? static_cast<int64_t>(StoreCode::kInvalidParams)
                                                                : remove_matching(pattern, force);
}

int64_t PoolClient::remove_all(bool force) { return remove_matching("", force); }

std::vector<StoreCode> PoolClient::replica_clear(std::span<const std::string_view> keys, std::string_view segment_name) {
    const auto pass = enter();
    if (!pass) return std::vector<StoreCode>(keys.size(), kClosed);
    if (keys.empty()) return {};
    const AskedKeys asked(keys);
    if (asked.keys().empty()) return std::vector<StoreCode>(keys.size(), StoreCode::kInvalidParams);
    const ReplicaClearRequest request{
        .client = pool_.id, .tenant = core_->config.tenant, .keys = asked.keys(), .segment_name = segment_name};
    auto reply = pool_.ask(MasterCall::kReplicaClear, [&] { return pool_.master->replica_clear(request, pool_.rpc_deadline()); });
    core_->leases.forget(asked.keys());
    return asked.spread(codes_of(*core_, std::move(reply), asked.keys().size()), StoreCode::kInvalidParams);
}

// ---- in parts

std::vector<StoreCode> PoolClient::Sessions::open_reads(std::span<const std::string_view> keys) {
    const auto pass = client_.enter();
    return pass ? reads_.open(keys) : std::vector<StoreCode>(keys.size(), kClosed);
}

std::vector<int64_t> PoolClient::Sessions::read_open(std::span<const PartToRead> parts) {
    const auto pass = client_.enter();
    return pass ? reads_.read(parts) : std::vector<int64_t>(parts.size(), kClosedNumber);
}

bool PoolClient::Sessions::close_reads(std::span<const std::string_view> keys) {
    const auto pass = client_.enter();
    return pass && reads_.close(keys);
}

std::vector<StoreCode> PoolClient::Sessions::open_writes(std::span<const Reservation> values, const WriteConfig& config) {
    const auto pass = client_.enter();
    return pass ? writes_.open(values, config) : std::vector<StoreCode>(values.size(), kClosed);
}

std::vector<int64_t> PoolClient::Sessions::write_open(std::span<const PartToWrite> parts) {
    const auto pass = client_.enter();
    return pass ? writes_.write(parts) : std::vector<int64_t>(parts.size(), kClosedNumber);
}

std::vector<StoreCode> PoolClient::Sessions::close_writes(std::span<const std::string_view> keys, bool revoke) {
    const auto pass = client_.enter();
    return pass ? writes_.close(keys, revoke) : std::vector<StoreCode>(keys.size(), kClosed);
}

PartSessions& PoolClient::sessions() { return *sessions_; }

std::unique_ptr<PartSessions> PoolClient::other_sessions() { return std::make_unique<Sessions>(*this); }

// ---- tasks

TaskReply PoolClient::create_task(const TaskRequest& request) {
    const auto pass = enter();
    if (!pass) return {.code = kClosed};
    if (too_long(request.key)) return {.code = StoreCode::kInvalidParams};
    TaskRequest full = request;
    if (full.tenant.empty()) full.tenant = core_->config.tenant;
    const auto reply = pool_.ask(MasterCall::kCreateTask, [&] { return pool_.master->create_task(full, pool_.rpc_deadline()); });
    return reply ? *reply : TaskReply{.code = pool_.code_of(reply.error())};
}

tl::expected<TaskInfo, StoreCode> PoolClient::query_task(const TaskId& task) {
    const auto pass = enter();
    if (!pass) return tl::unexpected(kClosed);
    auto reply = pool_.ask(MasterCall::kQueryTask, [&] { return pool_.master->query_task(task, pool_.rpc_deadline()); });
    if (reply) return std::move(*reply);
    return tl::unexpected(reply.error().code() == Code::kNotFound ? StoreCode::kTaskNotFound : pool_.code_of(reply.error()));
}

}  // namespace mooncake::store
