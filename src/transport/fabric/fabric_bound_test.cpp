// SPDX-License-Identifier: Apache-2.0
// NICs whose keys belong to an endpoint, as Slingshot's do: the fence closes the endpoint with all that is bound to it, and opens
// another with new keys. On a network in memory, where an endpoint may have the name of one before it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "transport/fabric/fabric_memory.h"
#include "transport/fabric/testing/two_hosts.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;

constexpr uint64_t kArea = 4 << 20;

struct FabricBound : TwoHosts {
    FabricBound() : TwoHosts(kArea) {
        network.set_late_writes(true);
        network.set_refusal_cancels_all(false);
    }
    static FakeNic bound() {
        FakeNic nic;
        nic.endpoint_keys = true;
        nic.key_bytes = 4;
        nic.same_names = true;
        return nic;
    }
    static EngineOptions quick() {
        EngineOptions options = calm("cxi");
        options.fabric.stall_timeout = options.fabric.connect_timeout = 500ms;
        return options;
    }
    bool same() const { return std::memcmp(local.data(), remote.data(), kArea) == 0; }
    uint64_t late() const { return counts("a0").late_writes + counts("a1").late_writes; }
};

TEST_F(FabricBound, ACutLinkMovesItsWorkToAnotherRailAndNothingLandsLate) {
    open(2, quick(), bound());
    for (uint64_t round = 0; round < 3; ++round) {
        network.cut("a1", "b1");
        ASSERT_TRUE(write(round));
        // Newer data; then what the closed endpoint left behind gets through.
        ASSERT_TRUE(write(round + 100));
        network.heal("a1", "b1");
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 1)));
        ASSERT_TRUE(same()) << "bytes landed late in round " << round;
    }
    EXPECT_EQ(late(), 0u);
    for (const char* nic : {"b0", "b1"}) EXPECT_EQ(counts(nic).registrations, 2u) << "the area, and what probes read";
}

TEST_F(FabricBound, CancelOfAStuckWriteFencesTheTarget) {
    open(1, calm("cxi"), bound());
    ASSERT_TRUE(write(1));
    network.cut("a0", "b0");
    Completion completion;
    completion.add(1);
    std::vector<Slice> slices{slice(0, kArea)};
    slices[0].completion = &completion;
    peer->submit(Direction::kWrite, slices, Submit::kLeave);
    EXPECT_FALSE(peer->wait(completion, Deadline::after(50ms)));

    EXPECT_EQ(peer->cancel(completion, Error(Code::kTimedOut, "too long"), patience()), Stopped::kEverywhere);

    remote.fill(std::byte{9});
    network.heal("a0", "b0");
    ASSERT_TRUE(transfer(*peer, Direction::kRead, slice(0, 1)));
    EXPECT_TRUE(remote.all(std::byte{9}));
    EXPECT_EQ(late(), 0u);
    ASSERT_TRUE(write(2));
}

TEST_F(FabricBound, WithoutAnyPathTheNextConnectionIsFencedFirst) {
    open(1, quick(), bound());
    local.fill_random(1);
    network.cut("a0", "b0");
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, slice(0, kArea))), Code::kUnavailable);
    EXPECT_FALSE(peer->usable());
    peer.reset();
    EXPECT_EQ(code_of(a->transport().connect(b->describe(), Deadline::after(1s))), Code::kUnavailable);
    remote.fill(std::byte{7});
    network.heal("a0", "b0");
    peer = a->transport().connect(b->describe(), patience()).value();
    EXPECT_TRUE(transfer(*peer, Direction::kRead, slice(0, 1)));
    EXPECT_TRUE(remote.all(std::byte{7})) << "bytes of the broken peer landed";
}

TEST_F(FabricBound, ThirdPartiesSurviveTheFenceOfAnother) {
    open(1, quick(), bound());
    auto c = host("c", 1, bound(), calm("cxi"));
    auto other = c->transport().connect(b->describe(), patience()).value();
    TestMemory source(1 << 20);
    source.fill_random(1);
    const MemoryRegion* const region = c->add(source);
    const Slice theirs{.local = source.data(), .remote = remote.address() + (2 << 20), .length = 1 << 20, .region = region};
    std::atomic<bool> over{false};
    std::atomic<int> failed{0};
    std::jthread load([&] {
        while (!over.load())
            if (!transfer(*other, Direction::kWrite, theirs)) ++failed;
    });
    for (int round = 0; round < 3; ++round) {
        Completion completion;
        completion.add(1);
        std::vector<Slice> slices{slice(0, 1 << 20)};
        slices[0].completion = &completion;
        network.cut("a0", "b0");
        peer->submit(Direction::kWrite, slices, Submit::kLeave);
        EXPECT_EQ(peer->cancel(completion, Error(Code::kTimedOut, "too long"), patience()), Stopped::kEverywhere);
        network.heal("a0", "b0");
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 1 << 20)));
    }
    over = true;
    load.join();
    EXPECT_EQ(failed, 0);
    ASSERT_TRUE(transfer(*other, Direction::kWrite, theirs));
    EXPECT_EQ(std::memcmp(source.data(), remote.data() + (2 << 20), source.length()), 0);
    other.reset();
    c.reset();
}

