// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "topology/topology.h"
#include "transport/fabric/api.h"

// Which NICs are used, and which of them for what memory. Pure, but for the functions that read the machine.
namespace mooncake::fabric {

/// The offers to use, in natural order of their NICs: one per NIC, as the device lists say ("" and "auto-discovery" in them mean all), and
/// the loopback interface only where there is nothing else. At most `max`.
std::vector<Offer> select_offers(std::vector<Offer> offers, const EngineOptions& options, size_t max);

/// Rails by how far they are from some memory.
struct Nearness {
    std::vector<uint32_t> near;  // never empty where there are rails: if none is known to be near, all are
    std::vector<uint32_t> far;
};
/// `nics`: the names of the rails' NICs, by rail.
Nearness rails_near(const Topology& topology, std::string_view location, std::span<const std::string> nics);

/// The machine, or the file the options name. Empty where nothing is to be found out, or the file is bad (said in the log).
Topology topology_for(const EngineOptions& options);

/// Whether some device of this machine is an EFA. `root`: where sys/ is.
bool has_efa_device(const std::string& root);

}  // namespace mooncake::fabric
