// SPDX-License-Identifier: Apache-2.0
// Local memory of a device and memory of another process: by what is mapped, or by a buffer between device and kernel.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "transport/shm/shm.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {
namespace {

class ShmKinds : public ::testing::Test {
protected:
    static constexpr uint64_t kBytes = 3'000'000;

    Slice slice(const TestMemory& remote, uint64_t offset, uint64_t length) const {
        return {.local = device->data() + offset, .remote = remote.address() + offset, .length = length, .region = region};
    }
    static std::vector<std::byte> bytes_of(const TestMemory& memory) { return {memory.bytes().begin(), memory.bytes().end()}; }

    KindAllocator allocator;
    TransportPair pair{TransportCase{.name = "shm", .make = make_shm_transport}, allocator.devices()};
    std::unique_ptr<KindMemory> device = allocator.allocate(MemoryKind::kCuda, kBytes);
    const MemoryRegion* region = pair.initiator().add(device->region());
};

TEST_F(ShmKinds, CarriesLocalMemoryOfDevicesOnly) {
    const KindPairs& pairs = pair.initiator().transport().capabilities().pairs;
    EXPECT_TRUE(pairs.has({MemoryKind::kHost, MemoryKind::kHost}));
    EXPECT_TRUE(pairs.has({MemoryKind::kCuda, MemoryKind::kHost}));
    EXPECT_FALSE(pairs.has({MemoryKind::kHost, MemoryKind::kCuda}));
    EXPECT_FALSE(pairs.has({MemoryKind::kCuda, MemoryKind::kCuda}));
    EXPECT_FALSE(pairs.has({MemoryKind::kAscend, MemoryKind::kHost}));
}

TEST_F(ShmKinds, ADeviceCopiesFromAndToWhatIsMapped) {
    const TestMemory shared(kBytes, MemorySource::kShared);
    shared.fill_random(1);
    const auto expected = bytes_of(shared);
    pair.target().add(shared);
    const auto peer = pair.connect();
    // With the target's own mapping closed the kernel cannot copy there, but the mapping of ours still can.
    ASSERT_EQ(::mprotect(shared.data(), shared.length(), PROT_NONE), 0);
    const Deadline deadline = patience();
    while (!transfer(*peer, Direction::kRead, slice(shared, 0, kBytes)) && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(device->read(), expected);
    const std::vector<std::byte> other(kBytes, std::byte{7});
    device->write(other);
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, slice(shared, 0, kBytes)));
    ASSERT_EQ(::mprotect(shared.data(), shared.length(), PROT_READ | PROT_WRITE), 0);
    EXPECT_TRUE(std::all_of(shared.data(), shared.data() + kBytes, [](std::byte byte) { return byte == std::byte{7}; }));
}

TEST_F(ShmKinds, WhatThePeerHasUnmappedCostsItsPiecesOnly) {
    const TestMemory remote(kBytes);
    remote.fill_random(2);
    auto expected = bytes_of(remote);
    pair.target().add(remote);
    const auto peer = pair.connect();
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    ASSERT_EQ(::mprotect(remote.data() + 8 * page, page, PROT_NONE), 0);
    const std::vector<std::byte> before(kBytes, std::byte{9});
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        device->write(before);
        Completion good, bad;
        good.add(2);
        bad.add(1);
        Slice slices[] = {slice(remote, 0, 4 * page), slice(remote, 8 * page, 4 * page), slice(remote, 16 * page, 4 * page)};
        slices[0].completion = slices[2].completion = &good;
        slices[1].completion = &bad;
        peer->submit(direction, slices, Submit::kWait);
        ASSERT_TRUE(peer->wait(good, patience()));
        ASSERT_TRUE(peer->wait(bad, patience()));
        EXPECT_EQ(good.result().value_or(0), 8 * page);
        EXPECT_EQ(code_of(bad.result()), Code::kNotRegistered);
        const auto here = device->read();
        if (direction == Direction::kWrite) continue;
        const auto same = [&](uint64_t from, const std::vector<std::byte>& as) {
            return std::equal(here.begin() + static_cast<ptrdiff_t>(from), here.begin() + static_cast<ptrdiff_t>(from + 4 * page),
                              as.begin() + static_cast<ptrdiff_t>(from));
        };
        EXPECT_TRUE(same(0, expected));
        EXPECT_TRUE(same(16 * page, expected));
        EXPECT_TRUE(same(8 * page, before)) << "what was not read does not leave the buffer";
    }
}

TEST_F(ShmKinds, RefusesToReadIntoLocalMemoryForReadingOnly) {
    const TestMemory remote(kBytes);
    pair.target().add(remote);
    const auto memory = allocator.allocate(MemoryKind::kCuda, 4096);
    MemoryRegion sealed = memory->region();
    sealed.writable = false;
    const MemoryRegion* const read_only = pair.initiator().add(sealed);
    const auto peer = pair.connect();
    const Slice one{.local = memory->data(), .remote = remote.address(), .length = 100, .region = read_only};
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, one));
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, one)), Code::kNotRegistered);
}

}  // namespace
}  // namespace mooncake::testing
