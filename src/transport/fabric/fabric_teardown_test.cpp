// SPDX-License-Identifier: Apache-2.0
// Connections and transports that come and go over libfabric, again and again, also in the middle of their work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "transport/fabric/fabric.h"
#include "transport/testing/conformance.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::patience;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;
using mooncake::testing::TransportHost;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kGrowthMax = 256 << 20;  // what was freed stays for a while
#else
constexpr size_t kGrowthMax = 512 << 10;  // 2 KiB per connection
#endif

std::unique_ptr<TransportHost> make_host(std::vector<std::string> nodes) {
    EngineOptions options;
    options.protocol = "fabric:tcp";
    options.fabric.nodes = std::move(nodes);
    options.fabric.stall_timeout = options.fabric.connect_timeout = 60s;
    return std::make_unique<TransportHost>([](const TransportContext& context) { return make_fabric_transport(context); }, options);
}

struct Usage {
    size_t descriptors = 0, threads = 0, resident_bytes = 0;
};
size_t entries_of(const char* directory) {
    const std::filesystem::directory_iterator all(directory);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
}
Usage usage() {
    size_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return {.descriptors = entries_of("/proc/self/fd"), .threads = entries_of("/proc/self/task"), .resident_bytes = resident * 4096};
}

TEST(FabricTeardown, FiveHundredConnectionsLeaveNothingBehind) {
    const TestMemory remote(1 << 20), local(1 << 20);
    auto target = make_host({"127.0.0.1", "127.0.0.2"});
    target->add(remote);
    const auto cycles = [&](int count, int per_host) {
        std::unique_ptr<TransportHost> initiator;
        const MemoryRegion* region = nullptr;
        for (int i = 0; i < count; ++i) {
            if (i % per_host == 0) {
                initiator.reset();
                initiator = make_host({"127.0.0.3", "127.0.0.4"});
                region = initiator->add(local);
            }
            auto peer = initiator->transport().connect(target->describe(), patience()).value();
            const uint64_t length = i % 3 == 0 ? local.length() : 100;
            ASSERT_TRUE(transfer(*peer, Direction::kWrite,
                                 Slice{.local = local.data(), .remote = remote.address(), .length = length, .region = region}));
        }
    };
    cycles(50, 10);
    const Usage before = usage();
    // Memory grows at first, with what allocators keep per thread, but not for ever.
    size_t growth = SIZE_MAX;
    for (int round = 0; round < 8 && (round < 2 || growth >= kGrowthMax); ++round) {
        const size_t resident = usage().resident_bytes;
        cycles(250, 10);
        growth = usage().resident_bytes - std::min(usage().resident_bytes, resident);
    }
    // The target closes its ends of connections when it hears that the others are.
    const Deadline deadline = patience();
    Usage after = usage();
    while ((after.descriptors > before.descriptors || after.threads > before.threads) && !deadline.passed()) after = usage();
    EXPECT_LE(after.descriptors, before.descriptors);
    EXPECT_LE(after.threads, before.threads);
    EXPECT_LT(growth, kGrowthMax) << "in 250 connections";
}

/// Who goes next; a connection before its transport, memory before its.
enum class Part : uint8_t { kPeer, kInitiator, kMemory, kTarget };

TEST(FabricTeardown, OperationsUnderWaySurviveNobodyInAnyOrder) {
    constexpr Part kOrders[][4] = {
        {Part::kPeer, Part::kInitiator, Part::kMemory, Part::kTarget}, {Part::kPeer, Part::kMemory, Part::kInitiator, Part::kTarget},
        {Part::kPeer, Part::kMemory, Part::kTarget, Part::kInitiator}, {Part::kMemory, Part::kPeer, Part::kInitiator, Part::kTarget},
        {Part::kMemory, Part::kPeer, Part::kTarget, Part::kInitiator}, {Part::kMemory, Part::kTarget, Part::kPeer, Part::kInitiator},
    };
    const TestMemory remote(4 << 20), local(4 << 20);
    for (int round = 0; round < 200; ++round) {
        auto target = make_host({"127.0.0.1"});
        auto initiator = make_host({"127.0.0.2"});
        const MemoryRegion* const lent = target->add(remote);
        const MemoryRegion* const region = initiator->add(local);
        auto peer = initiator->transport().connect(target->describe(), patience()).value();
        const Direction direction = round % 2 == 0 ? Direction::kWrite : Direction::kRead;
        if (round % 4 < 2) {  // else the connection is only being made
            ASSERT_TRUE(
                transfer(*peer, direction, Slice{.local = local.data(), .remote = remote.address(), .length = 1, .region = region}));
        }
        Completion completion;
        std::vector<Slice> slices;
        for (uint64_t at = 0; at < local.length(); at += 64 << 10)
            slices.push_back({.local = local.data() + at,
                              .remote = remote.address() + at,
                              .length = 64 << 10,
                              .completion = &completion,
                              .region = region});
        completion.add(static_cast<uint32_t>(slices.size()));
        peer->submit(direction, slices, Submit::kLeave);
        for (const Part part : kOrders[round % std::size(kOrders)]) {
            switch (part) {
                case Part::kPeer: peer.reset(); break;
                case Part::kInitiator: initiator.reset(); break;
                case Part::kMemory: ASSERT_TRUE(target->remove(lent)); break;
                case Part::kTarget: target.reset(); break;
            }
        }
        ASSERT_TRUE(completion.done()) << "round " << round;
    }
}

TEST(FabricTeardown, ChunksThatAreWithOneRailOnlyAreReachedOverThat) {
    // Every NIC takes a quarter of the memory and a page: no chunk is with two of them.
    constexpr uint64_t kArea = 8 << 20;
    EngineOptions options;
    options.protocol = "fabric:tcp";
    options.fabric.nodes = {"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"};
    options.fabric.page_budget = kArea / 4096 / 4 + 1;
    options.fabric.stripe_bytes = 256 << 10;
    const auto make = [](const TransportContext& context) { return make_fabric_transport(context); };
    TransportHost target(make, options), initiator(make, options);
    const TestMemory remote(kArea), local(kArea);
    target.add(remote);
    const MemoryRegion* const region = initiator.add(local);
    auto peer = initiator.transport().connect(target.describe(), patience()).value();
    for (uint64_t round = 0; round < 10; ++round) {
        local.fill_random(round);
        const auto written = transfer(*peer, Direction::kWrite,
                                      Slice{.local = local.data(), .remote = remote.address(), .length = kArea, .region = region});
        ASSERT_TRUE(written) << written.error().to_string();
        ASSERT_EQ(std::memcmp(local.data(), remote.data(), kArea), 0);
        remote.fill_random(round + 100);
        ASSERT_TRUE(
            transfer(*peer, Direction::kRead, Slice{.local = local.data(), .remote = remote.address(), .length = kArea, .region = region}));
        ASSERT_EQ(std::memcmp(local.data(), remote.data(), kArea), 0);
    }
}

}  // namespace
}  // namespace mooncake::fabric
