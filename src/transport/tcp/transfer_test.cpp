// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/shared_memory.h"
#include "transport/tcp/testing/side.h"

namespace mooncake::tcp {
namespace {

using testing::fill;
using testing::run;
using testing::Side;

struct Cut {
    size_t local;
    size_t remote;
    size_t length;
};

/// Pieces of random sizes, in random order, with gaps, none overlapping: a different layout on each side.
std::vector<Cut> random_cuts(size_t total, size_t longest, std::mt19937_64& random) {
    std::vector<size_t> lengths;
    for (size_t used = 0;;) {
        const size_t length = 1 + random() % longest;
        if (used + length + 16 > total) break;
        lengths.push_back(length);
        used += length + 16;
    }
    std::vector<Cut> cuts(lengths.size());
    std::vector<size_t> order(lengths.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t Cut::*side : {&Cut::local, &Cut::remote}) {
        std::shuffle(order.begin(), order.end(), random);
        size_t at = 0;
        for (const size_t i : order) {
            cuts[i].*side = at + random() % 16;
            cuts[i].length = lengths[i];
            at += lengths[i] + 16;
        }
    }
    return cuts;
}

void move_and_verify(Side& here, Side& there, Peer& peer, Direction direction, const std::vector<Cut>& cuts, Submit how) {
    fill(here.memory, 1);
    fill(there.memory, 2);
    std::vector<std::byte> expected = direction == Direction::kWrite ? there.memory : here.memory;
    Completion completion;
    std::vector<Slice> slices;
    uint64_t total = 0;
    for (const Cut& cut : cuts) {
        slices.push_back(here.slice(cut.local, there.address(cut.remote), cut.length, completion));
        if (direction == Direction::kWrite) std::memcpy(expected.data() + cut.remote, here.memory.data() + cut.local, cut.length);
        else std::memcpy(expected.data() + cut.local, there.memory.data() + cut.remote, cut.length);
        total += cut.length;
    }
    const auto moved = run(peer, direction, slices, completion, how);
    ASSERT_TRUE(moved) << moved.error().to_string();
    EXPECT_EQ(*moved, total);
    EXPECT_TRUE((direction == Direction::kWrite ? there.memory : here.memory) == expected);
}

TEST(TcpTransfer, MovesBlocksOfAllSizesBothWays) {
    Side here(8 << 20), there(8 << 20);
    const auto peer = here.connect(there);
    std::mt19937_64 random(7);
    for (const size_t longest : {1, 16, 300, 5000, 70'000, 3'000'000}) {
        const size_t total = std::min<size_t>(8 << 20, longest * 5000);
        for (const Direction direction : {Direction::kWrite, Direction::kRead})
            for (const Submit how : {Submit::kWait, Submit::kLeave})
                move_and_verify(here, there, *peer, direction, random_cuts(total, longest, random), how);
    }
}

TEST(TcpTransfer, MovesOneLargeBlockBothWays) {
    constexpr size_t kBytes = (64 << 20) + 12345;
    Side here(kBytes), there(kBytes);
    const auto peer = here.connect(there);
    for (const Direction direction : {Direction::kWrite, Direction::kRead})
        move_and_verify(here, there, *peer, direction, {{.local = 1, .remote = 0, .length = kBytes - 1}}, Submit::kWait);
}

TEST(TcpTransfer, MovesAHundredThousandSlicesInOneBatch) {
    constexpr size_t kCount = 100'000;
    Side here(kCount * 64), there(kCount * 64);
    const auto peer = here.connect(there);
    std::vector<Cut> cuts(kCount);
    for (size_t i = 0; i < kCount; ++i) cuts[i] = {.local = i * 64, .remote = (kCount - 1 - i) * 64, .length = 48};
    for (const Submit how : {Submit::kWait, Submit::kLeave}) move_and_verify(here, there, *peer, Direction::kWrite, cuts, how);
    move_and_verify(here, there, *peer, Direction::kRead, cuts, Submit::kWait);
}

TEST(TcpTransfer, GivesEverySliceItsOwnCompletionIfAsked) {
    constexpr size_t kCount = 2000, kBlock = 4096;
    Side here(kCount * kBlock), there(kCount * kBlock);
    const auto peer = here.connect(there);
    fill(here.memory, 3);
    std::vector<Completion> completions(kCount);
    std::vector<Slice> slices;
    for (size_t i = 0; i < kCount; ++i) {
        completions[i].add(1);
        slices.push_back(here.slice(i * kBlock, there.address((kCount - 1 - i) * kBlock), kBlock, completions[i]));
    }
    peer->submit(Direction::kWrite, slices, Submit::kLeave);
    for (Completion& completion : completions) {
        ASSERT_TRUE(completion.wait(Deadline::after(60s)));
        EXPECT_EQ(completion.result().value_or(0), kBlock);
    }
    for (size_t i = 0; i < kCount; ++i)
        ASSERT_EQ(std::memcmp(here.memory.data() + i * kBlock, there.memory.data() + (kCount - 1 - i) * kBlock, kBlock), 0) << i;
}

TEST(TcpTransfer, ServesEightThreadsAtOnce) {
    constexpr size_t kThreads = 8, kPart = 1 << 20;
    Side here(kThreads * kPart), there(kThreads * kPart);
    const auto peer = here.connect(there);
    fill(here.memory, 4);
    const std::vector<std::byte> original = here.memory;
    std::atomic<int> wrong{0};
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937_64 random(t);
            std::byte* const mine = here.memory.data() + t * kPart;
            for (int round = 0; round < 20; ++round) {
                // Out and back again: the bytes must be the ones we sent.
                const auto cuts = random_cuts(kPart, 1 + random() % 60'000, random);
                for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
                    Completion completion;
                    std::vector<Slice> slices;
                    for (const Cut& cut : cuts)
                        slices.push_back(here.slice(t * kPart + cut.local, there.address(t * kPart + cut.remote), cut.length, completion));
                    if (!run(*peer, direction, slices, completion, random() % 2 ? Submit::kWait : Submit::kLeave)) ++wrong;
                    if (direction == Direction::kWrite)
                        for (const Cut& cut : cuts) std::memset(mine + cut.local, 0, cut.length);
                }
                if (std::memcmp(mine, original.data() + t * kPart, kPart) != 0) ++wrong;
            }
        });
    }
    threads.clear();
    EXPECT_EQ(wrong, 0);
}

