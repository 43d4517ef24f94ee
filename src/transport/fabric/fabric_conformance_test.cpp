// SPDX-License-Identifier: Apache-2.0
// The promises of every transport, kept over those of libfabric's providers that need no hardware.
#include <cstring>

#include "transport/fabric/fabric.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {

namespace {

TransportCase tcp(std::string name, std::string style, std::vector<std::string> nodes) {
    TransportCase made{.name = std::move(name),
                       .make = [](const TransportContext& context) { return fabric::make_fabric_transport(context); }};
    made.options.protocol = "fabric:tcp";
    made.options.fabric.mr_style = std::move(style);
    made.options.fabric.nodes = std::move(nodes);
    return made;
}

TransportCase shm() {
    TransportCase made = tcp("shm", "auto", {});
    made.options.protocol = "fabric:shm";
    return made;
}

}  // namespace

MC_INSTANTIATE_CONFORMANCE_OF_TWO(FabricTcp, tcp("offset", "offset", {"127.0.0.1"}), tcp("basic", "basic", {"127.0.0.1"}),
                                  tcp("three_rails", "auto", {"127.0.0.1", "127.0.0.2", "127.0.0.3"}));

MC_INSTANTIATE_KINDS(FabricTcp, tcp("offset", "offset", {"127.0.0.1"}), tcp("basic", "basic", {"127.0.0.1"}));

/// Not all of the suite: this provider checks no key, so that unregistering stops nobody who knows the address (docs/fabric.md).
TEST(FabricShm, MovesBytesBothWays) {
    TransportPair pair(shm());
    const TestMemory remote(8 << 20), local(8 << 20);
    pair.target().add(remote);
    const MemoryRegion* const region = pair.initiator().add(local);
    auto peer = pair.connect();
    const Slice all{.local = local.data(), .remote = remote.address(), .length = local.length(), .region = region};
    for (uint64_t round = 0; round < 5; ++round) {
        local.fill_random(round);
        ASSERT_TRUE(transfer(*peer, Direction::kWrite, all));
        ASSERT_EQ(std::memcmp(local.data(), remote.data(), local.length()), 0);
        remote.fill_random(round + 100);
        ASSERT_TRUE(transfer(*peer, Direction::kRead, all, Submit::kLeave));
        ASSERT_EQ(std::memcmp(local.data(), remote.data(), local.length()), 0);
    }
    Slice wrong = all;
    wrong.remote += 1;
    EXPECT_EQ(code_of(transfer(*peer, Direction::kRead, wrong)), Code::kNotRegistered);
}

}  // namespace mooncake::testing
