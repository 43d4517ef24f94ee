// SPDX-License-Identifier: Apache-2.0
#include "base/memory_reserve.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <mutex>
#include <new>

#include "base/thread_annotations.h"

namespace mooncake {

namespace {

/// Allocates nothing itself: it is asked when there is nothing.
class Range {
public:
    bool keep(size_t bytes) {
        Lock lock(mutex_);
        if (piece_bytes_ != 0) return false;
        piece_bytes_ = bytes / kPieces;
        whole_.store(fill(), std::memory_order_release);
        return true;
    }
    bool whole() noexcept {
        if (whole_.load(std::memory_order_acquire)) return true;
        Lock lock(mutex_);
        const bool filled = fill();
        whole_.store(filled, std::memory_order_release);
        return filled;
    }
    bool give_up_a_piece() noexcept {
        Lock lock(mutex_);
        for (void*& piece : pieces_) {
            if (piece == nullptr) continue;
            whole_.store(false, std::memory_order_release);
            ::munmap(piece, piece_bytes_);
            piece = nullptr;
            return true;
        }
        return false;
    }

private:
    static constexpr size_t kPieces = 8;

    bool fill() noexcept MC_REQUIRES(mutex_) {
        for (void*& piece : pieces_) {
            if (piece != nullptr) continue;
            void* const range = ::mmap(nullptr, piece_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (range == MAP_FAILED) return false;
            piece = range;
        }
        return true;
    }

    std::atomic<bool> whole_{true};
    Mutex mutex_;
    size_t piece_bytes_ MC_GUARDED_BY(mutex_) = 0;  // 0: nothing is kept
    std::array<void*, kPieces> pieces_ MC_GUARDED_BY(mutex_){};
};

Range& range() {
    static Range* const one = new Range;  // never deleted: somebody may allocate to the end
    return *one;
}
std::atomic<std::new_handler> handler_before{nullptr};

void on_no_memory() {
    if (range().give_up_a_piece()) return;
    if (const std::new_handler before = handler_before.load()) return before();
    throw std::bad_alloc();
}

}  // namespace

void MemoryReserve::keep(size_t bytes) {
    if (range().keep(bytes)) handler_before = std::set_new_handler(on_no_memory);
}

bool MemoryReserve::whole() noexcept { return range().whole(); }

}  // namespace mooncake
