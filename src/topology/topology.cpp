// SPDX-License-Identifier: Apache-2.0
#include "topology/topology.h"

#include <algorithm>
#include <cstring>

namespace mooncake {

namespace {

/// Cuts the first component off a path.
std::string_view take_component(std::string_view& path) noexcept {
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string_view component = path.substr(0, slash);
    path.remove_prefix(std::min(slash + 1, path.size()));
    return component;
}

size_t component_count(std::string_view path) noexcept {
    if (path.empty()) return 0;
    return static_cast<size_t>(std::count(path.begin(), path.end(), '/')) + 1;
}

}  // namespace

bool NaturalOrder::operator()(const std::string& a, const std::string& b) const noexcept { return ::strverscmp(a.c_str(), b.c_str()) < 0; }

NicPriority Topology::nics_for(std::string_view location) const {
    const auto found = locations.find(std::string(location));
    if (found != locations.end()) return found->second;
    NicPriority all;
    for (const Nic& nic : nics) all.preferred.push_back(nic.name);
    return all;
}

size_t pci_distance(std::string_view path_a, std::string_view path_b) noexcept {
    if (path_a.empty() || path_b.empty()) return SIZE_MAX;
    while (!path_a.empty() && !path_b.empty()) {
        std::string_view rest_a = path_a, rest_b = path_b;
        if (take_component(rest_a) != take_component(rest_b)) break;
        path_a = rest_a;
        path_b = rest_b;
    }
    return component_count(path_a) + component_count(path_b);
}

}  // namespace mooncake
