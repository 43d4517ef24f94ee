// SPDX-License-Identifier: Apache-2.0
// How rails share the work, and how much of it they take at a time, on a network in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "transport/fabric/rail.h"
#include "transport/fabric/testing/two_hosts.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;
using mooncake::testing::TransportHost;

constexpr uint64_t kArea = 8 << 20;

struct FabricShare : TwoHosts {
    FabricShare() : TwoHosts(kArea) {}
    uint64_t again(const char* kind) {
        return metrics.counter("mooncake_fabric_again_total", "", {{"nic", "a0"}, {"class", kind}}).value();
    }
};

TEST_F(FabricShare, NoRailHasMoreInFlightThanItsNicTakes) {
    open(1, calm(), {.tx_size = 8});
    ASSERT_TRUE(write(1));
    EXPECT_GT(network.counts("a0").in_flight_max, 1u);
    EXPECT_LE(network.counts("a0").in_flight_max, 8u);
    EXPECT_EQ(again("room"), 0u) << "the NIC had to refuse";
}

TEST_F(FabricShare, NoRailHasMoreInFlightThanItIsAllowed) {
    EngineOptions options = calm();
    options.fabric.operations_max = 3;
    open(1, options);
    ASSERT_TRUE(write(1));
    EXPECT_GT(network.counts("a0").in_flight_max, 1u);
    EXPECT_LE(network.counts("a0").in_flight_max, 3u);
}

TEST_F(FabricShare, ARailTakesARunAtATimeWhereOthersCouldHelp) {
    EngineOptions options = calm();
    options.fabric.run = 4;
    open(2, options);
    ASSERT_TRUE(write(1));
    EXPECT_LE(network.counts("a0").in_flight_max, 4u);
    EXPECT_LE(network.counts("a1").in_flight_max, 4u);
}

TEST_F(FabricShare, ASlowRailKeepsNoMoreThanItsRun) {
    EngineOptions options = calm();
    options.fabric.run = 4;
    open(2, options);
    ASSERT_TRUE(write(1));
    const uint64_t before = network.counts("a0").bytes + network.counts("a1").bytes;
    network.cut("a1", "b1");  // as slow as can be
    local.fill_random(2);
    Completion completion;
    completion.add(1);
    std::vector<Slice> slices{slice(0, kArea)};
    slices[0].completion = &completion;
    peer->submit(Direction::kWrite, slices, Submit::kLeave);
    const uint64_t kept = 4 * kStripe;
    const Deadline deadline = patience();
    while (network.counts("a0").bytes + network.counts("a1").bytes < before + kArea - kept && !deadline.passed()) std::this_thread::yield();
    EXPECT_GE(network.counts("a0").bytes + network.counts("a1").bytes, before + kArea - kept) << "the fast one waits for the slow one";
    network.heal("a1", "b1");
    ASSERT_TRUE(peer->wait(completion, patience()));
    EXPECT_TRUE(completion.result());
    EXPECT_EQ(std::memcmp(local.data(), remote.data(), kArea), 0);
}

