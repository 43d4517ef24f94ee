// SPDX-License-Identifier: Apache-2.0
// How paths come and go: forgotten when idle, announced where targets must know who writes, alone on their last try. On a network in
// memory, and one over libfabric.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "transport/fabric/fabric_peer.h"
#include "transport/fabric/initiators.h"
#include "transport/fabric/testing/two_hosts.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;
using mooncake::testing::TransportHost;

constexpr uint64_t kArea = 1 << 20;

template <typename Condition>
bool eventually(Condition condition) {
    const Deadline deadline = patience();
    while (!condition() && !deadline.passed()) std::this_thread::yield();
    return condition();
}

struct FabricLife : TwoHosts {
    FabricLife() : TwoHosts(kArea, library_version(2, 1)) {}
};

// ---- idle paths

TEST(Route, IsIdleOnceNothingHappenedForTheWholeTime) {
    const Time start{1h};
    Route route{.progress = start};
    EXPECT_FALSE(route.is_idle(start + 599s, 10min));
    EXPECT_TRUE(route.is_idle(start + 600s, 10min));
    route.in_flight = 1;
    EXPECT_FALSE(route.is_idle(start + 24h, 10min));
    route.in_flight = 0;
    route.connecting_since = start;
    EXPECT_FALSE(route.is_idle(start + 24h, 10min)) << "somebody waits for it";
}

TEST_F(FabricLife, PathsThatNobodyUsesAreForgottenAndComeBack) {
    EngineOptions options = calm("fabric:tcp");
    options.fabric.idle_timeout = 50ms;
    open(2, options);
    for (uint64_t round = 0; round < 3; ++round) {
        ASSERT_TRUE(write(round));
        ASSERT_TRUE(eventually([&] { return counts("a0").addresses + counts("a1").addresses == 0; }));
        EXPECT_TRUE(peer->usable());
    }
    EXPECT_EQ(counts("a0").stale_addresses, 0u);
    EXPECT_GE(metrics.counter("mooncake_fabric_paths_forgotten_total", "", {{"nic", "a0"}}).value(), 2u);
    // A warm-up makes them anew as well.
    const uint64_t before = counts("a0").posted;
    ASSERT_TRUE(peer->warm_up(patience()));
    EXPECT_GT(counts("a0").posted, before);
}

TEST_F(FabricLife, PathsInUseAreKept) {
    EngineOptions options = calm("fabric:tcp");
    options.fabric.idle_timeout = 10s;
    open(1, options);
    ASSERT_TRUE(write(1));
    ASSERT_TRUE(write(2));
    EXPECT_EQ(counts("a0").addresses, 1u);
}

TEST(FabricLifeOverLibfabric, AnIdlePathComesBackByItself) {
    const auto make = [](const TransportContext& context) { return make_fabric_transport(context); };
    EngineOptions options = FabricLife::calm("fabric:tcp");
    options.fabric.nodes = {"127.0.0.1", "127.0.0.2"};
    options.fabric.idle_timeout = 20ms;
    TransportHost target(make, options);
    metrics::Registry metrics;
    TransportHost initiator(
        [&](const TransportContext& context) {
            TransportContext counted = context;
            counted.metrics = &metrics;
            return make_fabric_transport(counted);
        },
        options);
    const TestMemory remote(4 << 20), local(4 << 20);
    target.add(remote);
    const MemoryRegion* const region = initiator.add(local);
    auto peer = initiator.transport().connect(target.describe(), patience()).value();
    for (uint64_t round = 1; round <= 10; ++round) {
        local.fill_random(round);
        const auto written = transfer(*peer, Direction::kWrite,
                                      Slice{.local = local.data(), .remote = remote.address(), .length = local.length(), .region = region});
        ASSERT_TRUE(written) << written.error().to_string();
        ASSERT_EQ(std::memcmp(local.data(), remote.data(), local.length()), 0);
        const auto forgotten = [&](const char* nic) {
            return metrics.counter("mooncake_fabric_paths_forgotten_total", "", {{"nic", nic}}).value();
        };
        ASSERT_TRUE(eventually([&] { return forgotten("127.0.0.1") + forgotten("127.0.0.2") >= round; }));
    }
}

// ---- the last try

