// SPDX-License-Identifier: Apache-2.0
// Memory that is not the host's: a transport carries a pair of kinds, or says that it does not, and never touches such memory by CPU.
#include <algorithm>
#include <cstring>
#include <random>

#include "transport/testing/conformance.h"

namespace mooncake::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportKinds);

void TransportKinds::SetUp() {
    const auto& [kind, local_kind, remote_kind] = GetParam();
    pair.emplace(kind, allocator.devices());
    remote = allocator.allocate(remote_kind, kBytes);
    local = allocator.allocate(local_kind, kBytes);
    pair->target().add(remote->region());
    local_region = pair->initiator().add(local->region());
    peer = pair->connect();
}

void TransportKinds::TearDown() {
    peer.reset();
    pair.reset();
}

Slice TransportKinds::slice(uint64_t local_offset, uint64_t remote_offset, uint64_t length) const {
    return {.local = local->data() + local_offset, .remote = remote->address() + remote_offset, .length = length, .region = local_region};
}

namespace {

std::vector<std::byte> noise(uint64_t length, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(length);
    for (uint64_t i = 0; i + sizeof(uint64_t) <= length; i += sizeof(uint64_t)) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, sizeof word);
    }
    return bytes;
}

TEST_P(TransportKinds, APairIsCarriedOrNotSupported) {
    const bool host_only = std::get<1>(GetParam()) == MemoryKind::kHost && std::get<2>(GetParam()) == MemoryKind::kHost;
    uint64_t seed = 0;
    for (const uint64_t length : {uint64_t{1}, uint64_t{4096}, uint64_t{100'001}, kBytes - 5000}) {
        for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
            for (const Submit how : {Submit::kWait, Submit::kLeave}) {
                constexpr uint64_t kFrom = 77, kTo = 4097;
                KindMemory& source = direction == Direction::kWrite ? *local : *remote;
                KindMemory& destination = direction == Direction::kWrite ? *remote : *local;
                const auto from = noise(kBytes, ++seed), before = noise(kBytes, ++seed);
                source.write(from);
                destination.write(before);

                const Slice one = direction == Direction::kWrite ? slice(kFrom, kTo, length) : slice(kTo, kFrom, length);
                const auto moved = transfer(*peer, direction, one, how);

                auto expected = before;
                if (moved) std::copy_n(from.begin() + kFrom, length, expected.begin() + kTo);
                EXPECT_EQ(source.read(), from);
                EXPECT_EQ(destination.read(), expected) << (moved ? "carried" : "refused");
                if (moved) continue;
                EXPECT_EQ(moved.error().code(), Code::kNotSupported) << moved.error().to_string();
                EXPECT_FALSE(host_only) << moved.error().to_string();
            }
        }
    }
    EXPECT_TRUE(peer->usable()) << "a pair that is not carried does not cost the connection";
}

TEST_P(TransportKinds, WhatIsNotCarriedLeavesTheRestOfTheSubmissionAlone) {
    const auto host_there = allocator.allocate(MemoryKind::kHost, kBytes), host_here = allocator.allocate(MemoryKind::kHost, kBytes);
    pair->target().add(host_there->region());
    const MemoryRegion* const region = pair->initiator().add(host_here->region());
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            host_here->write(noise(kBytes, 1));
            host_there->write(noise(kBytes, 2));
            Completion good, doubtful;
            good.add(2);
            doubtful.add(1);
            const Slice host{.local = host_here->data(),
                             .remote = host_there->address(),
                             .length = 70'000,
                             .completion = &good,
                             .region = region};
            Slice slices[] = {host, slice(0, 0, 70'000), host};
            slices[1].completion = &doubtful;
            slices[2].local += 100'000;
            slices[2].remote += 100'000;

            peer->submit(direction, slices, how);

            ASSERT_TRUE(peer->wait(doubtful, patience()));
            ASSERT_TRUE(peer->wait(good, patience()));
            EXPECT_EQ(good.result().value_or(0), 140'000u);
            const auto here = host_here->read(), there = host_there->read();
            EXPECT_TRUE(std::equal(here.begin(), here.begin() + 70'000, there.begin()));
            EXPECT_TRUE(std::equal(here.begin() + 100'000, here.begin() + 170'000, there.begin() + 100'000));
            const Code code = code_of(doubtful.result());
            EXPECT_TRUE(code == Code::kOk || code == Code::kNotSupported) << code_name(code);
        }
    }
}

TEST_P(TransportKinds, LocalMemoryThatNobodyRegisteredIsNotTouchedByCpu) {
    Slice one = slice(0, 0, 50'000);
    one.region = nullptr;
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        const Code code = code_of(transfer(*peer, direction, one));
        EXPECT_TRUE(code == Code::kOk || code == Code::kNotRegistered || code == Code::kNotSupported) << code_name(code);
    }
    EXPECT_TRUE(peer->usable());
}

}  // namespace

}  // namespace mooncake::testing
