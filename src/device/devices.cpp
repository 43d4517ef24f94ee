// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "base/options.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "device/host/host_device.h"

namespace mooncake {

std::string_view to_string(MemoryKind kind) noexcept {
    switch (kind) {
        case MemoryKind::kHost: return "host";
        case MemoryKind::kCuda: return "cuda";
        case MemoryKind::kAscend: return "ascend";
    }
    return "unknown";
}

Result<std::vector<MemoryInfo>> Device::allocations(const void* address, uint64_t length) {
    MC_ASSIGN_OR_RETURN(const auto info, describe(address, length));
    return info ? std::vector<MemoryInfo>{*info} : std::vector<MemoryInfo>();
}

Devices::Devices(std::vector<std::unique_ptr<Device>> others) : all_(std::move(others)) {
    all_.push_back(make_host_device());
    for (const auto& device : all_) {
        Device*& place = by_kind_[static_cast<size_t>(device->kind())];
        MC_CHECK(place == nullptr);
        place = device.get();
    }
}

Devices::~Devices() = default;

Devices& Devices::of_process() {
    // Never destroyed: engines may live until the very end of the process.
    static Devices& devices = *[] {
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::make_unique<cuda::CudaDevice>(load_cuda_options(process_environment())));
        return new Devices(std::move(others));
    }();
    return devices;
}

Result<MemoryInfo> Devices::describe(const void* address, uint64_t length) {
    if (address == nullptr || length == 0) return fail(Code::kInvalidArgument, "memory without address or length");
    if (length - 1 > UINT64_MAX - reinterpret_cast<uint64_t>(address))
        return fail(Code::kInvalidArgument, "[{}, +{}) wraps around", address, length);
    for (const auto& device : all_) {
        MC_ASSIGN_OR_RETURN(const auto info, device->describe(address, length));
        if (info) return *info;
    }
    return fail(Code::kInvalidArgument, "nothing is mapped at {}", address);
}

Device* Devices::between(MemoryKind one, MemoryKind other) const noexcept {
    if (one == MemoryKind::kHost) return by_kind_[static_cast<size_t>(other)];
    if (other == MemoryKind::kHost || other == one) return by_kind_[static_cast<size_t>(one)];
    return nullptr;
}

Result<> Devices::copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) const {
    Device* const device = between(to, from);
    if (device == nullptr)
        return fail(Code::kNotSupported, "nothing here copies from {} to {} memory", mooncake::to_string(from), mooncake::to_string(to));
    auto copied = device->copy(to, from, parts);
    if (copied || copied.error().code() == Code::kNotSupported || copied.error().code() == Code::kNoSpace) return copied;
    const Code code = copied.error().code() == Code::kTimedOut ? Code::kTimedOut : Code::kInvalidArgument;
    // Whatever it says: what failed is memory of this process, and no peer or link is to blame.
    return Unexpected(Error(code,
                            format_text("{} memory cannot be copied: {}", mooncake::to_string(device->kind()), copied.error().message()),
                            copied.error().system_errno()));
}

HostOffer::HostOffer(const Devices& devices, std::byte* start, uint64_t length) : devices_(&devices), start_(start) {
    for (const auto& device : devices.all_) device->offer_host(start, length);
}

void HostOffer::take_back() noexcept {
    if (const Devices* const devices = std::exchange(devices_, nullptr))
        for (const auto& device : devices->all_) device->take_back_host(start_);
}

Result<std::unique_ptr<PendingWork>> Devices::follow(const WorkPoint& point) const {
    Device* const device = of(MemoryKind::kCuda);
    if (device == nullptr) return fail(Code::kNotSupported, "no device here has streams");
    return device->follow(point);
}

Result<std::unique_ptr<PendingWork>> Devices::unnamed_work(MemoryKind kind, const void* address) const {
    Device* const device = of(kind);
    if (device == nullptr) return nullptr;
    return device->unnamed_work(address);
}

Result<std::unique_ptr<StreamGate>> Devices::hold(const WorkPoint& stream) const {
    Device* const device = of(MemoryKind::kCuda);
    if (device == nullptr) return fail(Code::kNotSupported, "no device here has streams");
    return device->hold(stream);
}

}  // namespace mooncake
