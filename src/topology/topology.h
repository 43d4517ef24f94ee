// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

// What lies where in this machine: NUMA nodes, RDMA NICs, GPUs, and which NICs each memory location should use. Read once at
// start from sysfs; plain data afterwards, safe to share between threads as long as nobody writes.
namespace mooncake {

/// An RDMA device with at least one active port and a device file we may open.
struct Nic {
    std::string name;      // "mlx5_0", "rdmap16s27"
    int numa_node = -1;    // -1: the machine does not say
    std::string pci_path;  // "pci0000:00/0000:00:01.0/0000:01:00.0"; empty for software devices
};

struct Gpu {
    std::string location;  // "cuda:0"
    int numa_node = -1;
    std::string pci_path;
};

/// The NICs for memory at one location: the near ones, and all the others to fall back on.
struct NicPriority {
    std::vector<std::string> preferred;
    std::vector<std::string> available;

    friend bool operator==(const NicPriority&, const NicPriority&) = default;
};

/// Orders names as people number them: mlx5_2 before mlx5_10.
struct NaturalOrder {
    using is_transparent = void;
    bool operator()(const std::string& a, const std::string& b) const noexcept;
};

struct Topology {
    std::map<std::string, NicPriority, NaturalOrder> locations;  // by "cpu:0", "cuda:1", ...
    std::vector<int> numa_nodes;
    std::vector<Nic> nics;  // in natural order of their names
    std::vector<Gpu> gpus;  // in order of their numbers

    /// The NICs for a location; "*" and locations not listed here get every NIC as preferred, because nothing is known to be near.
    NicPriority nics_for(std::string_view location) const;
};

struct TopologyOptions {
    std::string root = "/";              // where sys/ and dev/ are; tests point it to a tree of their own
    std::vector<std::string> nic_allow;  // only these; empty, "" and "auto-discovery" mean all
    std::vector<std::string> nic_deny;
    std::string file;  // a JSON file that replaces what discovery says about locations
};

/// Reads the machine, or `options.file`. A machine without NICs or GPUs is no error. Fails only for a bad file: kNotFound,
/// kInvalidArgument.
Result<Topology> discover_topology(const TopologyOptions& options);

/// {"cpu:0": [["mlx5_0"], ["mlx5_1"]], "cuda:0": [[...], [...]]}: location -> [preferred, available].
std::string to_json(const Topology& topology);
/// The inverse of to_json(). Of the NICs only the names are known then. kInvalidArgument says what is wrong and where.
Result<Topology> topology_from_json(std::string_view text);

/// How far two PCI devices are apart: the steps from one up to their common bridge and down to the other. SIZE_MAX if either
/// path is empty.
size_t pci_distance(std::string_view path_a, std::string_view path_b) noexcept;

}  // namespace mooncake
