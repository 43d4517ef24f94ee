// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "topology/topology.h"
#include "transport/fabric/api.h"

// Which NICs are used, and which of them for what memory. Pure, but for the functions that read the machine.
namespace mooncake::fabric {

/// The offers to use: one per NIC, as the device lists say ("" and "auto-discovery" in them mean all), and the loopback interface only where
/// there is nothing else. In natural order of their NICs, unless the options name the source addresses: then as those. At most `max`.
std::vector<Offer> select_offers(std::vector<Offer> offers, const EngineOptions& options, size_t max);

/// Rails by how far they are from some memory.
struct Nearness {
    std::vector<uint32_t> near;  // never empty where there are rails: if none is known to be near, all are
    std::vector<uint32_t> far;
};
/// `nics`: the names of the rails' NICs, by rail.
Nearness rails_near(const Topology& topology, std::string_view location, std::span<const std::string> nics);

/// Rails by location, found out once. Safe to share between threads.
class RailOrder {
public:
    RailOrder(const Topology& topology, std::span<const std::string> nics);
    const Nearness& of(std::string_view location) const;

private:
    std::map<std::string, Nearness, std::less<>> by_location_;  // only where not all are alike
    Nearness all_;
};

/// The machine, or the file the options name. Empty where nothing is to be found out, or the file is bad (said in the log).
Topology topology_for(const EngineOptions& options);

/// Whether some device of this machine is an EFA. `root`: where sys/ is.
bool has_efa_device(const std::string& root);

}  // namespace mooncake::fabric