TEST_F(FabricLife, OnlyTheOperationThatBreaksItsConnectionFails) {
    // As with tcp: what the target refuses takes everything else to it along.
    open(2, calm("fabric:tcp"), {.style = MrStyle::kBasic});
    constexpr uint64_t kPart = kArea / 8;
    for (int round = 0; round < 5; ++round) {
        local.fill_random(static_cast<uint64_t>(round));
        remote.fill(std::byte{});
        network.poison(remote.data() + 3 * kPart);
        std::vector<Completion> completions(8);
        std::vector<Slice> slices;
        for (uint64_t i = 0; i < 8; ++i) {
            completions[i].add(1);
            slices.push_back(slice(i * kPart, kPart));
            slices.back().completion = &completions[i];
        }
        peer->submit(Direction::kWrite, slices, Submit::kLeave);
        for (uint64_t i = 0; i < 8; ++i) {
            ASSERT_TRUE(peer->wait(completions[i], patience()));
            EXPECT_EQ(completions[i].result().has_value(), i != 3) << "part " << i << " of round " << round;
            EXPECT_EQ(std::memcmp(local.data() + i * kPart, remote.data() + i * kPart, kPart) == 0, i != 3);
        }
        EXPECT_TRUE(peer->usable());
        network.poison(nullptr);
        ASSERT_TRUE(write(100));
    }
}

// ---- targets that must know who writes

TEST_F(FabricLife, ATargetThatMustKnowWhoWritesIsTold) {
    FakeNic like;
    like.style = MrStyle::kBasic;
    like.knows_initiators = true;
    EngineOptions options = calm("fabric:efa-direct");
    options.fabric.stall_timeout = 300ms;
    open(2, options, like);
    ASSERT_TRUE(write(1));
    EXPECT_EQ(counts("a0").refused_strangers + counts("a1").refused_strangers, 0u);
    EXPECT_EQ(counts("b0").addresses, 2u);
    // An endpoint that is thrown away gives way to one with another name.
    network.cut("a1", "b1");
    ASSERT_TRUE(write(2));
    network.heal("a1", "b1");
    const uint64_t before = counts("a1").bytes;
    ASSERT_TRUE(eventually([&] { return write(3) && counts("a1").bytes > before + kArea; }));
    EXPECT_EQ(counts("a0").refused_strangers + counts("a1").refused_strangers, 0u);
    EXPECT_EQ(counts("b0").addresses, 2u) << "the old name stays";
}

TEST_F(FabricLife, InitiatorsThatAreSilentAreForgotten) {
    FakeFabric fabric(network, {{.name = "t0"}, {.name = "t1"}});
    const auto offers = fabric.offers({.provider = "net"}).value();
    std::vector<std::unique_ptr<Rail>> rails;
    std::vector<Rail*> pointers;
    for (const Offer& offer : offers) {
        rails.push_back(Rail::open(fabric, offer, {.index = static_cast<uint32_t>(rails.size()), .profile = *find_profile("tcp")}).value());
        pointers.push_back(rails.back().get());
    }
    const auto record = [&](uint64_t name) {
        RailRecord made = rails[0]->record();
        made.name.resize(sizeof name);
        std::memcpy(made.name.data(), &name, sizeof name);
        return made;
    };
    const Incarnation first{1}, second{2};
    const Time start{1h};
    {
        Initiators initiators(pointers, 10min);
        ASSERT_TRUE(initiators.tell(first, std::vector{record(100), record(101)}, start));
        ASSERT_TRUE(initiators.tell(second, std::vector{record(101)}, start + 5min));
        EXPECT_EQ(counts("t0").addresses, 2u);
        EXPECT_EQ(counts("t1").addresses, 2u);
        // Repeated, with one name changed.
        ASSERT_TRUE(initiators.tell(first, std::vector{record(102), record(101)}, start + 6min));
        EXPECT_EQ(counts("t0").addresses, 2u);
        initiators.sweep(start + 14min);
        EXPECT_EQ(initiators.count(), 2u);
        initiators.sweep(start + 15min);
        EXPECT_EQ(initiators.count(), 1u);
        EXPECT_EQ(counts("t0").addresses, 2u) << "the other still has both";
        RailRecord other = record(103);
        other.protocol = 77;
        ASSERT_TRUE(initiators.tell(first, std::vector{other}, start + 15min));
        EXPECT_EQ(counts("t0").addresses, 0u);
        ASSERT_TRUE(initiators.tell(second, std::vector{record(104)}, start + 15min));
    }
    EXPECT_EQ(counts("t0").addresses + counts("t1").addresses, 0u);
}

TEST_F(FabricLife, ARailWithLittleRoomSaysSo) {
    FakeFabric fabric(network, {{.name = "t0"}});
    ProviderProfile profile = *find_profile("tcp");
    profile.addresses_max = 10;
    auto rail = Rail::open(fabric, fabric.offers({.provider = "net"}).value().front(), {.profile = profile}).value();
    Lock lock(rail->mutex());
    std::vector<AddressHandle> handles;
    for (uint64_t name = 100; name < 110; ++name) {
        EXPECT_EQ(rail->is_crowded(), handles.size() >= 9);
        EXPECT_FALSE(rail->is_full());
        std::vector<std::byte> bytes(sizeof name);
        std::memcpy(bytes.data(), &name, sizeof name);
        handles.push_back(rail->insert_address(bytes).value());
    }
    EXPECT_TRUE(rail->is_full());
    EXPECT_EQ(code_of(rail->insert_address(std::vector<std::byte>(8, std::byte{1}))), Code::kNoSpace);
    for (const AddressHandle handle : handles) rail->remove_address(handle);
    EXPECT_FALSE(rail->is_crowded());
}

