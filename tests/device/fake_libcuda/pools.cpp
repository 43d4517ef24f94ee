// SPDX-License-Identifier: Apache-2.0
// Pools of memory, which other processes are given as a whole; then they are told where in it something lies.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "state.h"

namespace fake {

namespace {

/// What is behind the descriptor of a pool.
struct PoolFile {
    int32_t process = 0;
    int32_t device = 0;
};

/// What tells a process where some memory of a pool is.
struct PoolPointer {
    int32_t process = 0;
    int32_t fd = -1;
    uint64_t length = 0;
};
static_assert(sizeof(PoolPointer) <= sizeof(abi::PoolPointer));

Pool* pool_of(void* handle) {
    const auto found = state().pools.find(handle);
    return found == state().pools.end() ? nullptr : found->second.get();
}

void* keep(std::unique_ptr<Pool> pool) {
    void* const handle = pool.get();
    state().pools[handle] = std::move(pool);
    return handle;
}

}  // namespace

FAKE_API Status cuMemPoolCreate(void** pool, const abi::PoolProperties* properties) {
    const Call call("cuMemPoolCreate", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    auto made = std::make_unique<Pool>();
    made->device = properties->location.id;
    made->handle_types = properties->handle_types;
    made->process = ::getpid();
    made->access.insert(made->device);
    const std::lock_guard lock(state().mutex);
    *pool = keep(std::move(made));
    return abi::kSuccess;
}

FAKE_API Status cuMemPoolDestroy(void* pool) {
    const Call call("cuMemPoolDestroy", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    return state().pools.erase(pool) != 0 ? abi::kSuccess : abi::kInvalidValue;
}

FAKE_API Status cuMemPoolSetAccess(void* pool, const abi::AccessDescription* access, size_t number) {
    const Call call("cuMemPoolSetAccess", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    Pool* const found = pool_of(pool);
    if (found == nullptr) return abi::kInvalidValue;
    for (size_t i = 0; i < number; ++i) {
        if (!s.peers && access[i].location.id != found->device) return abi::kPeerAccessUnsupported;
        found->access.insert(access[i].location.id);
    }
    return abi::kSuccess;
}

/// Of the default pool, which cannot be shared.
FAKE_API Status cuMemAllocAsync(abi::DevicePointer* address, size_t length, abi::Stream) {
    const Call call("cuMemAllocAsync", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    static void* const standard = [] {
        auto made = std::make_unique<Pool>();
        return static_cast<void*>(made.release());  // as old as the process
    }();
    const Status status = allocate(address, length, Kind::kPool, call.ordinal);
    if (status == abi::kSuccess) s.mappings[*address].pool = standard;
    return status;
}

FAKE_API Status cuMemAllocFromPoolAsync(abi::DevicePointer* address, size_t length, void* pool, abi::Stream) {
    const Call call("cuMemAllocFromPoolAsync", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const Pool* const found = pool_of(pool);
    if (found == nullptr || found->imported) return abi::kInvalidValue;
    const Status status = allocate(address, length, Kind::kPool, found->device);
    if (status != abi::kSuccess) return status;
    s.mappings[*address].pool = pool;
    s.mappings[*address].physical->handle_types = found->handle_types;
    return abi::kSuccess;
}

FAKE_API Status cuMemPoolExportToShareableHandle(void* out, void* pool, int type, uint64_t) {
    const Call call("cuMemPoolExportToShareableHandle", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    const Pool* const found = pool_of(pool);
    if (found == nullptr || type != static_cast<int>(abi::kHandleDescriptor) || (found->handle_types & abi::kHandleDescriptor) == 0)
        return abi::kInvalidValue;
    const int fd = ::memfd_create("fake-pool", 0);
    const PoolFile file{.process = found->process, .device = found->device};
    if (fd < 0 || ::write(fd, &file, sizeof file) != static_cast<ssize_t>(sizeof file)) {
        if (fd >= 0) ::close(fd);
        return abi::kOutOfMemory;
    }
    std::memcpy(out, &fd, sizeof fd);
    return abi::kSuccess;
}

FAKE_API Status cuMemPoolImportFromShareableHandle(void** pool, void* shareable, int type, uint64_t) {
    const Call call("cuMemPoolImportFromShareableHandle", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    PoolFile file;
    const int fd = static_cast<int>(reinterpret_cast<uintptr_t>(shareable));
    if (type != static_cast<int>(abi::kHandleDescriptor) || ::pread(fd, &file, sizeof file, 0) != static_cast<ssize_t>(sizeof file))
        return abi::kInvalidValue;
    if (file.process == ::getpid()) return abi::kNotPermitted;
    auto made = std::make_unique<Pool>();
    made->device = file.device;
    made->imported = true;
    made->process = file.process;
    const std::lock_guard lock(state().mutex);
    *pool = keep(std::move(made));
    return abi::kSuccess;
}

FAKE_API Status cuMemPoolExportPointer(abi::PoolPointer* data, abi::DevicePointer address) {
    const Call call("cuMemPoolExportPointer", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.mappings.find(address);
    if (found == s.mappings.end() || found->second.kind != Kind::kPool || found->second.physical->handle_types == 0)
        return abi::kInvalidValue;
    const PoolPointer pointer{.process = ::getpid(), .fd = found->second.physical->fd, .length = found->second.length};
    *data = {};
    std::memcpy(data->bytes, &pointer, sizeof pointer);
    return abi::kSuccess;
}

FAKE_API Status cuMemPoolImportPointer(abi::DevicePointer* address, void* pool, abi::PoolPointer* data) {
    const Call call("cuMemPoolImportPointer", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    PoolPointer pointer;
    std::memcpy(&pointer, data->bytes, sizeof pointer);
    const Pool* const found = pool_of(pool);
    if (found == nullptr || !found->imported || found->process != pointer.process) return abi::kInvalidValue;
    const int fd = ::open(("/proc/" + std::to_string(pointer.process) + "/fd/" + std::to_string(pointer.fd)).c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return abi::kInvalidValue;
    auto physical = import_physical(fd, pointer.length, found->device);
    if (physical == nullptr) return abi::kOutOfMemory;
    const uint64_t start = reserve_addresses(pointer.length, 0, 0);
    s.mappings[start] = {.length = pointer.length,
                         .kind = Kind::kPoolImport,
                         .physical = physical,
                         .buffer_id = s.next_id++,
                         .reservation = start,
                         .reserved = pointer.length,
                         .access = found->access,
                         .pool = pool};
    *address = start;
    return abi::kSuccess;
}

}  // namespace fake
