// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/nics.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/log.h"
#include "topology/sysfs.h"

namespace mooncake::fabric {

namespace {

constexpr long kAmazon = 0x1d0f;  // PCI vendor

bool contains(const std::vector<std::string>& list, const std::string& item) {
    return std::find(list.begin(), list.end(), item) != list.end();
}

bool allows(const std::vector<std::string>& list, const std::string& nic) {
    return list.empty() || contains(list, nic) || contains(list, "") || contains(list, "auto-discovery");
}

}  // namespace

std::vector<Offer> select_offers(std::vector<Offer> offers, const EngineOptions& options, size_t max) {
    std::erase_if(offers,
                  [&](const Offer& offer) { return contains(options.device_deny, offer.nic) || !allows(options.device_allow, offer.nic); });
    const auto loopback = [](const Offer& offer) { return offer.nic == "lo"; };
    if (!std::all_of(offers.begin(), offers.end(), loopback)) std::erase_if(offers, loopback);
    std::set<std::string> seen;  // a NIC may be offered once per address
    std::erase_if(offers, [&](const Offer& offer) { return !seen.insert(offer.nic).second; });
    // The same order on every host of a kind, so that rail i of one talks to rail i of the other.
    if (options.fabric.nodes.empty())
        std::stable_sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return NaturalOrder()(a.nic, b.nic); });
    if (offers.size() > max) offers.resize(max);
    return offers;
}

Nearness rails_near(const Topology& topology, std::string_view location, std::span<const std::string> nics) {
    const NicPriority priority = topology.nics_for(location);
    Nearness result;
    for (uint32_t rail = 0; rail < nics.size(); ++rail)
        (contains(priority.preferred, nics[rail]) ? result.near : result.far).push_back(rail);
    if (result.near.empty()) std::swap(result.near, result.far);
    return result;
}

RailOrder::RailOrder(const Topology& topology, std::span<const std::string> nics) {
    for (uint32_t rail = 0; rail < nics.size(); ++rail) all_.near.push_back(rail);
    for (const auto& [location, priority] : topology.locations) {
        Nearness nearness = rails_near(topology, location, nics);
        if (!nearness.far.empty()) by_location_.emplace(location, std::move(nearness));
    }
}

const Nearness& RailOrder::of(std::string_view location) const {
    if (by_location_.empty()) return all_;
    const auto found = by_location_.find(location);
    return found == by_location_.end() ? all_ : found->second;
}

Topology topology_for(const EngineOptions& options) {
    if (!options.discover_topology && options.topology_file.empty()) return {};
    auto found = discover_topology({.nic_allow = options.device_allow, .nic_deny = options.device_deny, .file = options.topology_file});
    if (found) return std::move(*found);
    MC_LOG_WARNING("the topology is not used: {}", found.error().to_string());
    return {};
}

bool has_efa_device(const std::string& root) {
    const std::filesystem::path devices = std::filesystem::path(root) / "sys/class/infiniband";
    for (const std::string& name : sysfs::list_names(devices))
        if (sysfs::read_number(devices / name / "device/vendor") == kAmazon) return true;
    return false;
}

}  // namespace mooncake::fabric
