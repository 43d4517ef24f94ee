// SPDX-License-Identifier: Apache-2.0
#include <linux/mempolicy.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "failures.h"
#include "store/bridge/client/host_memory.h"
#include "store_bindings.h"

namespace mooncake::python {

using nb::literals::operator""_a;
using store::bridge::allocate_function;
using store::bridge::allocate_host_memory;
using store::bridge::free_function;
using store::bridge::free_host_memory;

namespace {

/// New pages of this thread come from that node if it has any left.
Result<> prefer_memory_of_node(int node) {
    constexpr int kNodesMax = 1024, kBits = 8 * sizeof(unsigned long);
    if (node < 0 || node >= kNodesMax) return fail(Code::kInvalidArgument, "node {}", node);
    unsigned long nodes[kNodesMax / kBits] = {};
    nodes[node / kBits] = 1UL << (node % kBits);
    if (::syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, kNodesMax + 1) != 0)
        return fail_errno(Code::kNotSupported, errno, "node {}", node);
    return {};
}

enum class ReplicaStatus : uint8_t { kUndefined, kInitialized, kProcessing, kComplete, kRemoved, kFailed };

/// As the store's own, with the numbers that callers know.
enum class TaskStatus : uint8_t { kPending, kProcessing, kFailed, kSuccess };

TaskStatus status_of(const store::TaskInfo& task) {
    switch (task.status) {
        case store::TaskStatus::kPending: return TaskStatus::kPending;
        case store::TaskStatus::kProcessing: return TaskStatus::kProcessing;
        case store::TaskStatus::kSuccess: return TaskStatus::kSuccess;
        case store::TaskStatus::kFailed: break;
    }
    return TaskStatus::kFailed;
}

/// What these have in common: a place in memory, as callers see it.
struct MemoryDescriptor {
    store::ReplicaInfo info;
};
struct DiskDescriptor {
    std::string file_path;
    uint64_t object_size = 0;
};
struct Descriptor {
    uint64_t size = 0, buffer_address = 0;
    std::string transport_endpoint;
};

struct HostMemoryAllocator {};

}  // namespace

void bind_store_enums(nb::module_& module) {
    using store::ObjectDataType;
    nb::enum_<ObjectDataType>(module, "ObjectDataType", nb::is_arithmetic(), "What a value is; for statistics only.")
        .value("UNKNOWN", ObjectDataType::kUnknown)
        .value("KVCACHE", ObjectDataType::kKvCache)
        .value("TENSOR", ObjectDataType::kTensor)
        .value("WEIGHT", ObjectDataType::kWeight)
        .value("SAMPLE", ObjectDataType::kSample)
        .value("ACTIVATION", ObjectDataType::kActivation)
        .value("GRADIENT", ObjectDataType::kGradient)
        .value("OPTIMIZER_STATE", ObjectDataType::kOptimizerState)
        .value("METADATA", ObjectDataType::kMetadata)
        .value("GENERAL", ObjectDataType::kGeneral)
        .export_values();
    nb::enum_<store::SoftPinAction>(module, "SoftPinAction", nb::is_arithmetic(), "What a write does to the soft pin of its value.")
        .value("PRESERVE", store::SoftPinAction::kPreserve)
        .value("ENABLE", store::SoftPinAction::kEnable)
        .value("DISABLE", store::SoftPinAction::kDisable);
    nb::enum_<ReplicaStatus>(module, "ReplicaStatus", nb::is_arithmetic())
        .value("UNDEFINED", ReplicaStatus::kUndefined)
        .value("INITIALIZED", ReplicaStatus::kInitialized)
        .value("PROCESSING", ReplicaStatus::kProcessing)
        .value("COMPLETE", ReplicaStatus::kComplete)
        .value("REMOVED", ReplicaStatus::kRemoved)
        .value("FAILED", ReplicaStatus::kFailed)
        .export_values();
    nb::enum_<store::TaskType>(module, "TaskType", nb::is_arithmetic())
        .value("REPLICA_COPY", store::TaskType::kCopy)
        .value("REPLICA_MOVE", store::TaskType::kMove)
        .export_values();
    // PROCESSING and FAILED mean ReplicaStatus in the module's own scope no longer: the last enum to export a name has it.
    nb::enum_<TaskStatus>(module, "TaskStatus", nb::is_arithmetic())
        .value("PENDING", TaskStatus::kPending)
        .value("PROCESSING", TaskStatus::kProcessing)
        .value("SUCCESS", TaskStatus::kSuccess)
        .value("FAILED", TaskStatus::kFailed)
        .export_values();
}

