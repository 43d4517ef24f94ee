// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/stream_words.h"

#include <new>

#include "base/futex.h"

namespace mooncake::cuda {

void StreamWord::raise(uint64_t to) noexcept {
    value.store(to, std::memory_order_release);
    raised.fetch_add(1, std::memory_order_release);
    futex_wake_all(&raised);
}

void StreamWord::wait_for(uint64_t wanted) noexcept {
    while (true) {
        const uint32_t seen = raised.load(std::memory_order_acquire);
        if (value.load(std::memory_order_acquire) >= wanted) return;
        futex_wait(raised, seen, Deadline::never());
    }
}

Result<StreamWords::Ticket> StreamWords::take(Driver& driver, const Scope& scope, int device) {
    constexpr size_t kPageBytes = 4096;
    Lock lock(mutex_);
    if (free_.empty()) {
        constexpr size_t kWords = kPageBytes / sizeof(StreamWord);
        pages_.reserve(pages_.size() + 1);
        free_.reserve((pages_.size() + 1) * kWords);  // giving one back needs no memory
        void* memory = nullptr;
        MC_RETURN_IF_ERROR(
            driver.check(device, "cuMemHostAlloc", scope->host_allocate(&memory, kPageBytes, abi::kHostPortable | abi::kHostDeviceMap)));
        pages_.push_back({.memory = memory, .device = device});
        auto* const words = static_cast<StreamWord*>(memory);
        for (size_t i = 0; i < kWords; ++i) free_.push_back({.word = new (&words[i]) StreamWord});
    }
    Ticket ticket = free_.back();
    free_.pop_back();
    ++ticket.number;
    return ticket;
}

void StreamWords::put(const Ticket& ticket) noexcept {
    Lock lock(mutex_);
    free_.push_back(ticket);
}

void StreamWords::give_back(Driver& driver) noexcept {
    Lock lock(mutex_);
    free_.clear();
    for (const Page& page : pages_)
        if (const auto scope = Scope::enter(driver, page.device)) driver.notice((*scope)->host_free(page.memory));
    pages_.clear();
}

}  // namespace mooncake::cuda
