// SPDX-License-Identifier: Apache-2.0
// Memory and what is said about addresses.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "state.h"

namespace fake {

namespace {

constexpr uint64_t kPage = 4096;

uint64_t pages(uint64_t length) { return (length + kPage - 1) / kPage * kPage; }

}  // namespace

Status allocate(uint64_t* address, uint64_t length, Kind kind, int device) {
    State& s = state();
    if (length == 0) return abi::kInvalidValue;
    length = pages(length);
    auto physical = make_physical(length, device);
    const uint64_t start = physical == nullptr ? 0 : reserve_addresses(length, 0, 0);
    if (start == 0) return abi::kOutOfMemory;
    if (kind == Kind::kManaged) ::mprotect(reinterpret_cast<void*>(start), length, PROT_READ | PROT_WRITE);
    s.mappings[start] = {.length = length,
                         .kind = kind,
                         .physical = kind == Kind::kManaged ? nullptr : physical,
                         .buffer_id = s.next_id++,
                         .reservation = start,
                         .reserved = length};
    *address = start;
    return abi::kSuccess;
}

namespace {

Status release(uint64_t address) {
    State& s = state();
    const auto found = s.mappings.find(address);
    if (found == s.mappings.end() || found->second.kind == Kind::kVmm || found->second.kind == Kind::kIpc) return abi::kInvalidValue;
    ::munmap(reinterpret_cast<void*>(address), found->second.length);
    s.mappings.erase(found);
    return abi::kSuccess;
}

template <typename T>
void answer(void* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

bool answer_device(int attribute, void* to, uint64_t address, const Mapping& mapping) {
    State& s = state();
    const int device = mapping.physical ? mapping.physical->device : 0;
    switch (attribute) {
        case abi::kAttributeContext:
            answer(to, mapping.kind == Kind::kMalloc ? &s.devices[static_cast<size_t>(device)]->primary : nullptr);
            return true;
        case abi::kAttributeMemoryType: answer(to, static_cast<uint32_t>(abi::kMemoryTypeDevice)); return true;
        case abi::kAttributeDevicePointer: answer(to, address); return true;
        case abi::kAttributeHostPointer: answer(to, mapping.kind == Kind::kManaged ? address : uint64_t{0}); return true;
        case abi::kAttributeBufferId: answer(to, mapping.buffer_id); return true;
        case abi::kAttributeIsManaged: answer(to, uint32_t{mapping.kind == Kind::kManaged}); return true;
        case abi::kAttributeDeviceOrdinal: answer(to, device); return true;
        case abi::kAttributeLegacyIpcCapable: answer(to, uint32_t{mapping.kind == Kind::kMalloc}); return true;
        case abi::kAttributeRangeStart: answer(to, mapping.reservation); return true;
        case abi::kAttributeRangeSize: answer(to, mapping.reserved); return true;
        case abi::kAttributeMapped: answer(to, uint32_t{1}); return true;
        case abi::kAttributeAllowedHandleTypes:
            answer(to, mapping.physical ? uint64_t{mapping.physical->handle_types} : uint64_t{0});
            return true;
        case abi::kAttributeMempool: answer(to, mapping.pool); return true;
        default: return false;
    }
}

bool answer_pinned(int attribute, void* to, uint64_t address, uint64_t start, const Pinned& pinned) {
    switch (attribute) {
        case abi::kAttributeMemoryType: answer(to, static_cast<uint32_t>(abi::kMemoryTypeHost)); return true;
        case abi::kAttributeDevicePointer: answer(to, context_stack.empty() ? uint64_t{0} : address); return true;  // as an H200 does
        case abi::kAttributeHostPointer: answer(to, address); return true;
        case abi::kAttributeBufferId: answer(to, pinned.buffer_id); return true;
        case abi::kAttributeRangeStart: answer(to, start); return true;
        case abi::kAttributeRangeSize: answer(to, pinned.length); return true;
        case abi::kAttributeMapped: answer(to, uint32_t{1}); return true;
        case abi::kAttributeContext:
        case abi::kAttributeAllowedHandleTypes:
        case abi::kAttributeMempool: answer(to, uint64_t{0}); return true;
        case abi::kAttributeIsManaged:
        case abi::kAttributeLegacyIpcCapable:
        case abi::kAttributeDeviceOrdinal: answer(to, uint32_t{0}); return true;
        default: return false;
    }
}

}  // namespace

FAKE_API Status cuMemAlloc_v2(abi::DevicePointer* address, size_t length) {
    const Call call("cuMemAlloc_v2", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    return allocate(address, length, Kind::kMalloc, call.ordinal);
}

FAKE_API Status cuMemAllocManaged(abi::DevicePointer* address, size_t length, uint32_t) {
    const Call call("cuMemAllocManaged", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    return allocate(address, length, Kind::kManaged, call.ordinal);
}

FAKE_API Status cuMemFree_v2(abi::DevicePointer address) {
    const Call call("cuMemFree_v2", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    return release(address);
}

FAKE_API Status cuMemFreeAsync(abi::DevicePointer address, abi::Stream) {
    const Call call("cuMemFreeAsync", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    return release(address);
}

FAKE_API Status cuMemGetInfo_v2(size_t* free, size_t* total) {
    const Call call("cuMemGetInfo_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    size_t used = 0;
    for (const auto& [address, mapping] : state().mappings) used += mapping.length;
    *total = size_t{64} << 30;
    *free = *total - used;
    return abi::kSuccess;
}

// ---- pinned host memory

FAKE_API Status cuMemHostAlloc(void** address, size_t length, uint32_t) {
    const Call call("cuMemHostAlloc", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    void* const memory = ::mmap(nullptr, pages(length), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return abi::kOutOfMemory;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.pinned[reinterpret_cast<uint64_t>(memory)] = {.length = pages(length), .buffer_id = s.next_id++, .allocated = true};
    *address = memory;
    return abi::kSuccess;
}

FAKE_API Status cuMemFreeHost(void* address) {
    const Call call("cuMemFreeHost", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.pinned.find(reinterpret_cast<uint64_t>(address));
    if (found == s.pinned.end() || !found->second.allocated) return abi::kInvalidValue;
    ::munmap(address, found->second.length);
    s.pinned.erase(found);
    return abi::kSuccess;
}

FAKE_API Status cuMemHostRegister_v2(void* address, size_t length, uint32_t) {
    const Call call("cuMemHostRegister_v2", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto start = reinterpret_cast<uint64_t>(address);
    const auto next = s.pinned.lower_bound(start);
    if (length == 0) return abi::kInvalidValue;
    if (pinned_at(start) != s.pinned.end() || (next != s.pinned.end() && next->first - start < length))
        return abi::kHostMemoryAlreadyRegistered;
    s.pinned[start] = {.length = length, .buffer_id = s.next_id++};
    return abi::kSuccess;
}

FAKE_API Status cuMemHostUnregister(void* address) {
    const Call call("cuMemHostUnregister", Needs::kContext, true);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto found = s.pinned.find(reinterpret_cast<uint64_t>(address));
    if (found == s.pinned.end() || found->second.allocated) return abi::kHostMemoryNotRegistered;
    s.pinned.erase(found);
    return abi::kSuccess;
}

FAKE_API Status cuMemHostGetDevicePointer_v2(abi::DevicePointer* device, void* address, uint32_t) {
    const Call call("cuMemHostGetDevicePointer_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    const std::lock_guard lock(state().mutex);
    *device = reinterpret_cast<uint64_t>(address);
    return pinned_at(*device) != state().pinned.end() ? abi::kSuccess : abi::kInvalidValue;
}

// ---- questions

FAKE_API Status cuPointerGetAttributes(uint32_t number, int* attributes, void** data, abi::DevicePointer address) {
    const Call call("cuPointerGetAttributes", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto mapping = mapping_at(address);
    const auto pinned = pinned_at(address);
    for (uint32_t i = 0; i < number; ++i) {
        bool known = true;
        if (mapping != s.mappings.end()) known = answer_device(attributes[i], data[i], address, mapping->second);
        else if (pinned != s.pinned.end()) known = answer_pinned(attributes[i], data[i], address, pinned->first, pinned->second);
        else if (attributes[i] == abi::kAttributeDeviceOrdinal) answer(data[i], int32_t{-2});
        else answer(data[i], uint32_t{0});
        if (!known) return abi::kInvalidValue;
    }
    return abi::kSuccess;
}

FAKE_API Status cuPointerGetAttribute(void* data, int attribute, abi::DevicePointer address) {
    const Call call("cuPointerGetAttribute", Needs::kInit);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (const auto mapping = mapping_at(address); mapping != s.mappings.end())
        return answer_device(attribute, data, address, mapping->second) ? abi::kSuccess : abi::kInvalidValue;
    if (const auto pinned = pinned_at(address); pinned != s.pinned.end())
        return answer_pinned(attribute, data, address, pinned->first, pinned->second) ? abi::kSuccess : abi::kInvalidValue;
    return abi::kInvalidValue;
}

FAKE_API Status cuPointerSetAttribute(const void*, int, abi::DevicePointer) {
    return Call("cuPointerSetAttribute", Needs::kContext).status;
}

FAKE_API Status cuMemGetAddressRange_v2(abi::DevicePointer* start, size_t* length, abi::DevicePointer address) {
    const Call call("cuMemGetAddressRange_v2", Needs::kContext);
    if (call.status != abi::kSuccess) return call.status;
    State& s = state();
    const std::lock_guard lock(s.mutex);
    const auto mapping = mapping_at(address);
    if (mapping == s.mappings.end()) return abi::kNotFound;
    *start = mapping->first;
    *length = mapping->second.length;
    return abi::kSuccess;
}

}  // namespace fake