void bind_replicate_config(nb::module_& module) {
    nb::class_<ReplicateConfig>(module, "ReplicateConfig", nb::is_weak_referenceable(), "How values are to be stored.")
        .def(nb::init<>())
        .def_rw("replica_num", &ReplicateConfig::replica_num, "Copies in memory.")
        .def_rw("nof_replica_num", &ReplicateConfig::nof_replica_num, "Must be 0 in this build.")
        .def_rw("dfs_replica_num", &ReplicateConfig::dfs_replica_num, "Must be 0 in this build.")
        .def_rw("soft_pin_action", &ReplicateConfig::soft_pin_action, "A soft-pinned value is evicted only when nothing else can be.")
        .def_rw("soft_pin_ttl_ms", &ReplicateConfig::soft_pin_ttl_ms, nb::arg().none(),
                "With SoftPinAction.ENABLE: for how long. None: as the master says; 0: not pinned.")
        .def_prop_rw(
            "with_hard_pin", [](const ReplicateConfig& self) { return self.with_hard_pin; },
            [](ReplicateConfig& self, Truth pinned) { self.with_hard_pin = pinned.value; }, "Never evicted.")
        .def_rw("preferred_segments", &ReplicateConfig::preferred_segments, "Names of segments to try first, in this order.")
        .def_rw("preferred_segment", &ReplicateConfig::preferred_segment, "As preferred_segments with one entry, and used instead of it.")
        .def_rw("preferred_nof_segments", &ReplicateConfig::preferred_nof_segments)
        .def_prop_rw(
            "prefer_alloc_in_same_node", [](const ReplicateConfig& self) { return self.prefer_alloc_in_same_node; },
            [](ReplicateConfig& self, Truth preferred) { self.prefer_alloc_in_same_node = preferred.value; },
            "Memory of the writer's host if there is some. Only where several buffers make up a value, and with one replica.")
        .def_rw("data_type", &ReplicateConfig::data_type)
        .def_rw("group_ids", &ReplicateConfig::group_ids, nb::arg().none(),
                "One per key of the call: keys of one group are kept or evicted together. \"\": no group.")
        .def_prop_rw(
            "with_soft_pin", [](const ReplicateConfig& self) { return self.soft_pin_action == store::SoftPinAction::kEnable; },
            [](ReplicateConfig& self, Truth pinned) {
                self.soft_pin_action = pinned.value ? store::SoftPinAction::kEnable : store::SoftPinAction::kPreserve;
            },
            "Older form of soft_pin_action ENABLE.")
        .def("__str__", &ReplicateConfig::to_string)
        .def("__repr__", &ReplicateConfig::to_string);
}

