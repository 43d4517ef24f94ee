// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "topology/topology.h"

namespace mooncake {

namespace {

using Json = nlohmann::ordered_json;

Result<Json> parse_json(std::string_view text) {
    try {
        return Json::parse(text);
    } catch (const Json::exception& problem) {
        return fail(Code::kInvalidArgument, "topology is not JSON: {}", problem.what());
    }
}

Result<std::vector<std::string>> parse_names(const Json& list, const std::string& location, const char* what) {
    if (!list.is_array()) return fail(Code::kInvalidArgument, "topology: the {} NICs of '{}' are not a list", what, location);
    std::vector<std::string> names;
    for (const Json& entry : list) {
        if (!entry.is_string() || entry.get_ref<const std::string&>().empty())
            return fail(Code::kInvalidArgument, "topology: the {} NICs of '{}' are not all names", what, location);
        const std::string& name = entry.get_ref<const std::string&>();
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return names;
}

Result<NicPriority> parse_priority(const Json& lists, const std::string& location) {
    if (!lists.is_array() || lists.size() != 2)
        return fail(Code::kInvalidArgument, "topology: '{}' needs two lists, [preferred NICs] and [available NICs]", location);
    NicPriority priority;
    MC_ASSIGN_OR_RETURN(priority.preferred, parse_names(lists[0], location, "preferred"));
    MC_ASSIGN_OR_RETURN(priority.available, parse_names(lists[1], location, "available"));
    return priority;
}

}  // namespace

std::string to_json(const Topology& topology) {
    Json json = Json::object();
    for (const auto& [location, nics] : topology.locations) json[location] = Json::array({nics.preferred, nics.available});
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Topology> topology_from_json(std::string_view text) {
    MC_ASSIGN_OR_RETURN(const Json json, parse_json(text));
    if (!json.is_object()) return fail(Code::kInvalidArgument, "topology: the outermost value is not an object of locations");
    Topology topology;
    std::set<std::string, NaturalOrder> names;
    for (const auto& [location, lists] : json.items()) {
        if (location.empty()) return fail(Code::kInvalidArgument, "topology: a location without a name");
        MC_ASSIGN_OR_RETURN(NicPriority priority, parse_priority(lists, location));
        names.insert(priority.preferred.begin(), priority.preferred.end());
        names.insert(priority.available.begin(), priority.available.end());
        topology.locations[location] = std::move(priority);
    }
    for (const std::string& name : names) topology.nics.push_back({.name = name});
    return topology;
}

}  // namespace mooncake
