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
        void begin(const std::byte*, uint64_t) noexcept override {}
        void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override {
            for (uint64_t i = 0; i < length; ++i) to[i] = ~from[i];
            bytes.fetch_add(length);
        }
        void passed(const std::byte*, const std::byte*, uint64_t) noexcept override {
            ADD_FAILURE() << "nothing passes here that is not copied";
        }
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
        void begin(const std::byte*, uint64_t) noexcept override {}
        void copy(std::byte*, const std::byte*, uint64_t) noexcept override { all_inside.arrive_and_wait(); }
        void passed(const std::byte*, const std::byte*, uint64_t) noexcept override {}
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
        constexpr uint64_t kLong = (4 << 20) - 4096;
        const Slice slices[] = {
            {.local = area.data(), .remote = area.address() + kLong, .length = kLong, .completion = &completion, .region = region},
            {.local = area.data(), .remote = area.address() + 2 * kLong, .length = 64, .completion = &completion, .region = region}};
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

/// Moves bytes between memory of any kinds inside one process.
class SelfKinds : public ::testing::Test {
protected:
    KindAllocator allocator;
    TransportPair pair{TransportCase{.name = "self", .make = make_self_transport, .same_process = true}, allocator.devices()};
    std::unique_ptr<KindMemory> device = allocator.allocate(MemoryKind::kCuda, 3 << 20),
                                host = allocator.allocate(MemoryKind::kHost, 3 << 20);
    const MemoryRegion* device_region = pair.target().add(device->region());
    const MemoryRegion* host_region = pair.target().add(host->region());
    std::unique_ptr<Peer> peer = pair.connect();

    static std::vector<std::byte> noise(uint64_t seed) {
        const TestMemory made(3 << 20);
        made.fill_random(seed);
        return {made.bytes().begin(), made.bytes().end()};
    }
};

TEST_F(SelfKinds, CarriesEveryPairSomebodyCopies) {
    const KindPairs& pairs = pair.target().transport().capabilities().pairs;
    for (const MemoryKind local : {MemoryKind::kHost, MemoryKind::kCuda})
        for (const MemoryKind remote : {MemoryKind::kHost, MemoryKind::kCuda}) EXPECT_TRUE(pairs.has({local, remote}));
    EXPECT_FALSE(pairs.has({MemoryKind::kAscend, MemoryKind::kHost}));
    EXPECT_FALSE(pairs.has({MemoryKind::kCuda, MemoryKind::kAscend}));
}

TEST_F(SelfKinds, MovesOverlappingRangesOfADeviceAsMemmoveDoes) {
    struct Move {
        uint64_t from, to, length;
    };
    for (const Move move : {Move{0, 1, 5000}, Move{1, 0, 5000}, Move{0, 70'000, 2 << 20}, Move{70'000, 0, 2 << 20}, Move{9, 9, 1 << 20}}) {
        for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
            auto expected = noise(move.from + move.to);
            device->write(expected);
            std::memmove(&expected[move.to], &expected[move.from], move.length);
            const uint64_t local = direction == Direction::kWrite ? move.from : move.to;
            const uint64_t remote = direction == Direction::kWrite ? move.to : move.from;
            const auto moved = transfer(
                *peer, direction,
                {.local = device->data() + local, .remote = device->address() + remote, .length = move.length, .region = device_region});
            ASSERT_TRUE(moved) << moved.error().to_string();
            ASSERT_EQ(device->read(), expected) << move.from << " " << move.to << " " << move.length;
        }
    }
}

TEST_F(SelfKinds, MovesHostMemoryThatNobodyRegisteredThroughTheKernel) {
    const TestMemory loose(2 << 20);
    loose.fill_random(1);
    const Slice slice{.local = loose.data(), .remote = device->address() + 100, .length = loose.length()};
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice));
    EXPECT_EQ(std::memcmp(device->read().data() + 100, loose.data(), loose.length()), 0);
    const auto bytes = noise(2);
    device->write(bytes);
    ASSERT_TRUE(transfer(*peer, Direction::kRead, slice));
    EXPECT_EQ(std::memcmp(bytes.data() + 100, loose.data(), loose.length()), 0);
    ASSERT_EQ(::mprotect(loose.data(), loose.length(), PROT_NONE), 0);
    for (const Direction direction : {Direction::kWrite, Direction::kRead})
        EXPECT_EQ(code_of(transfer(*peer, direction, slice)), Code::kNotRegistered);
}

TEST_F(SelfKinds, RefusesARangeOfMemoryThatIsNotAllAllowed) {
    const auto memory = allocator.allocate(MemoryKind::kCuda, 4096);
    MemoryRegion sealed = memory->region();
    sealed.writable = false;
    const MemoryRegion* const region = pair.target().add(sealed);
    const Slice slice{.local = host->data(), .remote = memory->address(), .length = 100, .region = host_region};
    EXPECT_TRUE(transfer(*peer, Direction::kRead, slice));
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, slice)), Code::kNotRegistered);
    const Slice back{.local = memory->data(), .remote = host->address(), .length = 100, .region = region};
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, back));
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, back)), Code::kNotRegistered);
    Slice beyond = slice;
    beyond.length = 5000;
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, beyond)), Code::kNotRegistered);
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
