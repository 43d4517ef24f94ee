// SPDX-License-Identifier: Apache-2.0
// Which rails are used, and when they are connected, on a network in memory.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "transport/fabric/testing/two_hosts.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::patience;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;
using mooncake::testing::TransportHost;

struct FabricRails : TwoHosts {
    FabricRails() : TwoHosts(1 << 20) {}
    Slice slice(uint64_t length, const MemoryRegion* region) const {
        return {.local = local.data(), .remote = remote.address(), .length = length, .region = region};
    }
    uint64_t posted(const std::string& nic) const { return counts(nic).posted; }
};

TEST_F(FabricRails, AreWarmedUpOnceHoweverManyAsk) {
    open(4);
    std::vector<std::future<bool>> callers;
    for (int i = 0; i < 8; ++i) callers.push_back(std::async(std::launch::async, [&] { return peer->warm_up(patience()).has_value(); }));
    for (auto& caller : callers) EXPECT_TRUE(caller.get());
    for (const char* nic : {"a0", "a1", "a2", "a3"}) EXPECT_EQ(posted(nic), 1u) << nic;
    EXPECT_TRUE(peer->warm_up(patience()));
    EXPECT_EQ(posted("a0"), 1u);
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, slice(1000, local_region)));
}

TEST_F(FabricRails, AreWarmedUpThoughTheProviderIsBusyConnecting) {
    open(2);
    network.again("a0", 20);
    EXPECT_TRUE(peer->warm_up(patience()));
    EXPECT_EQ(posted("a0"), 1u);
    EXPECT_EQ(posted("a1"), 1u);
}

TEST_F(FabricRails, ThatCannotBeReachedEndAWarmUpAtItsDeadline) {
    open(2);
    network.cut("a1", "b1");
    const auto warm = peer->warm_up(Deadline::after(100ms));
    ASSERT_FALSE(warm);
    EXPECT_EQ(warm.error().code(), Code::kTimedOut);
    network.heal("a1", "b1");
    EXPECT_TRUE(peer->warm_up(patience()));
    peer->close(Error(Code::kCancelled, "the test ends it"));
    EXPECT_EQ(peer->warm_up(patience()).error().code(), Code::kCancelled);
}

TEST_F(FabricRails, AreWarmedUpThoughNothingIsLentYet) {
    open(2);
    ASSERT_TRUE(b->remove(remote_region));
    auto other = a->transport().connect(b->describe(), patience()).value();
    EXPECT_TRUE(other->warm_up(patience()));
    for (const char* nic : {"a0", "a1"}) EXPECT_EQ(posted(nic), 1u) << nic;
}

TEST_F(FabricRails, NearTheMemoryCarrySmallTransfers) {
    const auto file = std::filesystem::path(::testing::TempDir()) / "fabric_rails_topology.json";
    std::ofstream(file) << R"({"cpu:0": [["a2", "b2"], ["a0", "a1", "b0", "b1"]]})";
    EngineOptions options = calm();
    options.topology_file = file;
    open(3, options);
    std::filesystem::remove(file);
    MemoryRegion near = *local_region;
    near.location = "cpu:0";
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(1000, &near)));
    EXPECT_EQ(posted("a2"), 30u);
    EXPECT_EQ(posted("a0") + posted("a1"), 0u);
    near.location = "*";
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(1000, &near)));
    EXPECT_GT(posted("a0"), 0u);
    EXPECT_GT(posted("a1"), 0u);
}

TEST_F(FabricRails, OfNicsThatDoNotWorkAreLeftOut) {
    for (const char* nic : {"a0", "b2"}) network.refuse_endpoints(nic, true);
    open(3);
    ASSERT_TRUE(write(1));
    EXPECT_EQ(posted("a0"), 0u);
    EXPECT_GT(posted("a1"), 0u);
    TearDown();
    for (const char* nic : {"a0", "a1", "a2"}) network.refuse_endpoints(nic, true);
    const EngineOptions options = calm();
    AccessTable access;
    mooncake::testing::LocalControl control(Incarnation{9});
    const auto none = make_fabric_transport({.incarnation = Incarnation{9}, .options = options, .access = access, .control = control},
                                            std::make_shared<FakeFabric>(network, std::vector<FakeNic>{{.name = "a0"}, {.name = "a1"}}));
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code(), Code::kNotSupported) << "so that another transport is taken";
}

TEST_F(FabricRails, WhoseKeysBelongToEndpointsGiveMemoryBack) {
    FakeNic like;
    like.endpoint_keys = true;
    like.key_bytes = 4;
    EngineOptions options = calm();
    options.protocol = "cxi";
    network.set_refusal_cancels_all(false);
    open(1, options, like);
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(1000, local_region)));
    EXPECT_TRUE(b->remove(remote_region));
    const auto late = transfer(*peer, Direction::kWrite, slice(1000, local_region));
    ASSERT_FALSE(late);
    EXPECT_EQ(network.counts("b0").registrations, 1u) << "what probes read";
}

}  // namespace
}  // namespace mooncake::fabric