void bind_replicas(nb::module_& module) {
    nb::class_<Descriptor>(module, "Descriptor", "A range of a segment.")
        .def(nb::init<>())
        .def_rw("size", &Descriptor::size)
        .def_rw("buffer_address", &Descriptor::buffer_address)
        .def_rw("transport_endpoint", &Descriptor::transport_endpoint, "The segment's name: host:port of its owner.")
        .def("__repr__", [](const Descriptor& self) {
            return format_text("Descriptor(size={}, buffer_address={:#x}, transport_endpoint='{}')", self.size, self.buffer_address,
                               self.transport_endpoint);
        });
    nb::class_<MemoryDescriptor>(module, "MemoryDescriptor", "A replica in memory.")
        .def_prop_ro("buffer_descriptor", [](const MemoryDescriptor& self) {
            return Descriptor{self.info.length, self.info.address, self.info.segment_name};
        });
    nb::class_<DiskDescriptor>(module, "DiskDescriptor", "A replica in a file.")
        .def_ro("file_path", &DiskDescriptor::file_path)
        .def_ro("object_size", &DiskDescriptor::object_size);
    nb::class_<Replica>(module, "ReplicaDescriptor", "One copy of a value.")
        .def_prop_ro("status", [](const Replica&) { return ReplicaStatus::kComplete; })
        .def("is_memory_replica", [](const Replica& self) { return !self.info.on_disk; })
        .def(
            "is_disk_replica", [](const Replica&) { return false; }, "Of a file on a shared file system: never.")
        .def(
            "is_local_disk_replica", [](const Replica& self) { return self.info.on_disk; }, "On the disk of a node.")
        .def(
            "get_memory_descriptor",
            [](const Replica& self) {
                if (self.info.on_disk) throw std::runtime_error("the replica is on a disk");
                return MemoryDescriptor{self.info};
            },
            "RuntimeError for a replica on a disk.")
        .def(
            "get_disk_descriptor",
            [](const Replica&) -> DiskDescriptor { throw std::runtime_error("the replica is not a file on a shared file system"); },
            "RuntimeError: there are no replicas on shared file systems.")
        .def("__repr__", [](const Replica& self) {
            return format_text("ReplicaDescriptor({} bytes {} of {})", self.info.length, self.info.on_disk ? "on the disk" : "in memory",
                               self.info.segment_name);
        });
    nb::class_<store::TaskInfo>(module, "QueryTaskResponse", "How a copy or a move stands.")
        .def(nb::init<>())
        .def_prop_ro("id", [](const store::TaskInfo& self) { return std::pair(self.id.high, self.id.low); })
        .def_ro("type", &store::TaskInfo::type)
        .def_prop_ro("status", &status_of)
        .def_ro("created_at_ms_epoch", &store::TaskInfo::created_ms)
        .def_ro("last_updated_at_ms_epoch", &store::TaskInfo::updated_ms)
        .def_prop_ro("assigned_client", [](const store::TaskInfo& self) { return std::pair(self.client.high, self.client.low); })
        .def_ro("message", &store::TaskInfo::message)
        .def("__repr__", [](const store::TaskInfo& self) {
            return format_text(
                "QueryTaskResponse(id={}, type={}, status={}, created_at={}, last_updated_at={}, assigned_client={}, message=\"{}\")",
                self.id.to_string(), static_cast<int>(self.type), static_cast<int>(status_of(self)), self.created_ms, self.updated_ms,
                self.client.to_string(), self.message);
        });
}

void bind_host_memory(nb::module_& module) {
    nb::class_<HostMemoryAllocator>(module, "MooncakeHostMemAllocator",
                                    "Memory that other processes of this host can map; huge pages with MC_STORE_USE_HUGEPAGE.")
        .def(nb::init<>())
        .def(
            "alloc",
            [](HostMemoryAllocator&, uint64_t size) {
                if (exiting()) raise_failure("alloc", engine_unusable());
                const Result<void*> address = without_gil([&] { return allocate_host_memory(size); });
                if (!address) raise_failure("alloc", address.error());
                return reinterpret_cast<uintptr_t>(*address);
            },
            "size"_a, "The address of `size` bytes. RuntimeError if there are none.")
        .def(
            "free",
            [](HostMemoryAllocator&, uint64_t ptr) {
                const Result<> done = free_host_memory(reinterpret_cast<void*>(ptr));
                return done ? 0 : failed("free", done.error());
            },
            "ptr"_a, "Returns 0, or -1 for an address that alloc() did not give.");
    module.def("get_alloc_func_addr", &allocate_function, "The address of a C function `void *(size_t size)`, for pluggable allocators.");
    module.def("get_free_func_addr", &free_function, "The address of a C function `void (void *address)`.");
    module.def(
        "_prefer_memory_of_node",
        [](int node) {
            const Result<> done = prefer_memory_of_node(node);
            if (!done) record_failure("bind_to_numa_node", done.error());
        },
        "node"_a);
}

}  // namespace mooncake::python
