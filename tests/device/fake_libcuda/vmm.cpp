// SPDX-License-Identifier: Apache-2.0
// Memory that is shared with other processes, and addresses apart from memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "state.h"

namespace fake {

namespace {

constexpr uint64_t kGranule = 2 << 20;

/// What is in an IPC handle.
struct Exported {
    int32_t process = 0;
    int32_t fd = -1;
    uint64_t length = 0;
    int32_t device = 0;
};

uint64_t keep(std::shared_ptr<Physical> physical) {
    State& s = state();
    const uint64_t handle = s.next_id++;
    s.handles[handle] = {std::move(physical), 1};
    return handle;
}

}  // namespace

FAKE_API Status cuIpcGetMemHandle(abi::IpcHandle* handle, abi::DevicePointer address) {
    const Call call("cuIpcGetMemHandle", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (s.ipc_status != 0) return s.ipc_status;
    const auto found = mapping_at(address);
    if (found == s.mappings.end() || found->second.kind != Kind::kMalloc) return abi::kInvalidValue;
    const Physical& physical = *found->second.physical;
    const Exported exported{.process = ::getpid(), .fd = physical.fd, .length = physical.length, .device = physical.device};
    *handle = {};
    std::memcpy(handle->bytes, &exported, sizeof exported);
    return abi::kSuccess;
}

FAKE_API Status cuIpcOpenMemHandle_v2(abi::DevicePointer* address, abi::IpcHandle handle, uint32_t) {
    const Call call("cuIpcOpenMemHandle_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Exported exported;
    std::memcpy(&exported, handle.bytes, sizeof exported);
    if (s.ipc_status != 0) return s.ipc_status;
    if (exported.process == ::getpid()) return abi::kInvalidContext;
    const std::string origin = std::to_string(exported.process) + "/" + std::to_string(exported.fd);
    for (auto& [start, mapping] : s.mappings)
        if (mapping.kind == Kind::kIpc && mapping.physical->origin == origin) {
            ++mapping.references;
            *address = start;
            return abi::kSuccess;
        }
    const int fd = ::open(("/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.fd)).c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return abi::kInvalidContext;
    auto physical = import_physical(fd, exported.length, exported.device);
    if (physical == nullptr) return abi::kOutOfMemory;
    physical->origin = origin;
    const uint64_t start = reserve_addresses(exported.length, 0, 0);
    s.mappings[start] = {.length = exported.length,
                         .kind = Kind::kIpc,
                         .physical = physical,
                         .buffer_id = s.next_id++,
                         .reservation = start,
                         .reserved = exported.length};
    *address = start;
    return abi::kSuccess;
}

FAKE_API Status cuIpcCloseMemHandle(abi::DevicePointer address) {
    const Call call("cuIpcCloseMemHandle", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.mappings.find(address);
    if (found == s.mappings.end() || found->second.kind != Kind::kIpc) return abi::kInvalidValue;
    if (--found->second.references > 0) return abi::kSuccess;
    ::munmap(reinterpret_cast<void*>(address), found->second.length);
    s.mappings.erase(found);
    return abi::kSuccess;
}

FAKE_API Status cuMemGetAllocationGranularity(size_t* granule, const abi::AllocationProperties*, int) {
    const Call call("cuMemGetAllocationGranularity", Needs::kInit);
    *granule = kGranule;
    return call.status;
}

FAKE_API Status cuMemCreate(abi::Handle* handle, size_t length, const abi::AllocationProperties* properties, uint64_t) {
    const Call call("cuMemCreate", Needs::kInit, true);
    if (call.status != abi::kSuccess) return call.status;
    if (length == 0 || length % kGranule != 0) return abi::kInvalidValue;
    {
        const std::lock_guard lock(state().mutex);
        const size_t device = static_cast<size_t>(properties->location.id);
        if (device >= state().devices.size()) return abi::kInvalidDevice;
        if ((properties->handle_types & abi::kHandleFabric) != 0 && state().devices[device]->attributes[abi::kDeviceFabric] == 0)
            return abi::kNotPermitted;
    }
    auto physical = make_physical(length, properties->location.id);
    if (physical == nullptr) return abi::kOutOfMemory;
    physical->handle_types = properties->handle_types;
    const std::lock_guard lock(state().mutex);
    *handle = keep(std::move(physical));
    return abi::kSuccess;
}

FAKE_API Status cuMemRelease(abi::Handle handle) {
    const Call call("cuMemRelease", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.handles.find(handle);
    if (found == s.handles.end()) return abi::kInvalidValue;
    if (--found->second.second == 0) s.handles.erase(found);
    return abi::kSuccess;
}

FAKE_API Status cuMemAddressReserve(abi::DevicePointer* address, size_t length, size_t alignment, abi::DevicePointer wanted, uint64_t) {
    const Call call("cuMemAddressReserve", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    if (length == 0 || length % kGranule != 0) return abi::kInvalidValue;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    *address = reserve_addresses(length, alignment == 0 ? kGranule : alignment, wanted);
    if (*address == 0) return abi::kOutOfMemory;
    s.reservations[*address] = length;
    return abi::kSuccess;
}

FAKE_API Status cuMemAddressFree(abi::DevicePointer address, size_t length) {
    const Call call("cuMemAddressFree", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.reservations.find(address);
    if (found == s.reservations.end() || found->second != length) return abi::kInvalidValue;
    const auto inside = s.mappings.lower_bound(address);
    if (inside != s.mappings.end() && inside->first < address + length) return abi::kInvalidValue;  // unmap first
    ::munmap(reinterpret_cast<void*>(address), length);
    s.reservations.erase(found);
    return abi::kSuccess;
}

FAKE_API Status cuMemMap(abi::DevicePointer address, size_t length, size_t offset, abi::Handle handle, uint64_t) {
    const Call call("cuMemMap", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto physical = s.handles.find(handle);
    auto reservation = s.reservations.upper_bound(address);
    if (physical == s.handles.end() || reservation == s.reservations.begin()) return abi::kInvalidValue;
    --reservation;
    if (address + length > reservation->first + reservation->second) return abi::kInvalidValue;
    const Physical& memory = *physical->second.first;
    if (length == 0 || length % kGranule != 0 || address % kGranule != 0 || offset > memory.length || length > memory.length - offset)
        return abi::kInvalidValue;
    const auto next = s.mappings.lower_bound(address);
    if (mapping_at(address) != s.mappings.end() || (next != s.mappings.end() && next->first < address + length)) return abi::kAlreadyMapped;
    s.mappings[address] = {.length = length,
                           .kind = Kind::kVmm,
                           .physical = physical->second.first,
                           .offset = offset,
                           .buffer_id = s.next_id++,
                           .reservation = reservation->first,
                           .reserved = reservation->second};
    return abi::kSuccess;
}

FAKE_API Status cuMemUnmap(abi::DevicePointer address, size_t length) {
    const Call call("cuMemUnmap", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    for (uint64_t at = address; at < address + length;) {
        const auto found = s.mappings.find(at);
        if (found == s.mappings.end() || found->second.kind != Kind::kVmm) return abi::kInvalidValue;
        at += found->second.length;
        s.mappings.erase(found);
    }
    return abi::kSuccess;
}

FAKE_API Status cuMemSetAccess(abi::DevicePointer address, size_t length, const abi::AccessDescription* access, size_t number) {
    const Call call("cuMemSetAccess", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    for (uint64_t at = address; at < address + length;) {
        const auto found = s.mappings.find(at);
        if (found == s.mappings.end() || found->second.kind != Kind::kVmm) return abi::kInvalidValue;
        for (size_t i = 0; i < number; ++i) {
            const int device = access[i].location.id;
            if (access[i].location.type != abi::kLocationDevice || device < 0 || device >= static_cast<int>(s.devices.size()))
                return abi::kInvalidDevice;
            const bool own = device == found->second.physical->device;
            if (!own && !s.peers) return abi::kPeerAccessUnsupported;
            count(own ? "access:own" : "access:peer");
            if (access[i].flags == abi::kAccessReadWrite) found->second.access.insert(device);
            else found->second.access.erase(device);
        }
        at += found->second.length;
    }
    return abi::kSuccess;
}

FAKE_API Status cuMemRetainAllocationHandle(abi::Handle* handle, void* address) {
    const Call call("cuMemRetainAllocationHandle", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = mapping_at(reinterpret_cast<uint64_t>(address));
    if (found == s.mappings.end() || found->second.kind != Kind::kVmm) return abi::kInvalidValue;
    *handle = keep(found->second.physical);
    return abi::kSuccess;
}

FAKE_API Status cuMemExportToShareableHandle(void* out, abi::Handle handle, int type, uint64_t) {
    const Call call("cuMemExportToShareableHandle", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.handles.find(handle);
    if (found == s.handles.end() || type != static_cast<int>(abi::kHandleDescriptor) ||
        (found->second.first->handle_types & abi::kHandleDescriptor) == 0)
        return abi::kInvalidValue;
    const int fd = ::dup(found->second.first->fd);
    if (fd < 0) return abi::kOutOfMemory;
    std::memcpy(out, &fd, sizeof fd);
    return abi::kSuccess;
}

FAKE_API Status cuMemImportFromShareableHandle(abi::Handle* handle, void* shareable, int type) {
    const Call call("cuMemImportFromShareableHandle", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    if (type != static_cast<int>(abi::kHandleDescriptor)) return abi::kNotSupported;
    const int fd = ::fcntl(static_cast<int>(reinterpret_cast<uintptr_t>(shareable)), F_DUPFD_CLOEXEC, 0);
    struct stat status {};
    if (fd < 0 || ::fstat(fd, &status) != 0) return abi::kInvalidValue;
    auto physical = import_physical(fd, static_cast<uint64_t>(status.st_size), 0);
    if (physical == nullptr) return abi::kInvalidValue;
    physical->handle_types = abi::kHandleDescriptor;
    const std::lock_guard lock(state().mutex);
    *handle = keep(std::move(physical));
    return abi::kSuccess;
}

}  // namespace fake
