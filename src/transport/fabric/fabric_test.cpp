// SPDX-License-Identifier: Apache-2.0
// What happens when NICs, links and peers fail, on a network in memory.
#include "transport/fabric/fabric.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "transport/fabric/testing/fake_fabric.h"
#include "transport/testing/conformance.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;
using mooncake::testing::TransportHost;

constexpr uint64_t kArea = 8 << 20;

/// A link that is silent for `patience` is given up: short where a test waits for that, long where a busy machine must not cause it.
EngineOptions options_with(Duration patience) {
    EngineOptions options;
    options.protocol = "fabric:tcp";
    options.fabric.stripe_bytes = 64 << 10;
    options.fabric.stall_timeout = patience;
    options.fabric.connect_timeout = patience;
    return options;
}
EngineOptions quick() { return options_with(500ms); }
EngineOptions calm() { return options_with(60s); }

std::vector<FakeNic> nics(const std::string& host, size_t count, FakeNic like = {}) {
    std::vector<FakeNic> made(count, like);
    for (size_t i = 0; i < count; ++i) made[i].name = host + std::to_string(i);
    return made;
}

/// Host "a" writes to and reads from host "b"; NICs are called a0, a1, b0, b1.
struct FabricFaults : ::testing::Test {
    void open(size_t a_nics, size_t b_nics, FakeNic like = {}, EngineOptions options = calm()) {
        a = host("a", a_nics, like, options);
        b = host("b", b_nics, like, options);
        remote = std::make_unique<TestMemory>(kArea);
        local = std::make_unique<TestMemory>(kArea);
        remote_region = b->add(*remote);
        local_region = a->add(*local);
        peer = connect();
    }
    std::unique_ptr<TransportHost> host(const std::string& name, size_t count, const FakeNic& like, const EngineOptions& options) {
        return std::make_unique<TransportHost>(
            [&](const TransportContext& context) {
                return make_fabric_transport(context, std::make_shared<FakeFabric>(network, nics(name, count, like)));
            },
            options);
    }
    std::unique_ptr<Peer> connect() {
        auto connected = a->transport().connect(b->describe(), patience());
        if (!connected) ADD_FAILURE() << connected.error().to_string();
        return std::move(connected).value();
    }
    Slice slice(uint64_t offset, uint64_t length) const {
        return {.local = local->data() + offset, .remote = remote->address() + offset, .length = length, .region = local_region};
    }
    bool same() const { return std::memcmp(local->data(), remote->data(), kArea) == 0; }
    uint64_t carried(const std::string& nic) const { return network.counts(nic).bytes; }
    void TearDown() override {
        peer.reset();
        a.reset();
        b.reset();
    }

    FakeNetwork network;
    std::unique_ptr<TransportHost> a, b;
    std::unique_ptr<TestMemory> remote, local;
    const MemoryRegion* remote_region = nullptr;
    const MemoryRegion* local_region = nullptr;
    std::unique_ptr<Peer> peer;
};

TEST_F(FabricFaults, OneLargeRequestUsesEveryRail) {
    open(4, 4);
    local->fill_random(1);
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
    EXPECT_TRUE(same());
    for (const char* nic : {"a0", "a1", "a2", "a3"}) EXPECT_GT(carried(nic), 0u) << nic;
}

TEST_F(FabricFaults, RailsMeetWhereNumbersDiffer) {
    open(3, 2);
    local->fill_random(2);
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
    EXPECT_TRUE(same());
    local->fill(std::byte{});
    ASSERT_TRUE(transfer(*peer, Direction::kRead, slice(0, kArea)));
    EXPECT_TRUE(same());
}

TEST_F(FabricFaults, NicsThatWantLocalKeysGetThem) {
    open(2, 2, {.style = MrStyle::kBasic, .local_keys = true});
    local->fill_random(3);
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
    EXPECT_TRUE(same());
    TestMemory plain(1 << 20);
    plain.fill_random(4);
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, Slice{.local = plain.data(), .remote = remote->address(), .length = plain.length()}));
    EXPECT_EQ(std::memcmp(plain.data(), remote->data(), plain.length()), 0);
}

TEST_F(FabricFaults, MemoryThatDoesNotFitOneNicIsReachedOverOthers) {
    // Each NIC takes a little more than half of the area.
    EngineOptions options = calm();
    options.fabric.page_budget = kArea / 4096 * 3 / 4;
    open(2, 2, {.pages_max = options.fabric.page_budget}, options);
    local->fill_random(5);
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
    EXPECT_TRUE(same());
}

