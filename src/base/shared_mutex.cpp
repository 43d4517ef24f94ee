// SPDX-License-Identifier: Apache-2.0
#include "base/futex.h"
#include "base/thread_annotations.h"
#include "base/thread_number.h"

namespace mooncake {

// Why it excludes: a reader counts itself in and then looks for a writer; a writer shows itself and then looks for readers. Both in one
// order that all agree on (seq_cst), so at least one of them sees the other.

void SharedMutex::lock_shared() noexcept {
    std::atomic<uint32_t>& readers = slots_[thread_number() % kSlots].readers;
    for (;;) {
        readers.fetch_add(1, std::memory_order_seq_cst);
        if (writing_.load(std::memory_order_seq_cst) == 0) return;
        leave(readers);
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        while (writing_.load(std::memory_order_seq_cst) != 0) futex_wait(writing_, 1, Deadline::never());
        sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    }
}

void SharedMutex::unlock_shared() noexcept { leave(slots_[thread_number() % kSlots].readers); }

void SharedMutex::leave(std::atomic<uint32_t>& readers) noexcept {
    if (readers.fetch_sub(1, std::memory_order_seq_cst) == 1 && writing_.load(std::memory_order_seq_cst) != 0) futex_wake_all(&readers);
}

void SharedMutex::lock() {
    writers_.lock();
    writing_.store(1, std::memory_order_seq_cst);
    for (Slot& slot : slots_)
        for (uint32_t inside = 0; (inside = slot.readers.load(std::memory_order_seq_cst)) != 0;)
            futex_wait(slot.readers, inside, Deadline::never());
}

void SharedMutex::unlock() {
    writing_.store(0, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) != 0) futex_wake_all(&writing_);
    writers_.unlock();
}

}  // namespace mooncake
