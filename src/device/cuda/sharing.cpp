// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that another process of this host reaches: by a handle for what cudaMalloc gave, by a file for each chunk at reserved addresses,
// and by a file for a pool.
#include <fcntl.h>

#include <cstring>

#include "base/incarnation.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/ticket.h"

namespace mooncake::cuda {

namespace {

/// A process cannot open what it shares itself; what it would open is there.
uint64_t this_process() {
    static const uint64_t number = random_u64() | 1;
    return number;
}

/// What CUDA says of how memory may be shared. Zeros where it does not know.
struct Sharing {
    uint64_t legacy = 0, handle_types = 0, pool = 0, reservation = 0, reserved = 0;

    Way way() const noexcept {
        if (static_cast<uint32_t>(legacy) != 0) return Way::kIpc;
        if (pool != 0) return Way::kPool;
        return files() ? Way::kDescriptor : Way::kIpc;
    }
    bool files() const noexcept { return (handle_types & abi::kHandleDescriptor) != 0; }
};

Sharing ask_sharing(const abi::Functions& functions, uint64_t address) {
    Sharing answers;
    std::array<int, 5> attributes{abi::kAttributeLegacyIpcCapable, abi::kAttributeAllowedHandleTypes, abi::kAttributeMempool,
                                  abi::kAttributeRangeStart, abi::kAttributeRangeSize};
    std::array<void*, 5> data{&answers.legacy, &answers.handle_types, &answers.pool, &answers.reservation, &answers.reserved};
    if (functions.get_pointer_attributes(static_cast<uint32_t>(attributes.size()), attributes.data(), data.data(), address) !=
        abi::kSuccess)
        return {};  // an old driver: what it has can be shared by handles or not at all
    return answers;
}

}  // namespace

Result<MemoryTicket> CudaDevice::share(const MemoryInfo& info) {
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, info.device));
    if (scope->get_device_uuid == nullptr) return fail(Code::kNotSupported, "this CUDA driver shares no memory");
    const Sharing sharing = ask_sharing(*scope, info.base);
    Ticket ticket;
    ticket.way = sharing.way();
    ticket.owner = this_process();
    ticket.base = info.base;
    ticket.length = info.length;
    abi::DeviceHandle handle = -1;
    MC_RETURN_IF_ERROR(driver_.check(info.device, "cuDeviceGet", scope->get_device(&handle, info.device)));
    MC_RETURN_IF_ERROR(driver_.check(info.device, "cuDeviceGetUuid", scope->get_device_uuid(&ticket.uuid, handle)));
    const auto refused = [&](std::string_view call, abi::Status status) {
        return fail(Code::kNotSupported, "this memory of GPU {} cannot be shared: {}", info.device,
                    driver_.failure(info.device, call, status).message());
    };
    switch (ticket.way) {
        case Way::kIpc:
            if (scope->ipc_get == nullptr || scope->ipc_open == nullptr || scope->ipc_close == nullptr)
                return fail(Code::kNotSupported, "this CUDA driver shares no memory");
            // Refused for managed memory and for chunks that were made without a file to share them by.
            if (const abi::Status status = scope->ipc_get(&ticket.handle, info.base); status != abi::kSuccess)
                return refused("cuIpcGetMemHandle", status);
            break;
        case Way::kDescriptor:
            if (scope->vmm_retain == nullptr || scope->vmm_export == nullptr || scope->vmm_release == nullptr)
                return fail(Code::kNotSupported, "this CUDA driver shares no memory at reserved addresses");
            ticket.allocation = info.allocation;
            ticket.chunk = {.reservation = sharing.reservation, .reserved = sharing.reserved};
            break;
        case Way::kPool:
            if (scope->pool_export == nullptr || scope->pool_export_pointer == nullptr)
                return fail(Code::kNotSupported, "this CUDA driver shares no pools");
            if (!sharing.files())
                return fail(Code::kNotSupported, "this memory of GPU {} is of a pool that was made without a file to share it by",
                            info.device);
            ticket.allocation = info.allocation;
            ticket.pool = sharing.pool;
            if (const abi::Status status = scope->pool_export_pointer(&ticket.pointer, info.base); status != abi::kSuccess)
                return refused("cuMemPoolExportPointer", status);
            break;
    }
    return ticket.bytes();
}