// ---- the target alone

struct BoundMemory : ::testing::Test {
    BoundMemory() {
        FakeNic like = FabricBound::bound();
        std::vector<FakeNic> nics(2, like);
        nics[0].name = "n0";
        nics[1].name = "n1";
        fabric = std::make_unique<FakeFabric>(network, nics);
        const std::vector<Offer> offers = fabric->offers({}).value();
        for (const Offer& offer : offers) {
            const auto index = static_cast<uint32_t>(rails.size());
            rails.push_back(Rail::open(*fabric, offer, {.index = index, .profile = *find_profile("cxi")}).value());
        }
        memory = std::make_unique<FabricMemory>(std::vector<Rail*>{rails[0].get(), rails[1].get()}, FabricMemory::Settings{});
        registration = memory->add(area.region(0, area.length())).value();
    }
    ~BoundMemory() override {
        registration.reset();
        memory.reset();
    }
    ChunkRecord asked() { return memory->resolve({.address = area.address(), .length = area.length()}).chunks.at(0); }
    uint64_t epoch(size_t rail) const { return rails[rail]->state().epoch; }
    Result<RailsAnswer> fence(uint32_t rail, uint64_t epoch) { return memory->fence({.rails = {{.rail = rail, .epoch = epoch}}}); }

    FakeNetwork network;
    std::unique_ptr<FakeFabric> fabric;
    std::vector<std::unique_ptr<Rail>> rails;
    std::unique_ptr<FabricMemory> memory;
    TestMemory area{1 << 20};
    std::unique_ptr<Registration> registration;
};

TEST_F(BoundMemory, HasNewKeysOnTheRailThatWasFencedAndNoOther) {
    const ChunkRecord before = asked();
    const uint64_t first = epoch(0);
    ASSERT_TRUE(fence(0, first));
    const ChunkRecord after = asked();
    EXPECT_GT(epoch(0), first);
    EXPECT_TRUE(after.key(0).has_value());
    EXPECT_NE(after.key(0), before.key(0));
    EXPECT_EQ(after.key(1), before.key(1));
    EXPECT_EQ(network.counts("n0").registrations, 1u);
    // What is closed already costs nothing.
    ASSERT_TRUE(fence(0, first));
    EXPECT_EQ(asked().key(0), after.key(0));
}

TEST_F(BoundMemory, ComesBackWhenThereIsAnEndpointAgain) {
    const uint64_t first = epoch(0);
    network.refuse_endpoints("n0", true);
    ASSERT_TRUE(fence(0, first)) << "the old one is closed, and that is what was asked for";
    EXPECT_TRUE(rails[0]->state().name.empty());
    EXPECT_FALSE(asked().key(0));
    EXPECT_TRUE(asked().key(1));
    memory->mend();
    EXPECT_FALSE(asked().key(0));
    network.refuse_endpoints("n0", false);
    const uint64_t without = epoch(0);
    memory->mend();
    EXPECT_TRUE(asked().key(0));
    EXPECT_FALSE(rails[0]->state().name.empty());
    EXPECT_GT(epoch(0), without) << "or peers would not ask for the new keys";
}

TEST_F(BoundMemory, ThatANicDoesNotTakeBackIsReachedOverOthers) {
    network.fail_registration("n0", 1);
    ASSERT_TRUE(fence(0, epoch(0)));
    EXPECT_FALSE(asked().key(0));
    EXPECT_TRUE(asked().key(1));
    // The next fence tries again.
    ASSERT_TRUE(fence(0, epoch(0)));
    EXPECT_TRUE(asked().key(0));
    EXPECT_EQ(network.counts("n0").registrations, 1u);
}

TEST_F(BoundMemory, GoesBeforeItsEndpointWhenServingEnds) {
    memory->stop_serving();
    EXPECT_EQ(network.counts("n0").endpoints, 0u) << "nor does anybody initiate";
    EXPECT_EQ(network.counts("n0").registrations, 0u);
    memory->mend();
    EXPECT_EQ(network.counts("n0").endpoints, 0u) << "nobody is served any more";
}

}  // namespace
}  // namespace mooncake::fabric
