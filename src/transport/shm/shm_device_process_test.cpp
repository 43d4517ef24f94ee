// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs of two real processes, one of which takes its memory back, is stopped or dies. Each has the libcuda that the tests build.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <sstream>
#include <thread>

#include "device/cuda/testing/fake_cuda.h"
#include "transport/shm/shm.h"
#include "transport/testing/child_process.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {
namespace {

using cuda::testing::FakeCuda;

constexpr uint64_t kLength = 3 << 20;

std::vector<std::byte> noise(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(kLength);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

/// A process with a GPU, two registered parts of one allocation of it, and host memory.
struct Side {
    KindAllocator allocator{KindSource::kFakeLibcuda};
    TransportHost host{make_shm_transport, {}, allocator.devices()};
    std::unique_ptr<KindMemory> card = allocator.allocate(MemoryKind::kCuda, kLength);
    std::unique_ptr<KindMemory> plain = allocator.allocate(MemoryKind::kHost, kLength);
    const MemoryRegion *first = add(0), *second = add(kLength / 2);
    const MemoryRegion* plain_region = host.add(plain->region());

    const MemoryRegion* add(uint64_t offset) {
        MemoryRegion region = card->region();
        region.address += offset;
        region.length = kLength / 2;
        return host.add(region);
    }
    std::string offer() const {
        const SegmentDescriptor descriptor = host.describe();
        return format_text("{} {} {} {}", descriptor.incarnation.to_string(), card->address(), plain->address(),
                           descriptor.endpoints.at("shm"));
    }
};

struct Offer {
    SegmentDescriptor descriptor;
    uint64_t card = 0, plain = 0;

    explicit Offer(const std::string& words) {
        std::istringstream in(words);
        std::string incarnation, endpoint;
        in >> incarnation >> card >> plain >> std::ws;
        std::getline(in, endpoint);
        descriptor = {.name = "child",
                      .incarnation = Incarnation::parse(incarnation).value(),
                      .boot_id = boot_id(),
                      .endpoints = {{"shm", endpoint}}};
    }
};

// ---- what the second process does

TEST(ShmDeviceChild, DISABLED_LendsMemoryOfItsGpu) {
    Side side;
    side.card->write(noise(1));
    say("offer " + side.offer());
    for (;;) {
        const std::string command = read_command();
        if (command == "first") say(format_text("code {}", static_cast<int>(code_of(side.host.remove(side.first)))));
        if (command == "second") say(format_text("code {}", static_cast<int>(code_of(side.host.remove(side.second)))));
        if (command == "close") say(format_text("code {}", static_cast<int>(code_of(side.host.close()))));
        if (command == "holds") {
            const auto bytes = side.card->read();
            uint64_t sum = 0;
            for (const std::byte byte : bytes) sum = sum * 31 + static_cast<uint64_t>(byte);
            say(format_text("sum {}", sum));
        }
    }
}

TEST(ShmDeviceChild, DISABLED_WritesToAGpuWithoutPause) {
    Side side;
    const Offer offer(read_command());
    const auto peer = side.host.transport().connect(offer.descriptor, patience()).value();
    std::atomic<int> rounds{0};
    std::vector<std::jthread> writers;
    for (int i = 0; i < 2; ++i)
        writers.emplace_back([&, i] {
            for (;;) {
                const MemoryRegion* const local = i == 0 ? side.first : side.plain_region;
                (void)transfer(*peer, Direction::kWrite,
                               {.local = local->address, .remote = offer.card, .length = kLength / 2, .region = local});
                ++rounds;
            }
        });
    while (rounds.load() < 4) std::this_thread::yield();
    say("writing");
    for (;;) read_command();
}

uint64_t sum_of(const std::vector<std::byte>& bytes) {
    uint64_t sum = 0;
    for (const std::byte byte : bytes) sum = sum * 31 + static_cast<uint64_t>(byte);
    return sum;
}

class ShmDeviceProcess : public ::testing::Test {
protected:
    Slice slice(const KindMemory& local, const MemoryRegion* region, uint64_t offset, uint64_t length) const {
        return {.local = local.data() + offset, .remote = offer.card + offset, .length = length, .region = region};
    }
    /// Half by half: those are two regions of ours, and of the peer's.
    Result<> move(Direction direction, const KindMemory& local) {
        for (const uint64_t offset : {uint64_t{0}, kLength / 2}) {
            const MemoryRegion* const region = &local == side.plain.get() ? side.plain_region : offset == 0 ? side.first : side.second;
            MC_RETURN_IF_ERROR(transfer(*peer, direction, slice(local, region, offset, kLength / 2)));
        }
        return {};
    }
    std::string ask(const std::string& command, const std::string& prefix) {
        child.send_line(command);
        return child.read_line(prefix, patience()).value_or("nothing");
    }

    ~ShmDeviceProcess() override {
        peer.reset();
        EXPECT_EQ(FakeCuda::count("contexts"), 0u);
        EXPECT_EQ(FakeCuda::count("unrelaxed"), 0u);
    }

    Side side;
    ChildProcess child{"ShmDeviceChild.DISABLED_LendsMemoryOfItsGpu"};
    Offer offer{child.read_line("offer ", patience()).value()};
    std::unique_ptr<Peer> peer = side.host.transport().connect(offer.descriptor, patience()).value();
};

TEST_F(ShmDeviceProcess, BytesMoveBetweenTheirGpusAndOurMemoryOfAnyKind) {
    for (KindMemory* const local : {side.card.get(), side.plain.get()}) {
        ASSERT_TRUE(move(Direction::kRead, *local));
        const auto bytes = noise(7);
        if (local == side.card.get()) {
            EXPECT_EQ(local->read(), noise(1));
        }
        local->write(bytes);
        ASSERT_TRUE(move(Direction::kWrite, *local));
        EXPECT_EQ(ask("holds", "sum "), std::to_string(sum_of(bytes)));
        local->write(noise(8));
        ASSERT_TRUE(move(Direction::kRead, *local));
        EXPECT_EQ(local->read(), bytes);
    }
    EXPECT_EQ(FakeCuda::count("calls:cuIpcOpenMemHandle_v2"), 1u) << "once for both regions of the allocation";
    EXPECT_EQ(FakeCuda::count("calls:cuIpcCloseMemHandle"), 0u);
}

TEST_F(ShmDeviceProcess, ManyScatteredPiecesOfTheirGpuMoveAtOnce) {
    constexpr uint64_t kPiece = 500, kApart = 1000, kCount = kLength / 2 / kApart;
    const auto here = noise(3);
    side.card->write(here);
    std::vector<Slice> slices;
    auto expected = noise(1);
    for (uint64_t i = 0; i < kCount; ++i) {
        slices.push_back({.local = side.card->data() + i * kApart,
                          .remote = offer.card + (kCount - 1 - i) * kApart,
                          .length = kPiece,
                          .region = side.first});
        std::copy_n(here.begin() + static_cast<ptrdiff_t>(i * kApart), kPiece,
                    expected.begin() + static_cast<ptrdiff_t>((kCount - 1 - i) * kApart));
    }
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slices));
    EXPECT_GE(FakeCuda::count("kernels"), 1u);
    EXPECT_EQ(ask("holds", "sum "), std::to_string(sum_of(expected)));
}

