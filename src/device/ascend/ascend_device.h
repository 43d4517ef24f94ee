// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/ascend_options.h"
#include "base/thread_annotations.h"
#include "device/ascend/library.h"
#include "device/device.h"

namespace mooncake::ascend {

/// Memory of Ascend NPUs. The runtime is neither loaded nor initialised for it: where nobody has brought it into the process, no pointer can be an NPU's.
/// Thread-safe.
class AscendDevice final : public Device {
public:
    /// How long a device may take for what was asked of it at once, before it counts as hung.
    static constexpr Duration kPatience = 30s;

    explicit AscendDevice(const AscendOptions& options) : query_{.files = options.libraries, .home = options.home} {}
    ~AscendDevice() override;

    MemoryKind kind() const noexcept override { return MemoryKind::kAscend; }
    Result<std::optional<MemoryInfo>> describe(const void* address, uint64_t length) override;
    Result<> copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) override;
    Result<std::byte*> allocate_host(uint64_t length) override;
    void free_host(std::byte* memory) noexcept override;
    Result<std::string> state() override;

    /// Copies that could not go in a batch.
    uint64_t single_copies() const noexcept { return single_copies_.load(std::memory_order_relaxed); }

private:
    /// A stream of a device that one call has to itself: who aborts it ends nobody else's copies.
    struct Stream {
        int device = -1;
        abi::Stream stream = nullptr;
    };
    using Parts = std::vector<CopyPart>;

    Result<std::shared_ptr<const Acl>> runtime();
    Result<int> device_at(const Acl& acl, const void* address);
    Result<> copy_on(const Acl& acl, int device, int kind, std::span<const CopyPart> parts);
    /// How many of them it has copied: all, or fewer where it cannot do it.
    Result<size_t> copy_batches(const Acl& acl, int device, int kind, std::span<const CopyPart> parts);
    Result<> copy_single(const Acl& acl, int device, int kind, std::span<const CopyPart> parts);
    Result<> wait(const Acl& acl, Stream& stream);
    Result<Stream> take_stream(const Acl& acl, int device);
    void return_stream(Stream stream);
    Result<abi::Context> context_of(const Acl& acl, int device);

    const LibraryQuery query_;
    std::atomic<uint64_t> single_copies_{0};
    Mutex mutex_;
    std::map<uint64_t, std::pair<uint64_t, int>> described_ MC_GUARDED_BY(mutex_);  // start -> end, device
    std::map<int, abi::Context> contexts_ MC_GUARDED_BY(mutex_);
    std::map<int, bool> no_batches_ MC_GUARDED_BY(mutex_);  // those that said so
    std::vector<Stream> idle_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::ascend
