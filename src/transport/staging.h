// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "device/device.h"
#include "transport/device_bytes.h"

namespace mooncake {

class Staging;

/// Pinned host memory lent by a Staging, in slots of one length. Gives them back with its end. Not thread-safe.
class StagingSlots {
public:
    static constexpr uint64_t kBytes = 1 << 20;  // of a slot
    static constexpr size_t count_for(uint64_t bytes) noexcept { return static_cast<size_t>((bytes + kBytes - 1) / kBytes); }

    StagingSlots() = default;
    StagingSlots(StagingSlots&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), slots_(std::move(other.slots_)) {}
    StagingSlots& operator=(StagingSlots&& other) noexcept {
        release();
        owner_ = std::exchange(other.owner_, nullptr);
        slots_ = std::move(other.slots_);
        return *this;
    }
    ~StagingSlots() { release(); }

    void release() noexcept;
    bool empty() const noexcept { return owner_ == nullptr; }
    /// Calls with address and length of what lies at [offset, offset + length), in order.
    template <typename Call>
    void pieces(uint64_t offset, uint64_t length, const Call& call) const {
        while (length > 0) {
            const uint64_t within = offset % kBytes, now = std::min(length, kBytes - within);
            call(slots_[static_cast<size_t>(offset / kBytes)] + within, now);
            offset += now;
            length -= now;
        }
    }

private:
    friend class Staging;
    Staging* owner_ = nullptr;
    std::vector<std::byte*> slots_;
};

/// Something to do on a thread that may call a device, with slots in hand.
class StagingTask {
public:
    virtual ~StagingTask() = default;
    /// Soon over: the thread is everybody's. It finds its slots here, or why there are none.
    virtual void run() noexcept = 0;

    StagingSlots slots;
    size_t slots_wanted = 0;              // to be lent before run(); 0: it has them, or needs none
    MemoryKind kind = MemoryKind::kCuda;  // of the device that copies
    std::optional<Error> trouble;
};

/// Between sockets and memory of devices: pinned host memory of a bounded size, made when first needed and kept, and a few threads that call the
/// devices, so that no thread of a network does. Tasks that hold slots go first, since they give slots back; those that want some wait in the
/// order in which they came. Nobody ever gets other memory than pinned, where the device makes a difference.
/// Thread-safe. Slots and tasks must be gone before it is destroyed.
class Staging {
public:
    struct Limits {
        size_t slots = 32;
        unsigned threads = 2;
    };
    Staging(const Devices& devices, std::string thread_name, Limits limits, DeviceBytes copied = {});
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    const Devices& devices() const noexcept { return devices_; }
    const DeviceBytes& copied() const noexcept { return copied_; }
    /// At most as many are ever lent to one task.
    size_t slots_max() const noexcept { return limits_.slots; }

    /// Slots at once, or none: where they would have to be waited for or made. Calls no device.
    StagingSlots try_take(size_t count) noexcept;
    /// run()s it, once. kUnavailable, and it will not be run: there is no thread to be had.
    Result<> post(std::shared_ptr<StagingTask> task);
    /// True: it has not been run, and will not be.
    bool withdraw(const StagingTask& task);

    size_t slots_made() const;
    size_t slots_free() const;

private:
    friend class StagingSlots;

    void give_back(std::vector<std::byte*> slots) noexcept;
    void run(std::stop_token stop);
    /// The next that can be run; null: there is none. One that needs slots gets them, except for those that have yet to be made.
    std::shared_ptr<StagingTask> next(size_t& missing) MC_REQUIRES(mutex_);
    Result<std::byte*> make_slot(MemoryKind kind);
    void make_missing(StagingTask& task, size_t missing) noexcept;

    struct Made {
        std::byte* memory = nullptr;
        Device* device = nullptr;  // null: plain memory
    };

    const Devices& devices_;
    const std::string thread_name_;
    const Limits limits_;
    const DeviceBytes copied_;
    const uint32_t birth_;

    mutable Mutex mutex_;
    std::condition_variable_any work_;
    std::vector<Made> made_ MC_GUARDED_BY(mutex_);
    size_t making_ MC_GUARDED_BY(mutex_) = 0;  // in addition
    std::vector<std::byte*> free_ MC_GUARDED_BY(mutex_);
    std::deque<std::shared_ptr<StagingTask>> ready_ MC_GUARDED_BY(mutex_);
    std::deque<std::shared_ptr<StagingTask>> waiting_ MC_GUARDED_BY(mutex_);  // for slots
    unsigned idle_ MC_GUARDED_BY(mutex_) = 0;                                 // threads without work
    std::vector<std::jthread> threads_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
