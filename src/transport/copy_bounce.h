// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_annotations.h"

namespace mooncake {

/// Host memory of our own, between memory that only a device may touch and memory that only the kernel may touch. Made when first needed, kept for
/// the next copy, and as many as copies run at once, which is few. Thread-safe. Must outlive what it lent.
class BounceBuffers {
public:
    static constexpr uint64_t kBytes = 1 << 20;

    /// Gives it back with its own end.
    class Buffer {
    public:
        Buffer(BounceBuffers& owner, std::unique_ptr<std::byte[]> memory) : owner_(owner), memory_(std::move(memory)) {}
        ~Buffer() { owner_.give_back(std::move(memory_)); }
        Buffer(const Buffer&) = delete;
        Buffer& operator=(const Buffer&) = delete;

        std::byte* data() const noexcept { return memory_.get(); }

    private:
        BounceBuffers& owner_;
        std::unique_ptr<std::byte[]> memory_;
    };

    Buffer take();

private:
    static constexpr size_t kIdleMax = 4;

    void give_back(std::unique_ptr<std::byte[]> memory);

    Mutex mutex_;
    std::vector<std::unique_ptr<std::byte[]>> idle_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
