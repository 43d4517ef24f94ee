// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "store_bindings.h"
#include "transfer_engine.h"

namespace mooncake::python {

using nb::literals::operator""_a;
using Config = const ReplicateConfig*;

void bind_store_life(StoreClass& store) {
    store.def(nb::init<>())
        .def(
            "_setup",
            [](DistributedStore& self, std::string local_hostname, std::string metadata_server, uint64_t segment_bytes,
               uint64_t buffer_bytes, std::string protocol, std::vector<std::string> devices, std::string master, std::string tenant,
               bool http_server, uint16_t http_port, bool disk, std::string disk_path, std::string warm_dir, const std::string& warm_stop,
               const InnerEngine* engine) {
                if (engine != nullptr && (!engine->engine || !engine->engine.ours())) return static_cast<int>(StoreCode::kInvalidParams);
                return self.setup({.local_hostname = std::move(local_hostname),
                                   .metadata_server = std::move(metadata_server),
                                   .segment_bytes = segment_bytes,
                                   .buffer_bytes = buffer_bytes,
                                   .protocol = std::move(protocol),
                                   .devices = std::move(devices),
                                   .master = std::move(master),
                                   .tenant = std::move(tenant),
                                   .http_server = http_server,
                                   .http_port = http_port,
                                   .disk = disk,
                                   .disk_path = std::move(disk_path),
                                   .warm_dir = std::move(warm_dir),
                                   .warm_keep = store::parse_warm_stop(warm_stop),
                                   .engine = engine != nullptr ? engine->engine.share() : nullptr});
            },
            "local_hostname"_a, "metadata_server"_a, "segment_bytes"_a, "buffer_bytes"_a, "protocol"_a, "devices"_a, "master"_a, "tenant"_a,
            "http_server"_a, "http_port"_a, "disk"_a, "disk_path"_a, "warm_dir"_a, "warm_stop"_a, "engine"_a.none(),
            "What setup() ends in.")
        .def("_setup_thin", &DistributedStore::setup_thin, "buffer_bytes"_a, "server_address"_a, "What setup_dummy() ends in.")
        .def("close", &DistributedStore::close,
             "Leaves the pool: ends calls in flight, takes our segments out, joins all threads. Returns 0, also where nothing was set up.\n"
             "Afterwards setup() may be called again.")
        .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
        .def(
            "__exit__", [](DistributedStore& self, nb::handle, nb::handle, nb::handle) { self.close(); }, "exc_type"_a.none(),
            "exc_value"_a.none(), "traceback"_a.none())
        .def("health_check", &DistributedStore::health_check, "0: well; 1: not set up, or closed; 2: the master does not answer.")
        .def("get_hostname", &DistributedStore::get_hostname,
             "host:port, the name of our segments: what preferred_segments takes. \"\" before setup().")
        .def("get_metrics", &DistributedStore::get_metrics, "Counters and latencies in the Prometheus text format. \"\" before setup().")
        .def("_get_pyclient_capsule", &DistributedStore::capsule, "Shares the native client with other modules; None before setup().")
        .def("_buffer_bytes", &DistributedStore::buffer_bytes, "The size of the staging memory.")
        .def("_stage", &DistributedStore::stage, "size"_a, "Staging memory, or None.")
        .def("_allocate", &DistributedStore::allocate, "size"_a, "alignment"_a, "Registered memory, or None.");
}

void bind_values(StoreClass& store) {
    store
        .def(
            "put",
            [](DistributedStore& self, nb::handle key, nb::handle value, Config config) { return self.put(key, value, config, false); },
            "key"_a, "value"_a, "config"_a = nb::none(),
            "Stores a value: any object with contiguous memory. Returns 0, also where the key has a value already, which stays. -200: no\n"
            "space; -600: empty key or value, or a configuration that makes no sense.")
        .def(
            "upsert",
            [](DistributedStore& self, nb::handle key, nb::handle value, Config config) { return self.put(key, value, config, true); },
            "key"_a, "value"_a, "config"_a = nb::none(), "As put(), replacing a value that is there.")
        .def(
            "put_batch",
            [](DistributedStore& self, nb::handle keys, nb::handle values, Config config) {
                return self.put_batch(keys, values, config, false);
            },
            "keys"_a, "values"_a, "config"_a = nb::none(), "put() for each key. Returns 0, or the code of the first that failed.")
        .def(
            "upsert_batch",
            [](DistributedStore& self, nb::handle keys, nb::handle values, Config config) {
                return self.put_batch(keys, values, config, true);
            },
            "keys"_a, "values"_a, "config"_a = nb::none(), "upsert() for each key. Returns 0, or the code of the first that failed.")
        .def(
            "_put_parts",
            [](DistributedStore& self, nb::handle key, nb::handle parts, Config config, bool replace) {
                return self.put_parts(key, parts, config, replace);
            },
            "key"_a, "parts"_a, "config"_a.none(), "replace"_a)
        .def("get", &DistributedStore::get, "key"_a, "The value as bytes; b\"\" if there is none or it could not be read.")
        .def("get_batch", &DistributedStore::get_batch, "keys"_a, "get() for each key, in one go. [b\"\"] before setup().")
        .def(
            "get_buffer", [](DistributedStore& self, nb::handle key) { return nb::object(self.get_buffers(nb::make_tuple(key))[0]); },
            "key"_a, "The value in a BufferHandle, without a copy of its own; None if there is none or the staging memory is full.")
        .def("batch_get_buffer", &DistributedStore::get_buffers, "keys"_a, "get_buffer() for each key.")
        .def("is_exist", &DistributedStore::is_exist, "key"_a,
             "1: there, and readable for the lease time of the master; 0: not; negative: it is not known.")
        .def("batch_is_exist", &DistributedStore::batch_is_exist, "keys"_a, "is_exist() for each key.")
        .def("get_size", &DistributedStore::get_size, "key"_a,
             "The length of the value in bytes, or a negative code: -704 if there is none.")
        .def("_batch_get_size", &DistributedStore::batch_get_size, "keys"_a)
        .def(
            "remove", [](DistributedStore& self, nb::handle key, Truth force) { return self.remove(key, force.value); }, "key"_a,
            "force"_a = false,
            "Removes a value. 0; -704: there is none; -706: somebody may be reading it (force skips this); -703: it is still being "
            "written;\n"
            "-708: it is being copied or moved.")
        .def(
            "batch_remove", [](DistributedStore& self, nb::handle keys, Truth force) { return self.batch_remove(keys, force.value); },
            "keys"_a, "force"_a = false, "remove() for each key.")
        .def(
            "remove_by_regex",
            [](DistributedStore& self, nb::handle regex_pattern, Truth force) { return self.remove_by_regex(regex_pattern, force.value); },
            "regex_pattern"_a, "force"_a = false,
            "Removes every value in whose key the pattern is found. Returns how many, or a negative code: -600 for a bad\n"
            "pattern, which is one that is empty or looks ahead, behind or back.")
        .def(
            "remove_all", [](DistributedStore& self, Truth force) { return self.remove_all(force.value); }, "force"_a = false,
            "Removes everything. Returns how many, or a negative code.");
}

void bind_segments(StoreClass& store) {
    store
        .def(
            "mount_segment",
            [](DistributedStore& self, std::string path, uint64_t size, uint64_t offset, std::string protocol, std::string location) {
                return self.mount_file({.path = std::move(path),
                                        .size = size,
                                        .offset = offset,
                                        .protocol = std::move(protocol),
                                        .location = std::move(location)});
            },
            "path"_a, "size"_a, "offset"_a = 0, "protocol"_a = "tcp", "location"_a = "",
            "Lends a part of a file to the pool. Returns {\"ret\": 0 or -1, \"segment_ids\": [...]}.")
        .def("unmount_segment", &DistributedStore::unmount, "segment_ids"_a, "grace_period_seconds"_a = 0,
             "Takes segments back; what is in them stays readable for the grace period. Returns 0 or -1.")
        .def("allocate_and_mount_segment", &DistributedStore::mount_memory, "size"_a, "protocol"_a = "tcp", "location"_a = "",
             "Lends new memory to the pool. Returns {\"ret\": 0 or -1, \"segment_ids\": [...], \"allocated_size\": bytes}.")
        .def("unmount_and_free_segment", &DistributedStore::unmount, "segment_ids"_a, "grace_period_seconds"_a = 0,
             "As unmount_segment(), for what allocate_and_mount_segment() gave.")
        .def("get_replica_desc", &DistributedStore::get_replicas, "key"_a, "Where the copies of a value are: a list of ReplicaDescriptor.")
        .def("batch_get_replica_desc", &DistributedStore::batch_get_replicas, "keys"_a,
             "A dict from key to list of ReplicaDescriptor; keys without a value are not in it.")
        .def(
            "batch_replica_clear", &DistributedStore::replica_clear, "keys"_a, "segment_name"_a = "",
            "Removes the replicas (with a segment's name: those there) of values that this store wrote and nobody reads. Returns the keys\n"
            "for which that was done.")
        .def(
            "create_copy_task",
            [](DistributedStore& self, nb::handle key, std::vector<std::string> targets) {
                return self.create_task(store::TaskType::kCopy, key, "", std::move(targets));
            },
            "key"_a, "targets"_a, "Has a value copied to these segments. Returns (task id, 0) or ((0, 0), code).")
        .def(
            "create_move_task",
            [](DistributedStore& self, nb::handle key, const std::string& source, std::string target) {
                return self.create_task(store::TaskType::kMove, key, source, {std::move(target)});
            },
            "key"_a, "source"_a, "target"_a, "Has a replica moved from one segment to another. Returns (task id, 0) or ((0, 0), code).")
        .def("query_task", &DistributedStore::query_task, "task_id"_a, "How a task stands: (QueryTaskResponse, 0) or (None, code).");
}

}  // namespace mooncake::python
