// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include <set>

#include "capi/calls.h"
#include "topology/sysfs.h"
#include "topology/topology.h"

namespace mooncake::capi {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kPort = 1;  // NICs with several ports show up as several devices nowadays
constexpr int kGidIndex = 0;

/// "100 Gb/sec (4X EDR)" -> 100
double gigabits(const std::string& rate) { return std::strtod(rate.c_str(), nullptr); }

Json describe_nic(const Nic& nic) {
    const std::string port = format_text("/sys/class/infiniband/{}/ports/{}", nic.name, kPort);
    return {{"device", nic.name},     {"numa", nic.numa_node}, {"gid", sysfs::read_line(format_text("{}/gids/{}", port, kGidIndex))},
            {"gid_index", kGidIndex}, {"port", kPort},         {"speed_gbps", gigabits(sysfs::read_line(port + "/rate"))},
            {"source", "sysfs"}};
}

Json collect(const Engine& engine) {
    Json nics = Json::array();
    const std::string known = engine.topology_json();
    std::set<std::string> names;
    if (const auto topology = topology_from_json(known))
        for (const Nic& nic : topology->nics) names.insert(nic.name);
    // The engine says which NICs it may use, the machine where they are.
    const auto machine = discover_topology({});
    if (machine)
        for (const Nic& nic : machine->nics)
            if (names.contains(nic.name)) nics.push_back(describe_nic(nic));
    // Made by us, so it parses; `allow_exceptions` off turns a bug into an empty answer.
    Json locations = Json::parse(known, nullptr, false);
    if (locations.is_discarded()) locations = Json::object();
    return {{"local_nics", std::move(nics)}, {"topology", std::move(locations)}};
}

std::string to_text(const Json& links) {
    std::string text = format_text("local NICs: {}\n", links["local_nics"].size());
    for (const Json& nic : links["local_nics"])
        text += format_text("  {} numa {} port {} {} Gb/s gid {} (index {})\n", nic["device"].get_ref<const std::string&>(),
                            nic["numa"].get<int>(), nic["port"].get<int>(), nic["speed_gbps"].get<double>(),
                            nic["gid"].get_ref<const std::string&>(), nic["gid_index"].get<int>());
    text += "topology (location: preferred NICs, available NICs):\n";
    for (const auto& [location, lists] : links["topology"].items()) text += format_text("  {}: {}\n", location, lists.dump());
    return text;
}

}  // namespace

std::string describe_links(const Engine& engine, bool json) {
    const Json links = collect(engine);
    return json ? links.dump(-1, ' ', false, Json::error_handler_t::replace) : to_text(links);
}

}  // namespace mooncake::capi