Result<MemoryFile> CudaDevice::file_of(const MemoryInfo& info, const MemoryTicket& bytes) {
    const Ticket ticket(bytes);
    const auto gone = [&] {
        return fail(Code::kNotRegistered, "the memory of GPU {} at {:#x} is not there any more", info.device, info.base);
    };
    if (ticket.way == Way::kIpc) return still_there(info) ? Result<MemoryFile>(MemoryFile()) : gone();
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, info.device));
    int file = -1;
    abi::Status status = abi::kSuccess;
    const char* call = "cuMemPoolExportToShareableHandle";
    if (ticket.way == Way::kPool) {
        const Sharing sharing = ask_sharing(*scope, info.base);
        if (sharing.pool != ticket.pool) return gone();
        status = scope->pool_export(&file, reinterpret_cast<abi::Pool>(sharing.pool), static_cast<int>(abi::kHandleDescriptor), 0);
    } else {
        abi::Handle handle = 0;
        call = "cuMemRetainAllocationHandle";
        status = scope->vmm_retain(&handle, reinterpret_cast<void*>(info.base));
        if (status == abi::kSuccess) {
            call = "cuMemExportToShareableHandle";
            status = scope->vmm_export(&file, handle, static_cast<int>(abi::kHandleDescriptor), 0);
            driver_.notice(status);
            if (!driver_.gone()) driver_.notice(scope->vmm_release(handle));
        }
    }
    MemoryFile made = status == abi::kSuccess ? MemoryFile(file) : MemoryFile();
    // Afterwards: if it is the memory now, it was when its file was made.
    if (!still_there(info)) return gone();
    if (status != abi::kSuccess)
        return fail(Code::kNotSupported, "memory of GPU {} is not shared: {}", info.device,
                    driver_.failure(info.device, call, status).message());
    ::fcntl(made.fd(), F_SETFD, FD_CLOEXEC);
    return made;
}

bool CudaDevice::still_there(const MemoryInfo& info) noexcept {
    const abi::Functions* const functions = driver_.found();
    if (functions == nullptr || info.allocation == 0 || driver_.dead(info.device)) return true;
    uint64_t type = 0, allocation = 0;
    std::array<int, 2> attributes{abi::kAttributeMemoryType, abi::kAttributeBufferId};
    std::array<void*, 2> data{&type, &allocation};
    const abi::Status status = functions->get_pointer_attributes(2, attributes.data(), data.data(), info.base);
    if (status == abi::kInvalidValue) return false;  // what older drivers say of memory they do not know
    driver_.notice(status);
    return status != abi::kSuccess || allocation == info.allocation;
}

std::string_view CudaDevice::way_of(const MemoryTicket& ticket) const noexcept { return to_string(Ticket(ticket).way); }

Result<int> CudaDevice::device_in_use(const abi::Uuid& uuid) {
    const abi::Functions* const functions = driver_.functions();
    int count = 0, other = -1;
    const auto answered = [this](abi::Status status) {
        driver_.notice(status);
        return status == abi::kSuccess;
    };
    if (functions == nullptr || functions->get_device_uuid == nullptr || !answered(functions->get_device_count(&count)))
        return fail(Code::kNotSupported, "CUDA is not used in this process");
    for (int device = 0; device < count && Driver::valid(device) && !driver_.gone(); ++device) {
        abi::DeviceHandle handle = -1;
        abi::Uuid found;
        if (!driver_.context(device)) continue;  // none is made for this
        if (other < 0) other = device;
        if (answered(functions->get_device(&handle, device)) && answered(functions->get_device_uuid(&found, handle)) &&
            std::memcmp(&found, &uuid, sizeof uuid) == 0)
            return device;
    }
    if (other < 0 || driver_.gone()) return fail(Code::kNotSupported, "this process has no context on any GPU");
    return other;
}

Result<MemoryInfo> CudaDevice::open(const MemoryTicket& bytes, const MemoryFile& file) {
    const Ticket ticket(bytes);
    const bool known = ticket.way == Way::kIpc || ticket.way == Way::kDescriptor || ticket.way == Way::kPool;
    if (!known || ticket.length == 0) return fail(Code::kNotSupported, "memory of a GPU is shared in a way we do not know");
    if (ticket.owner == this_process()) return MemoryInfo{.kind = MemoryKind::kCuda, .base = ticket.base, .length = ticket.length};
    if (driver_.silent()) return fail(Code::kNotSupported, "CUDA cannot be used in this process");
    MC_ASSIGN_OR_RETURN(const int device, device_in_use(ticket.uuid));
    // The application's own memory may go while another process has it open: then both live, and only its owner's close() tells.
    MC_ASSIGN_OR_RETURN(const uint64_t base, imports_.open(ticket, device, file));
    // Its addresses may have been those of other memory that was registered; and what is shorter than promised would be a fault.
    auto found = describe(reinterpret_cast<const void*>(base), ticket.length);
    if (found && *found && (*found)->base == base) return **found;
    imports_.close(base);
    return fail(Code::kNotSupported, "the peer's memory is not what it says: {}", found ? "another length" : found.error().message());
}

void CudaDevice::close(uint64_t base) noexcept { imports_.close(base); }

}  // namespace mooncake::cuda
