// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/scratch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"

namespace mooncake::tcp {
namespace {

constexpr size_t kPage = 4096;

/// One page that is there and one behind it that is not, or may not be written.
struct Cliff {
    explicit Cliff(int protection)
        : bytes(static_cast<std::byte*>(::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        MC_CHECK(bytes != MAP_FAILED && ::mprotect(bytes + kPage, kPage, protection) == 0);
    }
    ~Cliff() { ::munmap(bytes, 2 * kPage); }
    std::byte* const bytes;
};

TEST(TcpScratch, CopiesToAndFromManyPieces) {
    std::vector<std::byte> memory(60'000);
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 31 >> 3);
    std::vector<std::byte> copy(memory.size());
    for (const size_t piece : {size_t{7}, size_t{100}, size_t{60'000}}) {
        std::vector<iovec> from, to;
        for (size_t at = 0; at < memory.size(); at += piece) {
            const size_t length = std::min(piece, memory.size() - at);
            from.push_back({.iov_base = memory.data() + at, .iov_len = length});
            to.push_back({.iov_base = copy.data() + at, .iov_len = length});
        }
        std::fill(copy.begin(), copy.end(), std::byte{0});
        Scratch scratch;
        EXPECT_EQ(scratch.load(from, memory.size()), memory.size());
        EXPECT_EQ(scratch.store(to, memory.size() - 5), memory.size() - 5);
        EXPECT_TRUE(std::equal(memory.begin(), memory.end() - 5, copy.begin()));
        EXPECT_EQ(copy.back(), std::byte{0}) << "no more than it was asked for";
    }
}

TEST(TcpScratch, StopsWhereMemoryEndsInsteadOfCrashing) {
    for (const int protection : {PROT_NONE, PROT_READ}) {
        const Cliff cliff(protection);
        const iovec pieces[] = {{.iov_base = cliff.bytes, .iov_len = 10}, {.iov_base = cliff.bytes + kPage - 100, .iov_len = 200}};
        Scratch scratch;
        std::memset(scratch.data(), 7, 210);
        EXPECT_EQ(scratch.store(pieces, 210), 110u);
        EXPECT_EQ(cliff.bytes[kPage - 1], std::byte{7});
        EXPECT_EQ(scratch.load(pieces, 210), protection == PROT_NONE ? 110u : 210u);
    }
}

TEST(TcpScratch, ManyThreadsHaveTheirOwn) {
    std::atomic<int> wrong{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 100; ++t) {
        threads.emplace_back([&wrong, t] {
            std::byte bytes[100];
            const iovec piece{.iov_base = bytes, .iov_len = sizeof bytes};
            for (int i = 0; i < 200; ++i) {
                Scratch scratch;
                std::memset(scratch.data(), t, sizeof bytes);
                if (scratch.store({&piece, 1}, sizeof bytes) != sizeof bytes) ++wrong;
                for (const std::byte byte : bytes)
                    if (byte != static_cast<std::byte>(t)) ++wrong;
            }
        });
    }
    threads.clear();
    EXPECT_EQ(wrong, 0);
}

TEST(TcpScratch, AForkedChildDoesNotWriteIntoTheBufferOfItsParent) {
    Scratch scratch;
    std::memset(scratch.data(), 1, 100);
    const pid_t child = ::fork();
    if (child == 0) {
        for (size_t i = 0; i < Scratch::kPlaces; ++i) {
            Scratch own;
            std::memset(own.data(), 2, 100);
        }
        std::_Exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(scratch.data()[50], std::byte{1});
}

}  // namespace
}  // namespace mooncake::tcp
