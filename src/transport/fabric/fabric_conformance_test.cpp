// SPDX-License-Identifier: Apache-2.0
// The promises of every transport, kept over those of libfabric's providers that need no hardware.
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

}  // namespace

MC_INSTANTIATE_CONFORMANCE_OF_TWO(FabricTcp, tcp("offset", "offset", {"127.0.0.1"}), tcp("basic", "basic", {"127.0.0.1"}),
                                  tcp("three_rails", "auto", {"127.0.0.1", "127.0.0.2", "127.0.0.3"}));

}  // namespace mooncake::testing