TEST(TcpTransfer, BothSidesMayInitiateAtOnce) {
    Side a(4 << 20), b(4 << 20);
    const auto to_b = a.connect(b);
    const auto to_a = b.connect(a);
    fill(a.memory, 5);
    fill(b.memory, 6);
    std::atomic<int> wrong{0};
    const auto work = [&](Side& here, Side& there, Peer& peer, Direction direction, size_t offset) {
        for (int i = 0; i < 50; ++i) {
            Completion completion;
            const Slice slice = here.slice(offset, there.address(offset), 1 << 20, completion);
            if (!run(peer, direction, {&slice, 1}, completion)) ++wrong;
        }
    };
    {
        std::jthread one([&] { work(a, b, *to_b, Direction::kWrite, 0); });
        std::jthread two([&] { work(b, a, *to_a, Direction::kWrite, 1 << 20); });
        std::jthread three([&] { work(a, b, *to_b, Direction::kRead, 2 << 20); });
        std::jthread four([&] { work(b, a, *to_a, Direction::kRead, 3 << 20); });
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data(), 4 << 20), 0);
}

TEST(TcpTransfer, WorksWithOneLaneAndManyIoThreadsAndChecksums) {
    for (const auto& [lanes, threads, checksum] :
         std::vector<std::tuple<int, int, bool>>{{1, 1, false}, {16, 4, false}, {4, 2, true}, {1, 1, true}}) {
        EngineOptions options;
        options.tcp_lanes = lanes;
        options.tcp_io_threads = threads;
        options.tcp_checksum = checksum;
        Side here(6 << 20, options), there(6 << 20, options);
        const auto peer = here.connect(there);
        std::mt19937_64 random(11);
        for (const size_t longest : {4000, 900'000})
            for (const Direction direction : {Direction::kWrite, Direction::kRead})
                for (const Submit how : {Submit::kWait, Submit::kLeave})
                    move_and_verify(here, there, *peer, direction, random_cuts(6 << 20, longest, random), how);
    }
}

TEST(TcpTransfer, WorksOverIpv6) {
    Side here(1 << 20), there(1 << 20, {}, "::1");
    auto peer = here.transport->connect(there.descriptor(), Deadline::after(10s));
    if (!peer) GTEST_SKIP() << "no IPv6 here: " << peer.error().to_string();
    move_and_verify(here, there, **peer, Direction::kWrite, {{.local = 0, .remote = 1, .length = 100'000}}, Submit::kWait);
    move_and_verify(here, there, **peer, Direction::kRead, {{.local = 0, .remote = 1, .length = 100'000}}, Submit::kWait);
}

TEST(TcpTransfer, FailsWithoutCrashingWhenLocalMemoryIsNotThere) {
    Side here(1 << 20), there(1 << 20);
    auto peer = here.connect(there);
    void* const hole = ::mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(hole, MAP_FAILED);
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        for (const uint64_t length : {uint64_t{100}, uint64_t{1} << 20}) {
            if (!peer->usable()) peer = here.connect(there);
            Completion completion;
            const Slice slices[] = {
                here.slice(0, there.address(), 50, completion),
                {.local = static_cast<std::byte*>(hole), .remote = there.address(), .length = length, .completion = &completion}};
            const auto result = run(*peer, direction, slices, completion);
            ASSERT_FALSE(result);
            EXPECT_EQ(result.error().code(), Code::kNotRegistered) << result.error().to_string();
        }
    }
    ::munmap(hole, 1 << 20);
    if (!peer->usable()) peer = here.connect(there);
    move_and_verify(here, there, *peer, Direction::kWrite, {{.local = 0, .remote = 0, .length = 1 << 20}}, Submit::kWait);
}

/// Memory whose middle, and maybe more, is not there.
class Holed {
public:
    explicit Holed(size_t bytes)
        : bytes_(bytes),
          memory_(static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        MC_CHECK(memory_ != MAP_FAILED);
        std::memset(memory_, 0x11, bytes);
    }
    ~Holed() { ::munmap(memory_, bytes_); }
    std::byte* data() const { return memory_; }
    uint64_t address() const { return reinterpret_cast<uint64_t>(memory_); }
    void protect(size_t from, size_t length, int protection) { MC_CHECK(::mprotect(memory_ + from, length, protection) == 0); }

private:
    const size_t bytes_;
    std::byte* const memory_;
};

TEST(TcpTransfer, AWriteFromLocalMemoryThatIsNotThereLeavesThePeersAsItWas) {
    constexpr size_t kBytes = 4 << 20;
    for (const bool checksum : {false, true}) {
        EngineOptions options;
        options.tcp_checksum = checksum;
        Side here(4096, options), there(kBytes, options);
        auto peer = here.connect(there);
        for (const bool registered : {false, true}) {
            for (const size_t length : {size_t{64}, size_t{4096}, size_t{100'000}, kBytes}) {
                Holed hole(kBytes);
                hole.protect(0, kBytes, PROT_NONE);
                const MemoryRegion region{.address = hole.data(), .length = kBytes};
                fill(there.memory, 8);
                const auto before = there.memory;
                if (!peer->usable()) peer = here.connect(there);
                Completion completion;
                const Slice slice{.local = hole.data(),
                                  .remote = there.address(),
                                  .length = length,
                                  .completion = &completion,
                                  .region = registered ? &region : nullptr};
                const auto result = run(*peer, Direction::kWrite, {&slice, 1}, completion);
                ASSERT_FALSE(result);
                EXPECT_EQ(result.error().code(), Code::kNotRegistered) << result.error().to_string();
                EXPECT_TRUE(peer->usable()) << "nobody else pays for a wrong address";
                peer.reset();  // fences what is under way
                EXPECT_TRUE(there.memory == before) << length;
                peer = here.connect(there);
            }
        }
    }
}

TEST(TcpTransfer, AWriteFromMemoryWithAHoleIsAppliedAtMostUpToTheHole) {
    constexpr size_t kBytes = 1 << 20, kHole = 512 << 10;
    for (const bool checksum : {false, true}) {
        EngineOptions options;
        options.tcp_checksum = checksum;
        Side here(4096, options), there(kBytes, options);
        auto peer = here.connect(there);
        Holed source(kBytes);
        source.protect(kHole, 4096, PROT_NONE);
        std::memset(there.memory.data(), 0x77, kBytes);
        Completion completion;
        const Slice slice{.local = source.data(), .remote = there.address(), .length = kBytes, .completion = &completion};
        const auto result = run(*peer, Direction::kWrite, {&slice, 1}, completion);
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code(), Code::kNotRegistered) << result.error().to_string();
        peer.reset();
        EXPECT_EQ(std::count(there.memory.begin() + kHole, there.memory.end(), std::byte{0x77}), static_cast<ptrdiff_t>(kBytes - kHole));
        EXPECT_EQ(std::count(there.memory.begin(), there.memory.end(), std::byte{0}), 0);
    }
}

TEST(TcpTransfer, LocalMemoryWithAHoleCostsNobodyButWhoNamedIt) {
    constexpr size_t kThreads = 3, kPart = 1 << 20;
    for (const bool checksum : {false, true}) {
        EngineOptions options;
        options.tcp_checksum = checksum;
        Side here(kThreads * kPart, options), there((kThreads + 1) * kPart, options);
        const auto peer = here.connect(there);
        Holed holed(kPart);
        holed.protect(kPart / 2, 4096, PROT_NONE);
        const MemoryRegion region{.address = holed.data(), .length = kPart};
        fill(here.memory, 21);
        std::atomic<bool> over{false};
        std::vector<std::jthread> threads;
        for (size_t t = 0; t < kThreads; ++t) {
            threads.emplace_back([&, t] {
                for (size_t i = 0; !over || i < 10; ++i) {
                    const Direction direction = i % 3 == 2 ? Direction::kRead : Direction::kWrite;
                    Completion completion;
                    const Slice slice = here.slice(t * kPart, there.address(t * kPart), i % 2 ? kPart : 5000, completion);
                    const auto moved = run(*peer, direction, {&slice, 1}, completion, i % 2 ? Submit::kWait : Submit::kLeave);
                    EXPECT_TRUE(moved) << moved.error().to_string();
                }
            });
        }
        for (int i = 0; i < 20; ++i) {
            Completion completion;
            const Slice slice{.local = holed.data(),
                              .remote = there.address(kThreads * kPart),
                              .length = kPart,
                              .completion = &completion,
                              .region = i % 2 ? &region : nullptr};
            const auto result = run(*peer, Direction::kWrite, {&slice, 1}, completion, i % 4 < 2 ? Submit::kWait : Submit::kLeave);
            ASSERT_FALSE(result);
            EXPECT_EQ(result.error().code(), Code::kNotRegistered) << result.error().to_string();
        }
        over = true;
        threads.clear();
        EXPECT_TRUE(peer->usable());
        EXPECT_EQ(std::memcmp(here.memory.data(), there.memory.data(), kThreads * kPart), 0);
    }
}

TEST(TcpTransfer, RegisteredMemoryThatWentAwayCostsThePeerAnErrorAndNotTheProcess) {
    constexpr size_t kBytes = 1 << 20;
    for (const bool checksum : {false, true}) {
        EngineOptions options;
        options.tcp_checksum = checksum;
        Side here(kBytes, options), there(4096, options);
        auto peer = here.connect(there);
        for (const int protection : {PROT_NONE, PROT_READ}) {
            Holed target(kBytes);
            there.access.allow({.address = target.address(), .length = kBytes});
            target.protect(0, kBytes, protection);
            for (const size_t length : {size_t{1}, size_t{64}, size_t{4096}, size_t{100'000}, kBytes}) {
                for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
                    if (!peer->usable()) peer = here.connect(there);
                    Completion completion;
                    const Slice slice = here.slice(0, target.address(), length, completion);
                    const auto result = run(*peer, direction, {&slice, 1}, completion);
                    EXPECT_EQ(result.has_value(), direction == Direction::kRead && protection == PROT_READ);
                    if (direction == Direction::kRead) continue;
                    EXPECT_EQ(result.error().code(), Code::kNotRegistered) << result.error().to_string();
                    EXPECT_TRUE(peer->usable()) << "the write was refused, the connection goes on";
                }
            }
            ASSERT_TRUE(there.access.revoke(target.address(), Deadline::after(20s)));
        }
    }
}

TEST(TcpTransfer, ReadsIntoRegisteredMemoryThatWentAwayFailAlone) {
    for (const bool checksum : {false, true}) {
        EngineOptions options;
        options.tcp_checksum = checksum;
        Side here(4096, options), there(1 << 20, options);
        const auto peer = here.connect(there);
        Holed into(1 << 20);
        into.protect(0, 1 << 20, PROT_READ);
        const MemoryRegion region{.address = into.data(), .length = 1 << 20};
        for (const size_t length : {size_t{1}, size_t{4096}, size_t{1} << 20}) {
            Completion completion;
            const Slice slice{
                .local = into.data(), .remote = there.address(), .length = length, .completion = &completion, .region = &region};
            EXPECT_EQ(run(*peer, Direction::kRead, {&slice, 1}, completion).error().code(), Code::kNotRegistered);
            EXPECT_TRUE(peer->usable());
        }
    }
}

TEST(TcpTransfer, AChecksumIsOfWhatWasSentAlthoughOthersChangeTheMemoryMeanwhile) {
    constexpr size_t kBytes = 1 << 20;
    EngineOptions options;
    options.tcp_checksum = true;
    options.tcp_io_threads = 2;
    Side here(4 * kBytes, options), there(0, options), other(0, options);
    const auto one = here.connect(there);
    const auto two = other.connect(there);
    // Two write one range and two read it, over different connections. Each has a mapping of its own of that memory: what races here are the
    // peers, who asked for it, and a ThreadSanitizer knows memory by its address.
    auto shared = allocate_shared_memory(kBytes);
    ASSERT_TRUE(shared) << shared.error().to_string();
    std::array<Mapping, 4> views;
    for (Mapping& view : views) {
        void* const at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd(), 0);
        ASSERT_NE(at, MAP_FAILED);
        view = Mapping(at, kBytes);
        there.access.allow({.address = reinterpret_cast<uint64_t>(at), .length = kBytes});
    }
    std::atomic<int> failed{0};
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < views.size(); ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < 60; ++i) {
                Completion completion;
                const Slice slice = here.slice(t * kBytes, reinterpret_cast<uint64_t>(views[t].address()), kBytes, completion);
                if (!run(t % 2 ? *one : *two, t < 2 ? Direction::kWrite : Direction::kRead, {&slice, 1}, completion)) ++failed;
            }
        });
    }
    threads.clear();
    EXPECT_EQ(failed, 0);
}

TEST(TcpTransfer, ARangeFarTooLongIsRefusedAtOnce) {
    Side here(1 << 20), there(1 << 20);
    const auto peer = here.connect(there);
    // What is written is there to be read, or it would fail for another reason. None of it is touched before the refusal of a read.
    constexpr uint64_t kWritten = uint64_t{1} << 39, kRead = uint64_t{1} << 46;
    void* const zeros = ::mmap(nullptr, kWritten, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(zeros, MAP_FAILED);
    const Mapping long_memory(zeros, kWritten);
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        Completion completion;
        Slice slice = here.slice(0, there.address(), direction == Direction::kRead ? kRead : kWritten, completion);
        if (direction == Direction::kWrite) slice.local = long_memory.address();
        const auto result = run(*peer, direction, {&slice, 1}, completion);
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code(), Code::kNotRegistered) << result.error().to_string();
    }
}

TEST(TcpTransfer, ReadsIntoUnregisteredMemoryAreRight) {
    Side here(1 << 20), there(1 << 20);
    const auto peer = here.connect(there);
    fill(there.memory, 9);
    Completion completion;
    std::vector<Slice> slices;
    for (size_t i = 0; i < 100; ++i) {
        slices.push_back(here.slice(i * 10'000, there.address(i * 10'000), 9'000, completion));
        if (i % 2) slices.back().region = nullptr;
    }
    ASSERT_TRUE(run(*peer, Direction::kRead, slices, completion));
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(std::memcmp(here.memory.data() + i * 10'000, there.memory.data() + i * 10'000, 9'000), 0);
}

}  // namespace
}  // namespace mooncake::tcp
