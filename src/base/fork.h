// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/format.h"

namespace mooncake {

/// How often this process image was forked since the library was loaded. An object that remembers the value of its birth
/// can tell in a child that its threads are gone, and then does nothing at all.
MC_EXPORT uint32_t fork_generation() noexcept;

/// Descriptors named here are closed in a forked child, so that a child which never calls exec does not keep our
/// connections alive after we died. Descriptors above 65535 are not tracked.
void close_in_child(int fd) noexcept;
/// Before the descriptor is closed.
void keep_in_child(int fd) noexcept;

/// One T of this process, made when first asked for, and anew in a forked child: there a mutex of the parent's T may be held for ever, by a thread
/// that does not exist. Never destroyed: threads may be inside while the process ends. Thread-safe; constinit.
template <typename T>
class PerProcess {
public:
    T& get() {
        Born* now = born_.load(std::memory_order_acquire);
        while (now == nullptr || now->generation != fork_generation()) {
            auto made = std::make_unique<Born>();
            if (born_.compare_exchange_strong(now, made.get(), std::memory_order_acq_rel)) now = made.release();
        }
        return now->value;
    }

private:
    struct Born {
        T value{};
        const uint32_t generation = fork_generation();
    };
    std::atomic<Born*> born_{nullptr};
};

}  // namespace mooncake
