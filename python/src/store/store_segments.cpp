// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "distributed_store.h"

/// Segments, replicas and tasks.
namespace mooncake::python {

namespace {

constexpr int kInvalid = static_cast<int>(StoreCode::kInvalidParams);
constexpr uint64_t kSegmentUnit = uint64_t{16} << 20;  // what callers ask for in small amounts comes in these
constexpr uint64_t kSegmentMax = uint64_t{1} << 62;

constexpr int kFailed = -1;  // all that callers of these are told; the log says why

int zero_or_failed(StoreCode code) { return code == StoreCode::kOk ? 0 : kFailed; }

nb::dict mounted(const store::MountedSegments& segments, bool with_size) {
    nb::list ids;
    for (const store::SegmentId& id : segments.segments) ids.append(nb::str(id.to_string().c_str()));
    nb::dict answer;
    answer["ret"] = zero_or_failed(segments.code);
    answer["segment_ids"] = ids;
    if (with_size) answer["allocated_size"] = segments.bytes;
    return answer;
}

nb::dict not_mounted(bool with_size) { return mounted({.code = StoreCode::kInvalidParams, .segments = {}, .bytes = 0}, with_size); }

nb::list replica_list(const store::ValueInfo& value) {
    nb::list replicas;
    for (const store::ReplicaInfo& replica : value.replicas) replicas.append(nb::cast(Replica{replica}));
    return replicas;
}

}  // namespace

nb::dict DistributedStore::mount_file(const store::FileToMount& file) {
    const StoreRef client = use("mount_segment");
    if (!client) return not_mounted(false);
    return mounted(without_gil([&] { return client->mount_file(file); }), false);
}

nb::dict DistributedStore::mount_memory(nb::handle size, const std::string& protocol, const std::string& location) {
    const uint64_t bytes = number_from(size, "size");
    const StoreRef client = use("allocate_and_mount_segment");
    if (!client || bytes == 0 || bytes > kSegmentMax) return not_mounted(true);
    const uint64_t whole = (bytes + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit;
    return mounted(without_gil([&] { return client->mount_memory(whole, protocol, location); }), true);
}

int DistributedStore::unmount(nb::handle ids, nb::handle grace_s) {
    constexpr uint64_t kGraceMax_s = 365 * 24 * 3600;
    const std::optional<std::vector<store::SegmentId>> segments = segment_ids_from(ids);
    const uint64_t grace = number_from(grace_s, "grace_period_seconds");
    const StoreRef client = use("unmount_segment");
    if (!client || !segments) return kFailed;
    if (segments->empty()) return 0;
    const std::chrono::seconds wait(std::min(grace, kGraceMax_s));
    return zero_or_failed(without_gil([&] { return client->unmount(*segments, wait); }));
}

int DistributedStore::unmount_disk(uint64_t grace_s) {
    constexpr uint64_t kGraceMax_s = 365 * 24 * 3600;
    if (!is_set_up()) return kFailed;
    const StoreRef client = use("unmount_local_disk_segment");
    if (!client) return kFailed;
    const std::chrono::seconds wait(std::min(grace_s, kGraceMax_s));
    return zero_or_failed(without_gil([&] { return client->unmount_disk(wait); }));
}

uint64_t DistributedStore::far_disk_reads() {
    if (!is_set_up()) return 0;
    const StoreRef client = use("get_offload_rpc_read_count");
    return client ? client->far_disk_reads() : 0;
}

nb::list DistributedStore::get_replicas(nb::handle key) {
    const std::string_view name = key_from(key);
    const StoreRef client = use("get_replica_desc");
    if (!client) return nb::list();
    return replica_list(without_gil([&] { return std::move(client->locate(std::span(&name, 1)).front()); }));
}

nb::dict DistributedStore::batch_get_replicas(nb::handle keys) {
    const KeyList names(keys);
    const StoreRef client = use("batch_get_replica_desc");
    nb::dict all;
    if (!client) return all;
    const std::vector<store::ValueInfo> found = without_gil([&] { return client->locate(names.views()); });
    for (size_t i = 0; i < found.size(); ++i)
        if (found[i].code == StoreCode::kOk) all[names.object(i)] = replica_list(found[i]);
    return all;
}

nb::list DistributedStore::replica_clear(nb::handle keys, const std::string& segment_name) {
    const KeyList names(keys);
    const StoreRef client = use("batch_replica_clear");
    nb::list cleared;
    if (!client) return cleared;
    const std::vector<StoreCode> codes = without_gil([&] { return client->replica_clear(names.views(), segment_name); });
    for (size_t i = 0; i < codes.size(); ++i)
        if (codes[i] == StoreCode::kOk) cleared.append(names.object(i));
    return cleared;
}

nb::tuple DistributedStore::create_task(store::TaskType type, nb::handle key, const std::string& source, std::vector<std::string> targets) {
    const std::string_view name = key_from(key);
    const StoreRef client = use(type == store::TaskType::kCopy ? "create_copy_task" : "create_move_task");
    if (!client) return nb::make_tuple(nb::make_tuple(0, 0), kInvalid);
    const store::TaskRequest request{
        .type = type, .tenant = client->config().tenant, .key = name, .source = source, .targets = std::move(targets)};
    const store::TaskReply reply = without_gil([&] { return client->create_task(request); });
    if (reply.code != StoreCode::kOk) return nb::make_tuple(nb::make_tuple(0, 0), static_cast<int>(reply.code));
    return nb::make_tuple(nb::make_tuple(reply.task.high, reply.task.low), 0);
}

nb::tuple DistributedStore::query_task(nb::handle id) {
    const std::vector<uint64_t> halves = NumberList(id, "task_id").values();
    if (halves.size() != 2) throw nb::type_error("task_id: a tuple of two integers is expected");
    const StoreRef client = use("query_task");
    if (!client) return nb::make_tuple(nb::none(), kInvalid);
    auto task = without_gil([&] { return client->query_task({halves[0], halves[1]}); });
    if (!task) return nb::make_tuple(nb::none(), static_cast<int>(task.error()));
    return nb::make_tuple(nb::cast(std::move(*task)), 0);
}

}  // namespace mooncake::python
