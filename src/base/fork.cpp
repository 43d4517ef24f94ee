// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace mooncake {

namespace {

constexpr size_t kWords = 1024;
constinit std::array<std::atomic<uint64_t>, kWords> tracked{};  // one bit per descriptor
constinit std::atomic<uint32_t> generation{0};

void after_fork_in_child() {
    generation.fetch_add(1, std::memory_order_relaxed);
    for (size_t word = 0; word < kWords; ++word) {
        for (uint64_t bits = tracked[word].exchange(0, std::memory_order_relaxed); bits != 0; bits &= bits - 1)
            ::close(static_cast<int>(word * 64 + static_cast<size_t>(__builtin_ctzll(bits))));
    }
}

[[maybe_unused]] const int installed = ::pthread_atfork(nullptr, nullptr, after_fork_in_child);

bool trackable(int fd) noexcept { return fd >= 0 && static_cast<size_t>(fd) < kWords * 64; }
uint64_t bit(int fd) noexcept { return uint64_t{1} << (fd % 64); }

}  // namespace

uint32_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

void close_in_child(int fd) noexcept {
    if (trackable(fd)) tracked[static_cast<size_t>(fd) / 64].fetch_or(bit(fd), std::memory_order_relaxed);
}

void keep_in_child(int fd) noexcept {
    if (trackable(fd)) tracked[static_cast<size_t>(fd) / 64].fetch_and(~bit(fd), std::memory_order_relaxed);
}

}  // namespace mooncake