TEST_F(FabricShare, AnotherPeerNeedNotWaitForALongQueue) {
    open(1, calm(), {.tx_size = 4});
    auto c = host("c", 1, {.tx_size = 4}, calm());
    const TestMemory third(4096);
    c->add(third);
    auto other = a->transport().connect(c->describe(), patience()).value();
    std::vector<Slice> many(5'000, slice(0, 4096));
    Completion completion;
    completion.add(static_cast<uint32_t>(many.size()));
    for (Slice& one : many) one.completion = &completion;
    peer->submit(Direction::kWrite, many, Submit::kLeave);
    const Slice small{.local = local.data(), .remote = third.address(), .length = 4096, .region = local_region};
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(transfer(*other, Direction::kWrite, small));
    EXPECT_FALSE(completion.done()) << "three small ones took as long as everything that waited before them";
    ASSERT_TRUE(peer->wait(completion, patience()));
    EXPECT_TRUE(completion.result());
    other.reset();
    c.reset();
}

TEST_F(FabricShare, TargetsThatHangLeaveTheRailToOthers) {
    for (const uint64_t piece : {kStripe, kArea / 2}) {  // by number, and by bytes
        EngineOptions options = calm();
        options.fabric.stripe_bytes = kArea;
        open(1, options);
        std::vector<std::unique_ptr<TransportHost>> hosts;
        std::vector<std::unique_ptr<Peer>> peers;
        TestMemory others(kArea);
        for (const char* name : {"c", "d", "e"}) {
            hosts.push_back(host(name, 1, {}, options));
            hosts.back()->add(others);
            peers.push_back(a->transport().connect(hosts.back()->describe(), patience()).value());
        }
        // Nobody answers but the last.
        for (const char* nic : {"b0", "c0", "d0"}) network.stop(nic);
        Completion stuck;
        const std::vector<Slice> here(
            256, {.local = local.data(), .remote = remote.address(), .length = piece, .completion = &stuck, .region = local_region});
        std::vector<Slice> elsewhere = here;
        for (Slice& one : elsewhere) one.remote = others.address();
        stuck.add(3 * static_cast<uint32_t>(here.size()));
        peer->submit(Direction::kRead, here, Submit::kLeave);
        for (size_t i = 0; i < 2; ++i) peers[i]->submit(Direction::kRead, elsewhere, Submit::kLeave);
        for (int i = 0; i < 20; ++i)
            ASSERT_TRUE(transfer(*peers.back(), Direction::kRead,
                                 Slice{.local = local.data(), .remote = others.address(), .length = piece, .region = local_region}));
        EXPECT_FALSE(stuck.done()) << "they only waited until it was over";
        for (const char* nic : {"b0", "c0", "d0"}) network.go_on(nic);
        ASSERT_TRUE(peer->wait(stuck, patience()));
        EXPECT_TRUE(stuck.result());
        peers.clear();
        TearDown();
        hosts.clear();
    }
}

// ---- "again"

TEST_F(FabricShare, AgainWithNothingUnderWayIsAConnectionBeingMade) {
    open(1);
    // Were nobody to come back to it before the rail's thread wakes by itself, half a second would pass in each round.
    const Deadline deadline = patience();
    for (int round = 1; round <= 300; ++round) {
        network.again("a0", 5);
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 100), round % 2 == 0 ? Submit::kWait : Submit::kLeave));
        EXPECT_EQ(again("connecting"), static_cast<uint64_t>(5 * round));
        ASSERT_FALSE(deadline.passed()) << round;
    }
    EXPECT_EQ(again("room"), 0u);
}

TEST_F(FabricShare, AConnectionThatIsNeverMadeEndsInTime) {
    EngineOptions options = calm();
    options.fabric.connect_timeout = 200ms;
    open(1, options);
    network.again("a0", UINT32_MAX);
    const auto written = transfer(*peer, Direction::kWrite, slice(0, 100));
    EXPECT_EQ(code_of(written), Code::kUnavailable);
    EXPECT_FALSE(peer->usable());
    network.again("a0", 0);
}

// ---- once and only once

TEST_F(FabricShare, ErrorsThatAreReportedTwiceCountOnce) {
    network.set_double_errors(true);
    open(2);
    for (int round = 0; round < 10; ++round) {
        local.fill_random(static_cast<uint64_t>(round));
        Completion completion;
        completion.add(1);
        std::vector<Slice> slices{slice(0, kArea)};
        slices[0].completion = &completion;
        peer->submit(Direction::kWrite, slices, Submit::kLeave);
        network.break_link("a0", "b0", ECONNRESET);
        ASSERT_TRUE(peer->wait(completion, patience()));
        ASSERT_TRUE(completion.result()) << completion.result().error().to_string();
        ASSERT_EQ(std::memcmp(local.data(), remote.data(), kArea), 0);
    }
    EXPECT_EQ(network.counts("a0").in_flight + network.counts("a1").in_flight, 0u);
}

TEST_F(FabricShare, AnAddressStaysUntilItsLastUserIsGone) {
    FakeFabric fabric(network, {{.name = "t0"}});
    auto rail = Rail::open(fabric, fabric.offers({.provider = "net"}).value().front(), {.profile = *find_profile("tcp")}).value();
    Lock lock(rail->mutex());
    const std::vector<std::byte> name(8, std::byte{9}), another(8, std::byte{8});
    const AddressHandle first = rail->insert_address(name).value();
    EXPECT_EQ(rail->insert_address(name).value(), first);
    rail->remove_address(first);
    EXPECT_NE(rail->insert_address(another).value(), first) << "it is in use";
    rail->remove_address(first);
    EXPECT_EQ(network.counts("t0").addresses, 1u);
}

}  // namespace
}  // namespace mooncake::fabric
