// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <memory>

#include "base/options.h"
#include "base/thread_annotations.h"
#include "device/cuda/driver.h"
#include "device/cuda/host_pins.h"
#include "device/cuda/imports.h"
#include "device/cuda/lane.h"
#include "device/cuda/pointers.h"
#include "device/cuda/stream_words.h"
#include "device/device.h"

namespace mooncake::cuda {

/// Memory of NVIDIA GPUs: what cudaMalloc, pools and mapped addresses (expandable segments) give, and managed memory. Always there: while
/// nobody in this process has loaded libcuda it knows no memory, and costs a look for it at each registration. Thread-safe.
class CudaDevice final : public Device {
public:
    explicit CudaDevice(CudaOptions options, FindLibrary find = find_loaded_library);
    ~CudaDevice() override;

    MemoryKind kind() const noexcept override { return MemoryKind::kCuda; }
    Result<std::optional<MemoryInfo>> describe(const void* address, uint64_t length) override;
    Result<> copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) override;

    /// Pinned, for all GPUs of the process.
    Result<std::byte*> allocate_host(uint64_t length) override;
    void free_host(std::byte* memory) noexcept override;

    void offer_host(std::byte* start, uint64_t length) override { pins_.offer(start, length); }
    void take_back_host(std::byte* start) noexcept override { pins_.take_back(start); }
    /// Of what was offered.
    uint64_t pinned_bytes() const { return pins_.pinned_bytes(); }
    Result<std::unique_ptr<PendingWork>> follow(const WorkPoint& point) override;
    Result<std::unique_ptr<PendingWork>> unnamed_work(const void* address) override;
    Result<std::unique_ptr<StreamGate>> hold(const WorkPoint& stream) override;
    Result<std::string> state() override;

    bool shares() const noexcept override { return true; }
    Result<std::vector<MemoryInfo>> allocations(const void* address, uint64_t length) override;
    Result<MemoryTicket> share(const MemoryInfo& info) override;
    Result<MemoryFile> file_of(const MemoryInfo& info, const MemoryTicket& ticket) override;
    bool still_there(const MemoryInfo& info) noexcept override;
    Result<MemoryInfo> open(const MemoryTicket& ticket, const MemoryFile& file) override;
    void close(uint64_t base) noexcept override;
    std::string_view way_of(const MemoryTicket& ticket) const noexcept override;

    Driver& driver() noexcept { return driver_; }

private:
    struct Described {
        uint64_t end = 0;
        uint64_t allocation = 0;
    };
    static constexpr size_t kDescribedMax = 262'144;

    Lanes& lanes(int device);
    /// Chunks that are mapped side by side are remembered, and may go, one by one.
    void remember(std::span<const Pointer> mappings);
    void remember(const Pointer& mapping) MC_REQUIRES(mutex_);
    /// Whether the memory is that which was registered there.
    Result<> admit(const Pointer& pointer);
    /// Those that somebody in this process uses.
    std::vector<int> devices_in_use();
    /// Which GPUs a stream is of: one, or, for a default stream that does not say, all in use.
    Result<std::vector<int>> devices_of(const WorkPoint& stream);
    /// The GPU with this identity, if it has a context, else another that has one.
    Result<int> device_in_use(const abi::Uuid& uuid);

    const CudaOptions options_;
    Driver driver_;
    HostPins pins_{driver_, options_.pin_max, options_.pin_chunk};
    Imports imports_{driver_};
    Mutex mutex_;
    std::array<std::unique_ptr<Lanes>, Driver::kDevicesMax> lanes_ MC_GUARDED_BY(mutex_);
    // What was found when memory was described, by its start; apart. When there is too much of it, it is forgotten: then memory that is
    // freed and allocated again behind our back is not noticed.
    std::map<uint64_t, Described> described_ MC_GUARDED_BY(mutex_);
    StreamWords words_;
};

}  // namespace mooncake::cuda