TEST_F(ShmDeviceProcess, LocalMemoryThatNobodyRegisteredGoesThroughTheKernel) {
    std::vector<std::byte> plain(kLength / 2);
    ASSERT_TRUE(transfer(*peer, Direction::kRead, {.local = plain.data(), .remote = offer.card, .length = plain.size()}));
    const auto there = noise(1);
    EXPECT_TRUE(std::equal(plain.begin(), plain.end(), there.begin()));
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, {.local = reinterpret_cast<std::byte*>(16), .remote = offer.card, .length = 64})),
              Code::kNotRegistered);
}

TEST_F(ShmDeviceProcess, WhatIsTakenBackIsClosedHereBeforeItsOwnerMayFreeIt) {
    ASSERT_TRUE(move(Direction::kRead, *side.card));
    EXPECT_EQ(ask("first", "code "), "0");
    EXPECT_EQ(FakeCuda::count("calls:cuIpcCloseMemHandle"), 0u) << "the other region is in the same allocation";
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, slice(*side.card, side.first, 0, 100))), Code::kNotRegistered);
    EXPECT_TRUE(transfer(*peer, Direction::kRead, slice(*side.card, side.second, kLength / 2, 100)));
    EXPECT_EQ(ask("second", "code "), "0");
    EXPECT_EQ(FakeCuda::count("calls:cuIpcCloseMemHandle"), 1u) << "before the owner was told that it is over";
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, slice(*side.card, side.second, kLength / 2, 100))), Code::kNotRegistered);
}

