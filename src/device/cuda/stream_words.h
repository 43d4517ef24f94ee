// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "device/cuda/driver.h"

namespace mooncake::cuda {

/// A number in pinned memory that streams wait for, and that only grows: who waits for less than it is goes on. So a word may serve the next
/// stream as soon as it was raised, whether or not the last one has looked.
struct alignas(64) StreamWord {
    std::atomic<uint64_t> value{0};
    std::atomic<uint32_t> raised{0};  // how often; for threads that sleep

    void raise(uint64_t to) noexcept;
    /// Waits on this thread. Calls nothing of CUDA.
    void wait_for(uint64_t wanted) noexcept;
};

/// The words of a process. Made by the page, and kept. Thread-safe; callers are inside a Scope.
class StreamWords {
public:
    /// A word, and the number that nobody has waited for yet.
    struct Ticket {
        StreamWord* word = nullptr;
        uint64_t number = 0;
    };
    Result<Ticket> take(Driver& driver, const Scope& scope, int device);
    /// When the word has been raised to its number.
    void put(const Ticket& ticket) noexcept;
    void give_back(Driver& driver) noexcept;

private:
    struct Page {
        void* memory = nullptr;
        int device = 0;
    };
    Mutex mutex_;
    std::vector<Ticket> free_ MC_GUARDED_BY(mutex_);  // with the number they were raised to
    std::vector<Page> pages_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::cuda