TEST_F(FabricFaults, ABrokenConnectionCostsNothingButARepetition) {
    open(1, 1);
    for (int round = 0; round < 20; ++round) {
        local->fill_random(static_cast<uint64_t>(round));
        Completion completion;
        completion.add(1);
        std::vector<Slice> slices{slice(0, kArea)};
        slices[0].completion = &completion;
        peer->submit(Direction::kWrite, slices, Submit::kLeave);
        network.break_link("a0", "b0", ECONNRESET);
        ASSERT_TRUE(peer->wait(completion, patience()));
        ASSERT_TRUE(completion.result()) << completion.result().error().to_string();
        ASSERT_TRUE(same()) << "round " << round;
    }
    EXPECT_TRUE(peer->usable());
}

TEST_F(FabricFaults, ACutLinkMovesItsWorkToAnotherRailAndNothingLandsLate) {
    network.set_late_writes(true);
    open(2, 2, {}, quick());
    for (int round = 0; round < 5; ++round) {
        local->fill_random(static_cast<uint64_t>(round));
        network.cut("a1", "b1");
        const auto written = transfer(*peer, Direction::kWrite, slice(0, kArea));
        ASSERT_TRUE(written) << written.error().to_string();
        ASSERT_TRUE(same()) << "round " << round;
        // Newer data; then what the closed endpoint left behind gets through.
        local->fill_random(static_cast<uint64_t>(round) + 100);
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
        network.heal("a1", "b1");
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 1)));
        ASSERT_TRUE(same()) << "bytes landed late in round " << round;
    }
    EXPECT_EQ(network.counts("a1").late_writes, 0u);
}

TEST_F(FabricFaults, ARailComesBackWhenItsLinkDoes) {
    open(2, 2, {}, quick());
    network.cut("a1", "b1");
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
    network.heal("a1", "b1");
    const uint64_t before = carried("a1");
    const Deadline deadline = patience();
    while (carried("a1") < before + (1 << 20) && !deadline.passed()) ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
    EXPECT_GE(carried("a1"), before + (1 << 20));
}

TEST_F(FabricFaults, WithoutAnyPathThePeerBreaksAndTheNextOneIsFencedFirst) {
    network.set_late_writes(true);
    open(1, 1, {}, quick());
    local->fill_random(1);
    network.cut("a0", "b0");
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, slice(0, kArea))), Code::kUnavailable);
    EXPECT_FALSE(peer->usable());

    peer.reset();
    EXPECT_EQ(code_of(a->transport().connect(b->describe(), Deadline::after(1s))), Code::kUnavailable);
    remote->fill(std::byte{7});
    network.heal("a0", "b0");
    peer = connect();
    EXPECT_TRUE(transfer(*peer, Direction::kRead, slice(0, 1)));
    EXPECT_TRUE(remote->all(std::byte{7})) << "bytes of the broken peer landed";
}

TEST_F(FabricFaults, CancelOfAStuckWriteFencesTheTarget) {
    network.set_late_writes(true);
    for (const bool flushes : {true, false}) {
        network.set_lose_flushes(!flushes);
        open(1, 1);
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 1)));
        network.cut("a0", "b0");
        Completion completion;
        completion.add(1);
        std::vector<Slice> slices{slice(0, kArea)};
        slices[0].completion = &completion;
        peer->submit(Direction::kWrite, slices, Submit::kLeave);
        EXPECT_FALSE(peer->wait(completion, Deadline::after(50ms)));

        EXPECT_EQ(peer->cancel(completion, Error(Code::kTimedOut, "too long"), patience()), Stopped::kEverywhere);

        EXPECT_EQ(completion.result().error().code(), Code::kTimedOut);
        remote->fill(std::byte{9});
        network.heal("a0", "b0");
        ASSERT_TRUE(transfer(*peer, Direction::kRead, slice(0, 1)));
        EXPECT_TRUE(remote->all(std::byte{9}));
        EXPECT_EQ(network.counts("a0").in_flight, 0u);
        TearDown();
    }
}

TEST_F(FabricFaults, AHungPeerLeavesOthersAlone) {
    open(1, 1, {}, quick());
    auto c = host("c", 1, {}, calm());
    const TestMemory third(1 << 20);
    c->add(third);
    auto other = a->transport().connect(c->describe(), patience());
    ASSERT_TRUE(other);
    network.stop("b0");
    Completion stuck;
    stuck.add(1);
    std::vector<Slice> slices{slice(0, kArea)};
    slices[0].completion = &stuck;
    peer->submit(Direction::kRead, slices, Submit::kLeave);
    const Slice one{.local = local->data(), .remote = third.address(), .length = 1 << 20, .region = local_region};
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(transfer(**other, Direction::kWrite, one));
    ASSERT_TRUE(peer->wait(stuck, patience()));
    EXPECT_EQ(code_of(stuck.result()), Code::kUnavailable);
    ASSERT_TRUE(transfer(**other, Direction::kWrite, one));
    network.go_on("b0");
    other->reset();
    c.reset();
}

