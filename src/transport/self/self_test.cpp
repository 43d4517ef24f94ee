// SPDX-License-Identifier: Apache-2.0
#include "transport/self/self.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <thread>

#include "transport/testing/conformance.h"

namespace mooncake::testing {
namespace {

class SelfTransport : public ::testing::Test {
protected:
    /// Moves `length` bytes inside one registered area and compares with memmove.
    void expect_memmove(Direction direction, uint64_t local, uint64_t remote, uint64_t length, bool registered) {
        area.fill_random(local + remote);
        std::vector<std::byte> expected(area.bytes().begin(), area.bytes().end());
        if (direction == Direction::kRead) std::memmove(&expected[local], &expected[remote], length);
        else std::memmove(&expected[remote], &expected[local], length);
        const auto moved = transfer(
            *peer, direction,
            {.local = area.data() + local, .remote = area.address() + remote, .length = length, .region = registered ? region : nullptr});
        ASSERT_TRUE(moved) << moved.error().to_string();
        ASSERT_EQ(std::memcmp(expected.data(), area.data(), expected.size()), 0) << local << " " << remote << " " << length;
    }

    TransportPair pair{TransportCase{.name = "self", .make = make_self_transport, .same_process = true}};
    const TestMemory area{8 << 20};
    const MemoryRegion* const region = pair.target().add(area);
    const std::unique_ptr<Peer> peer = pair.connect();
};

TEST_F(SelfTransport, MovesOverlappingRangesAsMemmoveDoes) {
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        for (const bool registered : {true, false}) {
            expect_memmove(direction, 0, 1, 5000, registered);
            expect_memmove(direction, 1, 0, 5000, registered);
            expect_memmove(direction, 0, 70'000, 4 << 20, registered);
            expect_memmove(direction, 70'000, 0, 4 << 20, registered);
            expect_memmove(direction, 0, 3 << 20, 5 << 20, registered);
            expect_memmove(direction, 123, 123, 3 << 20, registered);
        }
    }
}

TEST_F(SelfTransport, CopiesByTheCopierOfASlice) {
    struct Inverting final : Copier {
        void begin() noexcept override {}
        void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override {
            for (uint64_t i = 0; i < length; ++i) to[i] = ~from[i];
            bytes.fetch_add(length);
        }
        void passed(const std::byte*, uint64_t) noexcept override { ADD_FAILURE() << "nothing passes here that is not copied"; }
        std::atomic<uint64_t> bytes{0};
    } copier;
    constexpr uint64_t kLength = 3 << 20, kApart = 4 << 20;  // so long that it is copied in parts
    area.fill_random(2);
    const Slice slice{.local = area.data(), .remote = area.address() + kApart, .length = kLength, .region = region, .copier = &copier};
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice));
    EXPECT_EQ(copier.bytes.load(), kLength);
    for (uint64_t i = 0; i < kLength; ++i) ASSERT_EQ(area.data()[kApart + i], ~area.data()[i]) << i;
}

TEST_F(SelfTransport, MovesOverlappingRangesAmongOthers) {
    area.fill_random(1);
    std::vector<std::byte> expected(area.bytes().begin(), area.bytes().end());
    std::memmove(&expected[100], &expected[0], 1000);
    std::memmove(&expected[5000], &expected[20'000], 1000);
    Slice slices[] = {{.local = area.data(), .remote = area.address() + 100, .length = 1000, .region = region},
                      {.local = area.data() + 20'000, .remote = area.address() + 5000, .length = 1000, .region = region}};
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slices));
    EXPECT_EQ(std::memcmp(expected.data(), area.data(), expected.size()), 0);
}

TEST_F(SelfTransport, MovesOverlappingRangesInMoreThreadsThanSectionsHaveSlots) {
    constexpr uint64_t kThreads = Quiescence::kSlots + 16, kStep = 4096;
    /// Keeps everybody in the section of the first slice until all are there.
    struct Gathering final : Copier {
        void begin() noexcept override {}
        void copy(std::byte*, const std::byte*, uint64_t) noexcept override { all_inside.arrive_and_wait(); }
        void passed(const std::byte*, uint64_t) noexcept override {}
        std::latch all_inside{kThreads};
    } gathering;
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            std::byte* const mine = area.data() + t * kStep;
            const uint64_t remote = area.address() + t * kStep;
            Slice slices[] = {{.local = mine, .remote = remote + 64, .length = 64, .region = region, .copier = &gathering},
                              {.local = mine + 128, .remote = remote + 152, .length = 64, .region = region}};
            EXPECT_TRUE(transfer(*peer, Direction::kWrite, slices));
        });
}

TEST_F(SelfTransport, APeerMayGoWithTheEndOfItsLastTransfer) {
    /// Whoever is told of the end may have been the last to hold the peer, and is told on a thread of the pool.
    struct LastHolder final : CompletionHook {
        void on_done(Completion&) noexcept override {
            submitted.wait();
            peer.reset();
            gone.count_down();
        }
        std::unique_ptr<Peer> peer;
        std::latch submitted{1}, gone{1};
    };
    for (int round = 0; round < 20; ++round) {
        LastHolder holder;
        holder.peer = pair.connect();
        Completion completion(nullptr, &holder);
        completion.add(2);
        // The first is copied in parts, by more than one thread.
        const Slice slices[] = {
            {.local = area.data(), .remote = area.address() + (4 << 20), .length = 4 << 20, .completion = &completion, .region = region},
            {.local = area.data(), .remote = area.address() + 64, .length = 64, .completion = &completion, .region = region}};
        holder.peer->submit(Direction::kWrite, slices, Submit::kLeave);
        holder.submitted.count_down();
        holder.gone.wait();
    }
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, {.local = area.data(), .remote = area.address() + 64, .length = 64, .region = region},
                         Submit::kLeave))
        << "the pool goes on";
}

TEST_F(SelfTransport, ReportsMemoryThatCannotBeWritten) {
    const TestMemory sealed(64 << 10);
    MemoryRegion read_only = sealed.region(0, sealed.length());
    read_only.writable = false;
    const MemoryRegion* const sealed_region = pair.target().add(read_only);
    ASSERT_EQ(::mprotect(sealed.data(), sealed.length(), PROT_READ), 0);
    const Slice from_it{.local = sealed.data(), .remote = area.address(), .length = 1000, .region = sealed_region};
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, from_it));
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, from_it)), Code::kNotRegistered);
    const Slice to_it{.local = area.data(), .remote = sealed.address(), .length = 1000, .region = region};
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, to_it)), Code::kNotRegistered);
    const Slice within{.local = sealed.data(), .remote = sealed.address() + 10, .length = 1000, .region = sealed_region};
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, within)), Code::kNotRegistered);
}

TEST_F(SelfTransport, ReportsAnOverlapThatIsNoLongerMapped) {
    const TestMemory gone(64 << 10);
    pair.target().add(gone);
    ASSERT_EQ(::mprotect(gone.data(), gone.length(), PROT_NONE), 0);
    for (const Direction direction : {Direction::kRead, Direction::kWrite})
        EXPECT_EQ(code_of(transfer(*peer, direction, {.local = gone.data(), .remote = gone.address() + 10, .length = 1000})),
                  Code::kNotRegistered);
}

TEST_F(SelfTransport, RefusesAnOverlapThatIsNotRegistered) {
    const TestMemory other(1 << 20);
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, {.local = other.data(), .remote = other.address() + 10, .length = 1000})),
              Code::kNotRegistered);
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, {.local = other.data(), .remote = other.address(), .length = 1000})),
              Code::kNotRegistered);
}

}  // namespace
}  // namespace mooncake::testing