TEST_F(ShmDeviceProcess, AnOwnerThatClosesWaitsForUsToo) {
    ASSERT_TRUE(move(Direction::kRead, *side.card));
    EXPECT_EQ(ask("close", "code "), "0");
    EXPECT_EQ(FakeCuda::count("calls:cuIpcCloseMemHandle"), 1u);
    EXPECT_FALSE(transfer(*peer, Direction::kRead, slice(*side.card, side.first, 0, 100)));
}

TEST_F(ShmDeviceProcess, AnOwnerThatDiesCostsItsTransfersAndNothingElse) {
    ASSERT_TRUE(move(Direction::kRead, *side.card));
    std::jthread user([&] {
        while (transfer(*peer, Direction::kWrite, slice(*side.card, side.first, 0, kLength / 2))) {}
    });
    child.kill();
    user.join();
    EXPECT_FALSE(peer->usable());
    for (const Deadline end = patience(); FakeCuda::count("calls:cuIpcCloseMemHandle") == 0 && !end.passed();) std::this_thread::yield();
    EXPECT_EQ(FakeCuda::count("calls:cuIpcCloseMemHandle"), 1u);
    EXPECT_EQ(FakeCuda::count("live:memory"), 1u) << "ours";
}

TEST_F(ShmDeviceProcess, MemoryThatOurGpuDoesNotOpenIsNotSupported) {
    peer.reset();
    FakeCuda::fail("cuIpcOpenMemHandle_v2", 1, cuda::abi::kInvalidContext);
    peer = side.host.transport().connect(offer.descriptor, patience()).value();
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, slice(*side.card, side.first, 0, 100))), Code::kNotSupported);
    EXPECT_EQ(ask("first", "code "), "0") << "nobody has it open";
    EXPECT_EQ(ask("second", "code "), "0");
}

TEST(ShmDeviceFence, WritersThatStopAndDieAtAnyMomentAreFenced) {
    Side side;
    std::mt19937_64 random(3);
    for (int round = 0; round < 8; ++round) {
        ChildProcess child("ShmDeviceChild.DISABLED_WritesToAGpuWithoutPause");
        child.send_line(side.offer());
        ASSERT_TRUE(child.read_line("writing", patience()));
        if (round % 2 == 0) {
            child.signal(SIGSTOP);
            const auto removed = side.host.remove(side.first, Deadline::after(20ms));
            EXPECT_TRUE(removed || removed.error().code() == Code::kBusy) << removed.error().to_string();
            if (round % 4 == 0) child.signal(SIGCONT);
            else child.kill();
            if (!removed) {
                ASSERT_TRUE(side.host.remove(side.first));
            }
        } else {
            if (round % 4 == 1) child.kill();
            ASSERT_TRUE(side.host.remove(side.first));
        }
        const auto poison = noise(random());
        side.card->write(poison);
        child.kill();
        EXPECT_EQ(side.card->read(), poison) << "a byte landed behind the fence";
        side.first = side.add(0);
    }
}

}  // namespace
}  // namespace mooncake::testing