TEST_F(FabricFaults, ThirdPartiesSurviveTheFenceOfAnother) {
    open(1, 1);
    auto c = host("c", 1, {}, calm());
    auto other = c->transport().connect(b->describe(), patience());
    ASSERT_TRUE(other);
    TestMemory source(1 << 20);
    source.fill_random(1);
    const MemoryRegion* const region = c->add(source);
    std::atomic<bool> over{false};
    std::atomic<int> strange{0};
    std::jthread load([&] {
        while (!over.load())
            if (!transfer(**other, Direction::kWrite,
                          Slice{.local = source.data(), .remote = remote->address() + (4 << 20), .length = 1 << 20, .region = region}))
                ++strange;
    });
    for (int round = 0; round < 20; ++round) {
        const TestMemory passing(4096);
        const MemoryRegion* const shown = b->add(passing);
        ASSERT_TRUE(transfer(*peer, Direction::kWrite,
                             Slice{.local = local->data(), .remote = passing.address(), .length = 4096, .region = local_region}));
        ASSERT_TRUE(b->remove(shown));
    }
    over = true;
    load.join();
    EXPECT_EQ(strange, 0);
    EXPECT_TRUE((*other)->usable());
    EXPECT_EQ(std::memcmp(source.data(), remote->data() + (4 << 20), source.length()), 0);
    other->reset();
    c.reset();
}

TEST_F(FabricFaults, EndpointsAndAddressesDoNotGrowWithPeersAndFaults) {
    open(1, 1);
    for (int round = 0; round < 30; ++round) {
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, 1 << 20)));
        const TestMemory passing(4096);
        const MemoryRegion* const shown = b->add(passing);
        ASSERT_TRUE(transfer(*peer, Direction::kWrite,
                             Slice{.local = local->data(), .remote = passing.address(), .length = 4096, .region = local_region}));
        ASSERT_TRUE(b->remove(shown));
        if (round % 3 == 0) peer = connect();
    }
    peer.reset();
    EXPECT_EQ(network.counts("a0").endpoints, 2u);
    EXPECT_EQ(network.counts("b0").endpoints, 2u);
    EXPECT_EQ(network.counts("a0").addresses, 0u);
    EXPECT_EQ(network.counts("a0").stale_addresses, 0u);
    EXPECT_EQ(network.counts("b0").registrations, 2u) << "the area, and what probes read";
}

TEST_F(FabricFaults, ARegistrationThatFailsLeavesNothingBehind) {
    open(2, 2);
    const size_t before = network.counts("b0").registrations + network.counts("b1").registrations;
    network.fail_registration("b0", 1);
    network.fail_registration("b1", 1);
    TestMemory more(1 << 20);
    const auto refused = b->transport().register_memory(more.region(0, more.length()));
    EXPECT_EQ(code_of(refused), Code::kNoSpace);
    EXPECT_EQ(network.counts("b0").registrations + network.counts("b1").registrations, before);
}

TEST_F(FabricFaults, ABatchAsksOnceForAllThatIsNotThere) {
    open(1, 1);
    const TestMemory unknown(kArea);
    constexpr uint64_t kLength = 64;
    for (const bool some_registered : {false, true}) {
        std::vector<Slice> slices;
        for (uint64_t i = 0; i < 20'000; ++i) {
            slices.push_back(slice(i * kLength, kLength));
            if (!some_registered || i % 2 == 0) slices.back().remote = unknown.address() + i * kLength;
        }
        Completion completion;
        completion.add(static_cast<uint32_t>(slices.size()));
        for (Slice& one : slices) one.completion = &completion;
        const uint64_t before = b->control().answered();
        peer->submit(Direction::kWrite, slices, Submit::kWait);
        ASSERT_TRUE(peer->wait(completion, patience()));
        EXPECT_EQ(code_of(completion.result()), Code::kNotRegistered);
        EXPECT_EQ(completion.bytes(), some_registered ? slices.size() / 2 * kLength : 0);
        EXPECT_LE(b->control().answered() - before, 10u) << "questions, with those of the sweep";
    }
}

TEST_F(FabricFaults, ErrorsOfNobodyAreSurvived) {
    open(1, 1);
    network.inject_error("a0", EIO, 0);
    network.inject_error("b0", EIO, 0);
    local->fill_random(1);
    ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
    EXPECT_TRUE(same());
}

TEST_F(FabricFaults, AgainIsNotAnError) {
    open(1, 1);
    for (int round = 0; round < 20; ++round) {
        network.again("a0", 5);
        local->fill_random(static_cast<uint64_t>(round));
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kArea), round % 2 == 0 ? Submit::kWait : Submit::kLeave));
        ASSERT_TRUE(same());
    }
}

}  // namespace
}  // namespace mooncake::fabric
