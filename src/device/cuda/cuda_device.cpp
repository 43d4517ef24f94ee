// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.h"

#include "device/cuda/copy_call.h"

namespace mooncake::cuda {

CudaDevice::CudaDevice(CudaOptions options, FindLibrary find) : options_(options), driver_(std::move(find)) {}

CudaDevice::~CudaDevice() {
    Lock lock(mutex_);
    for (const auto& lanes : lanes_)
        if (lanes != nullptr)
            if (const auto scope = Scope::enter(driver_, lanes->device())) lanes->give_back(*scope);
    words_.give_back(driver_);
}

Result<std::optional<MemoryInfo>> CudaDevice::describe(const void* address, uint64_t length) {
    MC_ASSIGN_OR_RETURN(const auto mappings, mappings_of(driver_, reinterpret_cast<uint64_t>(address), length));
    if (mappings.empty()) return std::nullopt;
    remember(mappings);
    const Pointer &first = mappings.front(), &last = mappings.back();
    return MemoryInfo{.kind = MemoryKind::kCuda,
                      .device = first.device,
                      .base = first.start,
                      .length = last.start + last.length - first.start,
                      .allocation = first.allocation};
}

Result<std::vector<MemoryInfo>> CudaDevice::allocations(const void* address, uint64_t length) {
    MC_ASSIGN_OR_RETURN(const auto mappings, mappings_of(driver_, reinterpret_cast<uint64_t>(address), length));
    std::vector<MemoryInfo> all;
    for (const Pointer& one : mappings)
        all.push_back(
            {.kind = MemoryKind::kCuda, .device = one.device, .base = one.start, .length = one.length, .allocation = one.allocation});
    return all;
}

void CudaDevice::remember(std::span<const Pointer> mappings) {
    Lock lock(mutex_);
    for (const Pointer& one : mappings) remember(one);
}

void CudaDevice::remember(const Pointer& mapping) {
    if (mapping.allocation == 0) return;
    const uint64_t end = mapping.start + mapping.length;
    if (const auto same = described_.find(mapping.start);
        same != described_.end() && same->second.end == end && same->second.allocation == mapping.allocation)
        return;
    auto overlapped = described_.upper_bound(mapping.start);
    if (overlapped != described_.begin() && std::prev(overlapped)->second.end > mapping.start) --overlapped;
    while (overlapped != described_.end() && overlapped->first < end) overlapped = described_.erase(overlapped);
    if (described_.size() >= kDescribedMax) described_.clear();
    described_[mapping.start] = {.end = end, .allocation = mapping.allocation};
}

Result<> CudaDevice::admit(const Pointer& pointer) {
    Lock lock(mutex_);
    const auto next = described_.upper_bound(pointer.start);
    if (next == described_.begin()) return {};
    const Described& described = std::prev(next)->second;
    if (pointer.start >= described.end || described.allocation == pointer.allocation) return {};
    return fail(Code::kNotRegistered,
                "the memory of GPU {} at {:#x} was freed while it was registered, and its address given to other memory", pointer.device,
                pointer.start);
}

Lanes& CudaDevice::lanes(int device) {
    {
        Lock lock(mutex_);
        if (const auto& lanes = lanes_[static_cast<size_t>(device)]; lanes != nullptr) return *lanes;
    }
    imports_.let_in(device);  // what was opened before this GPU was used
    Lock lock(mutex_);
    auto& lanes = lanes_[static_cast<size_t>(device)];
    if (lanes == nullptr) lanes = std::make_unique<Lanes>(driver_, device);
    return *lanes;
}

Result<> CudaDevice::copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) {
    if (parts.empty()) return {};
    if (driver_.silent() || driver_.functions() == nullptr) return fail(Code::kUnavailable, "CUDA cannot be used in this process");
    const std::function<Lanes&(int)> find_lanes = [this](int device) -> Lanes& { return lanes(device); };
    const std::function<Result<>(const Pointer&)> admit_pointer = [this](const Pointer& pointer) { return admit(pointer); };
    const CopyMeans means{
        .driver = driver_, .lanes = find_lanes, .admit = admit_pointer, .pins = pins_, .caller_sync = options_.caller_sync};
    return CopyCall(means, to, from).run(parts);
}

Result<std::byte*> CudaDevice::allocate_host(uint64_t length) {
    if (driver_.silent()) return fail(Code::kUnavailable, "CUDA cannot be used in this process");
    MC_ASSIGN_OR_RETURN(const int device, device_in_use({}));
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
    void* memory = nullptr;
    MC_RETURN_IF_ERROR(driver_.check(device, "cuMemHostAlloc", scope->host_allocate(&memory, length, abi::kHostPortable)));
    return static_cast<std::byte*>(memory);
}

void CudaDevice::free_host(std::byte* memory) noexcept {
    if (driver_.silent()) return;
    const auto device = device_in_use({});
    if (!device) return;
    if (const auto scope = Scope::enter(driver_, *device)) driver_.notice((*scope)->host_free(memory));
}

}  // namespace mooncake::cuda