// ---- the end of serving, and no way at all

TEST_F(FabricLife, ATargetThatStopsServingIsNotWrittenToAnyMore) {
    for (const bool bound : {false, true}) {
        FakeNic like;
        like.endpoint_keys = bound;
        EngineOptions options = calm(bound ? "cxi" : "fabric:tcp");
        options.fabric.stall_timeout = options.fabric.connect_timeout = 300ms;
        open(2, options, like);
        ASSERT_TRUE(write(1));
        EXPECT_TRUE(b->transport().stop_serving(patience()));
        remote.fill(std::byte{7});
        EXPECT_FALSE(transfer(*peer, Direction::kWrite, slice(0, kArea)));
        EXPECT_TRUE(remote.all(std::byte{7}));
        EXPECT_TRUE(b->transport().stop_serving(patience()));
        // It may still write to others itself.
        EXPECT_TRUE(b->transport().connect(a->describe(), patience()));
        TearDown();
    }
}

TEST_F(FabricLife, WhoServesNobodyHasAnEndpointOnlyForAsLongAsThereArePeers) {
    for (const char* const protocol : {"fabric:tcp", "fabric:efa-direct"}) {
        FakeNic like;
        like.style = MrStyle::kBasic;
        like.knows_initiators = protocol == std::string_view("fabric:efa-direct");
        open(1, calm(protocol), like);
        ASSERT_TRUE(write(1));
        EXPECT_TRUE(a->transport().stop_serving(patience()));
        ASSERT_TRUE(write(2)) << "our own peers go on";
        EXPECT_EQ(counts("a0").endpoints, 1u);
        peer.reset();
        EXPECT_EQ(counts("a0").endpoints, 0u) << "or targets would keep a connection for nothing";
        peer = a->transport().connect(b->describe(), patience()).value();
        ASSERT_TRUE(write(3));
        peer.reset();
        EXPECT_EQ(counts("a0").endpoints, 0u);
        TearDown();
    }
}

TEST_F(FabricLife, WithoutAnyRailAConnectionIsRefusedSoThatAnotherTransportMayTakeOver) {
    EngineOptions options = calm("fabric:tcp");
    options.fabric.stall_timeout = 200ms;
    open(2, options);
    ASSERT_TRUE(write(1));
    for (const char* nic : {"a0", "a1"})
        for (const char* other : {"b0", "b1"}) network.cut(nic, other);
    // A piece may have had all its tries before the last of the four paths is given up.
    for (int i = 0; i < 10 && peer->usable(); ++i)
        ASSERT_EQ(code_of(transfer(*peer, Direction::kWrite, slice(0, kArea))), Code::kUnavailable);
    EXPECT_FALSE(peer->usable());
    EXPECT_EQ(code_of(a->transport().connect(b->describe(), Deadline::after(500ms))), Code::kUnavailable);
    for (const char* nic : {"a0", "a1"})
        for (const char* other : {"b0", "b1"}) network.heal(nic, other);
    peer.reset();
    peer = a->transport().connect(b->describe(), patience()).value();
    EXPECT_TRUE(write(2));
}

// ---- what is counted

TEST_F(FabricLife, CountsWhatPathsDoAndHowLongItTakes) {
    open(2);
    // A rail whose thread comes late may find nothing left to write; a warm-up uses each.
    ASSERT_TRUE(peer->warm_up(patience()));
    ASSERT_TRUE(write(1));
    const auto counted = [&](const char* name, const metrics::Labels& labels) { return metrics.counter(name, "", labels).value(); };
    uint64_t bytes = 0;
    for (const auto& [nic, there] : {std::pair("a0", "0"), std::pair("a1", "1")}) {
        bytes += counted("mooncake_fabric_path_bytes_total", {{"nic", nic}, {"remote_rail", there}});
        for (const char* direction : {"read", "write"}) {
            const metrics::Labels labels = {{"nic", nic}, {"direction", direction}};
            EXPECT_EQ(metrics.histogram("mooncake_fabric_latency_seconds", "", labels, 1e9).snapshot().count,
                      counted("mooncake_fabric_operations_total", labels));
        }
        EXPECT_GT(counted("mooncake_fabric_operations_total", {{"nic", nic}, {"direction", "read"}}), 0u);
    }
    EXPECT_GE(bytes, kArea);
    auto& ready = metrics.gauge("mooncake_fabric_paths", "", {{"nic", "a1"}, {"state", "ready"}});
    EXPECT_TRUE(eventually([&] { return ready.value() == 1; }));
    peer.reset();
    EXPECT_TRUE(eventually([&] { return ready.value() == 0; }));
}

}  // namespace
}  // namespace mooncake::fabric
