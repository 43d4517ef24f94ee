// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "base/unique_fd.h"
#include "device/device.h"

namespace mooncake::testing {

/// A device without hardware: its memory is a file that is mapped twice. The address handed out is mapped without access, so that any
/// touch by CPU crashes and any system call answers EFAULT; copy() uses the other mapping. It may stand for any kind but the host's.
/// Thread-safe.
class FakeDevice final : public Device {
public:
    explicit FakeDevice(MemoryKind kind = MemoryKind::kCuda) : kind_(kind) {}
    ~FakeDevice() override;

    /// Never fails: a test without memory has nothing to say.
    std::byte* allocate(uint64_t length);
    void free(std::byte* address);

    /// What a program on the device would see and do.
    void write(std::byte* to, std::span<const std::byte> from);
    std::vector<std::byte> read(const std::byte* from, uint64_t length);

    uint64_t copies() const noexcept { return copies_.load(std::memory_order_relaxed); }
    /// From now on copy() fails.
    void break_down() noexcept { broken_.store(true, std::memory_order_relaxed); }
    /// From now on whoever calls copy() stays in there and touches nothing, until resume().
    void hold();
    void resume();
    /// Who stays in there now.
    unsigned held() const;

    MemoryKind kind() const noexcept override { return kind_; }
    Result<std::optional<MemoryInfo>> describe(const void* address, uint64_t length) override;
    Result<> copy(MemoryKind to, MemoryKind from, std::span<const CopyPart> parts) override;

private:
    struct Allocation {
        uint64_t length = 0;
        std::byte* alias = nullptr;
        uint64_t number = 0;
    };

    /// Where the CPU finds the bytes of a device address; the address itself if it is not ours.
    std::byte* alias_of(const std::byte* address, uint64_t length) MC_REQUIRES(mutex_);

    void wait_while_held();

    const MemoryKind kind_;
    mutable Mutex hold_mutex_;
    std::condition_variable_any resumed_;
    bool hold_ MC_GUARDED_BY(hold_mutex_) = false;
    unsigned held_ MC_GUARDED_BY(hold_mutex_) = 0;
    std::atomic<uint64_t> copies_{0};
    std::atomic<bool> broken_{false};
    Mutex mutex_;  // held while copying: memory is not freed under a copy
    std::map<const std::byte*, Allocation> allocations_ MC_GUARDED_BY(mutex_);
    uint64_t next_number_ MC_GUARDED_BY(mutex_) = 1;
};

}  // namespace mooncake::testing
