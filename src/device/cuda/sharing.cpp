// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that another process of this host reaches: by a handle for a whole allocation (legacy IPC).
#include <cstring>
#include <type_traits>

#include "base/incarnation.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"

namespace mooncake::cuda {

namespace {

/// What a MemoryTicket holds.
struct Ticket {
    uint32_t version = 1;
    uint32_t unused = 0;
    uint64_t owner = 0;  // tells our process from all others
    uint64_t base = 0, length = 0;
    abi::Uuid uuid;
    abi::IpcHandle handle;
};
static_assert(sizeof(Ticket) <= sizeof(MemoryTicket) && std::is_trivially_copyable_v<Ticket>);

/// A process cannot open what it shares itself; what it would open is there.
uint64_t this_process() {
    static const uint64_t number = random_u64() | 1;
    return number;
}

}  // namespace

Result<MemoryTicket> CudaDevice::share(const MemoryInfo& info) {
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, info.device));
    if (scope->ipc_get == nullptr || scope->ipc_open == nullptr || scope->ipc_close == nullptr || scope->get_device_uuid == nullptr)
        return fail(Code::kNotSupported, "this CUDA driver shares no memory");
    Ticket ticket{.owner = this_process(), .base = info.base, .length = info.length};
    abi::DeviceHandle handle = -1;
    MC_RETURN_IF_ERROR(driver_.check(info.device, "cuDeviceGet", scope->get_device(&handle, info.device)));
    MC_RETURN_IF_ERROR(driver_.check(info.device, "cuDeviceGetUuid", scope->get_device_uuid(&ticket.uuid, handle)));
    // Refused for memory of pools, for managed memory and for addresses that were reserved before they had memory.
    if (const abi::Status status = scope->ipc_get(&ticket.handle, info.base); status != abi::kSuccess)
        return fail(Code::kNotSupported, "this memory of GPU {} cannot be shared: {}", info.device,
                    driver_.failure(info.device, "cuIpcGetMemHandle", status).message());
    MemoryTicket bytes{};
    std::memcpy(bytes.data(), &ticket, sizeof ticket);
    return bytes;
}

Result<int> CudaDevice::device_in_use(const abi::Uuid& uuid) {
    const abi::Functions* const functions = driver_.functions();
    int count = 0, other = -1;
    if (functions == nullptr || functions->get_device_uuid == nullptr || functions->get_device_count(&count) != abi::kSuccess)
        return fail(Code::kNotSupported, "CUDA is not used in this process");
    for (int device = 0; device < count && Driver::valid(device); ++device) {
        abi::DeviceHandle handle = -1;
        abi::Uuid found;
        if (!driver_.context(device)) continue;  // none is made for this
        if (other < 0) other = device;
        if (functions->get_device(&handle, device) == abi::kSuccess && functions->get_device_uuid(&found, handle) == abi::kSuccess &&
            std::memcmp(&found, &uuid, sizeof uuid) == 0)
            return device;
    }
    if (other < 0) return fail(Code::kNotSupported, "this process has no context on any GPU");
    return other;
}

Result<MemoryInfo> CudaDevice::open(const MemoryTicket& bytes) {
    Ticket ticket;
    std::memcpy(&ticket, bytes.data(), sizeof ticket);
    if (ticket.version != 1 || ticket.length == 0) return fail(Code::kNotSupported, "memory of a GPU is shared in a way we do not know");
    if (ticket.owner == this_process()) return MemoryInfo{.kind = MemoryKind::kCuda, .base = ticket.base, .length = ticket.length};
    if (driver_.silent()) return fail(Code::kNotSupported, "CUDA cannot be used in this process");
    MC_ASSIGN_OR_RETURN(const int device, device_in_use(ticket.uuid));
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
    if (scope->ipc_open == nullptr || scope->ipc_close == nullptr) return fail(Code::kNotSupported, "this CUDA driver shares no memory");
    abi::DevicePointer base = 0;
    // The application's own memory may go while another process has it open: then both live, and only its owner's close() tells.
    if (const abi::Status status = scope->ipc_open(&base, ticket.handle, abi::kIpcLazyPeerAccess); status != abi::kSuccess)
        return fail(Code::kNotSupported, "GPU {} does not reach the peer's memory: {}", device,
                    driver_.failure(device, "cuIpcOpenMemHandle", status).message());
    {
        Lock lock(mutex_);
        Opened& opened = opened_[base];
        opened.device = device;
        ++opened.times;
    }
    // Its addresses may have been those of other memory that was registered; and what is shorter than promised would be a fault.
    auto found = describe(reinterpret_cast<const void*>(base), ticket.length);
    if (found && *found && (*found)->base == base) return **found;
    close(base);
    return fail(Code::kNotSupported, "the peer's memory is not what it says: {}", found ? "another length" : found.error().message());
}

void CudaDevice::close(uint64_t base) noexcept {
    int device = 0;
    {
        Lock lock(mutex_);
        const auto found = opened_.find(base);
        if (found == opened_.end()) return;  // our own
        device = found->second.device;
        if (--found->second.times == 0) opened_.erase(found);
    }
    if (driver_.dead(device) || driver_.silent()) return;
    const auto scope = Scope::enter(driver_, device);
    if (!scope) return;
    if (const abi::Status status = (*scope)->ipc_close(base); status != abi::kSuccess)
        MC_LOG_WARNING_EVERY(60s, "{}", driver_.failure(device, "cuIpcCloseMemHandle", status).message());
}

}  // namespace mooncake::cuda
