// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "metrics/metrics.h"
#include "transport/fabric/fabric.h"
#include "transport/fabric/profile.h"
#include "transport/fabric/testing/fake_fabric.h"
#include "transport/testing/conformance.h"

namespace mooncake::fabric {

/// Host "a" with NICs a0, a1, ... speaks to host "b", on a network in memory; what "a" does is counted.
struct TwoHosts : ::testing::Test {
    static constexpr uint64_t kStripe = 64 << 10;

    explicit TwoHosts(uint64_t area_bytes, uint32_t library = library_version(1, 17)) : area(area_bytes), version(library) {}

    /// So patient that a busy machine is not taken for a fault.
    static EngineOptions calm(const std::string& protocol = "fabric:tcp") {
        EngineOptions options;
        options.protocol = protocol;
        options.discover_topology = false;
        options.fabric.stripe_bytes = kStripe;
        options.fabric.stall_timeout = options.fabric.connect_timeout = 60s;
        return options;
    }
    void open(size_t count, const EngineOptions& options = calm(), const FakeNic& like = {}) {
        a = host("a", count, like, options);
        b = host("b", count, like, options);
        local_region = a->add(local);
        remote_region = b->add(remote);
        peer = a->transport().connect(b->describe(), testing::patience()).value();
    }
    std::unique_ptr<testing::TransportHost> host(const std::string& name, size_t count, const FakeNic& like, const EngineOptions& options) {
        std::vector<FakeNic> nics(count, like);
        for (size_t i = 0; i < count; ++i) nics[i].name = name + std::to_string(i);
        return std::make_unique<testing::TransportHost>(
            [&](const TransportContext& context) {
                TransportContext counted = context;
                if (name == "a") counted.metrics = &metrics;
                return make_fabric_transport(counted, std::make_shared<FakeFabric>(network, nics, version));
            },
            options);
    }
    Slice slice(uint64_t offset, uint64_t length) const {
        return {.local = local.data() + offset, .remote = remote.address() + offset, .length = length, .region = local_region};
    }
    /// All of the area, and whether it arrived.
    bool write(uint64_t seed) {
        local.fill_random(seed);
        return testing::transfer(*peer, Direction::kWrite, slice(0, area)) && std::memcmp(local.data(), remote.data(), area) == 0;
    }
    FakeNetwork::Counts counts(const std::string& nic) const { return network.counts(nic); }
    void TearDown() override {
        peer.reset();
        a.reset();
        b.reset();
    }

    const uint64_t area;
    const uint32_t version;
    FakeNetwork network;
    metrics::Registry metrics;
    testing::TestMemory local{area}, remote{area};
    std::unique_ptr<testing::TransportHost> a, b;
    const MemoryRegion* local_region = nullptr;
    const MemoryRegion* remote_region = nullptr;
    std::unique_ptr<Peer> peer;
};

}  // namespace mooncake::fabric
