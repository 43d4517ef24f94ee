// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "topology/sysfs.h"
#include "topology/topology.h"

namespace mooncake {

namespace {

namespace fs = std::filesystem;

constexpr long kDisplayClass = 0x03;  // PCI base class: VGA (0300), 3D (0302) and other display controllers
constexpr long kNvidiaVendor = 0x10de;
constexpr uintmax_t kFileBytesMax = 1 << 20;

bool is_all(const std::string& name) { return name.empty() || name == "auto-discovery"; }

/// Which NICs the user wants.
class NicFilter {
public:
    explicit NicFilter(const TopologyOptions& options) : allow_(options.nic_allow), deny_(options.nic_deny) {
        if (std::any_of(allow_.begin(), allow_.end(), is_all)) allow_.clear();
    }
    bool accepts(const std::string& name) const {
        if (contains(deny_, name)) return false;
        return allow_.empty() || contains(allow_, name);
    }
    /// Names the user asked for that are not there.
    std::vector<std::string> missing(const std::vector<Nic>& nics) const {
        std::vector<std::string> names;
        for (const std::string& name : allow_)
            if (std::none_of(nics.begin(), nics.end(), [&](const Nic& nic) { return nic.name == name; }) && !contains(deny_, name))
                names.push_back(name);
        return names;
    }

private:
    static bool contains(const std::vector<std::string>& names, const std::string& name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    }
    std::vector<std::string> allow_;
    const std::vector<std::string>& deny_;
};

/// Reads one machine, or a tree that looks like one.
class Machine {
public:
    explicit Machine(const fs::path& root) : sys_(root / "sys"), dev_(root / "dev"), nodes_(read_numa_nodes()) {}

    const std::vector<int>& numa_nodes() const { return nodes_; }
    std::vector<Nic> nics(const NicFilter& filter) const;
    std::vector<Gpu> gpus() const;

private:
    std::vector<int> read_numa_nodes() const;
    bool has_active_port(const fs::path& device) const;
    bool has_device_file(const std::string& nic) const;
    int numa_node_of_device(const fs::path& device) const;
    std::string pci_path(const fs::path& device) const;

    const fs::path sys_, dev_;
    const std::vector<int> nodes_;
};

std::vector<int> Machine::read_numa_nodes() const {
    const fs::path folder = sys_ / "devices/system/node";
    std::vector<int> nodes;
    for (const int node : sysfs::parse_cpu_list(sysfs::read_line(folder / "online"))) {
        std::error_code ignored;
        if (fs::exists(folder / format_text("node{}", node), ignored)) nodes.push_back(node);
    }
    if (nodes.empty()) nodes.push_back(0);  // a kernel without NUMA: everything is on node 0
    return nodes;
}

bool Machine::has_active_port(const fs::path& device) const {
    const auto ports = sysfs::list_names(device / "ports");
    return std::any_of(ports.begin(), ports.end(), [&](const std::string& port) {
        return sysfs::read_line(device / "ports" / port / "state").starts_with("4:");  // "4: ACTIVE"
    });
}

bool Machine::has_device_file(const std::string& nic) const {
    const fs::path verbs = sys_ / "class/infiniband_verbs";
    for (const std::string& name : sysfs::list_names(verbs))
        if (sysfs::read_line(verbs / name / "ibdev") == nic) return ::access((dev_ / "infiniband" / name).c_str(), R_OK | W_OK) == 0;
    return false;
}

int Machine::numa_node_of_device(const fs::path& device) const {
    const int node = static_cast<int>(sysfs::read_number(device / "numa_node").value_or(-1));
    // Machines with one node, most virtual ones among them, often say -1.
    return node < 0 && nodes_.size() == 1 ? nodes_.front() : node;
}

std::string Machine::pci_path(const fs::path& device) const {
    std::error_code status;
    const fs::path real = fs::canonical(device, status);
    if (status) return {};
    const fs::path base = fs::canonical(sys_ / "devices", status);
    if (status) return {};
    const std::string path = real.lexically_relative(base).string();
    return path.starts_with("pci") ? path : std::string();
}

std::vector<Nic> Machine::nics(const NicFilter& filter) const {
    const fs::path folder = sys_ / "class/infiniband";
    std::vector<Nic> found;
    for (const std::string& name : sysfs::list_names(folder)) {
        if (!filter.accepts(name)) continue;
        if (!has_active_port(folder / name)) {
            MC_LOG_INFO("NIC {} is not used: no port of it is active", name);
            continue;
        }
        if (!has_device_file(name)) {
            MC_LOG_INFO("NIC {} is not used: its file in /dev/infiniband is missing or not accessible", name);
            continue;
        }
        const fs::path device = folder / name / "device";
        found.push_back({.name = name, .numa_node = numa_node_of_device(device), .pci_path = pci_path(device)});
    }
    return found;
}

std::vector<Gpu> Machine::gpus() const {
    const fs::path folder = sys_ / "bus/pci/devices";
    std::vector<std::string> addresses;
    for (const std::string& address : sysfs::list_names(folder)) {
        if (sysfs::read_number(folder / address / "vendor") != kNvidiaVendor) continue;
        if (sysfs::read_number(folder / address / "class").value_or(0) >> 16 == kDisplayClass) addresses.push_back(address);
    }
    // Addresses are hexadecimal of fixed width, except that a large domain number takes more digits.
    std::sort(addresses.begin(), addresses.end(),
              [](const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
    std::vector<Gpu> found;
    for (const std::string& address : addresses)
        found.push_back({.location = format_text("cuda:{}", found.size()),
                         .numa_node = numa_node_of_device(folder / address),
                         .pci_path = pci_path(folder / address)});
    return found;
}

NicPriority priority_of_node(int node, const std::vector<Nic>& nics) {
    NicPriority priority;
    for (const Nic& nic : nics) (nic.numa_node == node ? priority.preferred : priority.available).push_back(nic.name);
    return priority;
}

/// Of the NICs on the GPU's node (of all, if there is none) those nearest on the PCI tree are preferred.
NicPriority priority_of_gpu(const Gpu& gpu, const std::vector<Nic>& nics) {
    const auto on_node = [&](const Nic& nic) { return gpu.numa_node >= 0 && nic.numa_node == gpu.numa_node; };
    const bool any_on_node = std::any_of(nics.begin(), nics.end(), on_node);
    const auto is_candidate = [&](const Nic& nic) { return !any_on_node || on_node(nic); };
    size_t nearest = SIZE_MAX;
    for (const Nic& nic : nics)
        if (is_candidate(nic)) nearest = std::min(nearest, pci_distance(gpu.pci_path, nic.pci_path));
    NicPriority priority;
    for (const Nic& nic : nics) {
        const bool preferred = is_candidate(nic) && pci_distance(gpu.pci_path, nic.pci_path) == nearest;
        (preferred ? priority.preferred : priority.available).push_back(nic.name);
    }
    return priority;
}

Result<std::string> read_file(const std::string& path) {
    std::error_code status;
    const uintmax_t bytes = fs::file_size(path, status);
    if (status) return fail_errno(Code::kNotFound, status.value(), "cannot read topology file '{}'", path);
    if (bytes > kFileBytesMax)
        return fail(Code::kInvalidArgument, "topology file '{}' has {} bytes, more than {}", path, bytes, kFileBytesMax);
    std::ifstream stream(path, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    if (!stream) return fail_errno(Code::kNotFound, errno, "cannot read topology file '{}'", path);
    return std::move(text).str();
}

/// Locations from the file, filtered; what the machine says about a NIC of that name is added.
Result<> load_file(const std::string& path, const NicFilter& filter, Topology& topology) {
    MC_ASSIGN_OR_RETURN(const std::string text, read_file(path));
    auto loaded = topology_from_json(text);
    if (!loaded) return Unexpected(std::move(loaded).error().with_context(path));
    const auto rejected = [&](const std::string& name) { return !filter.accepts(name); };
    for (auto& [location, nics] : loaded->locations) {
        std::erase_if(nics.preferred, rejected);
        std::erase_if(nics.available, rejected);
    }
    std::erase_if(loaded->nics, [&](const Nic& nic) { return rejected(nic.name); });
    for (Nic& nic : loaded->nics) {
        const auto same = std::find_if(topology.nics.begin(), topology.nics.end(),
                                       [&](const Nic& other) { return other.name == nic.name; });
        if (same != topology.nics.end()) nic = *same;
    }
    topology.locations = std::move(loaded->locations);
    topology.nics = std::move(loaded->nics);
    return {};
}

}  // namespace

Result<Topology> discover_topology(const TopologyOptions& options) {
    const NicFilter filter(options);
    const Machine machine(options.root);
    Topology topology{.locations = {}, .numa_nodes = machine.numa_nodes(), .nics = machine.nics(filter), .gpus = machine.gpus()};
    if (options.file.empty()) {
        for (const int node : topology.numa_nodes) topology.locations[format_text("cpu:{}", node)] = priority_of_node(node, topology.nics);
        for (const Gpu& gpu : topology.gpus) topology.locations[gpu.location] = priority_of_gpu(gpu, topology.nics);
    } else {
        MC_RETURN_IF_ERROR(load_file(options.file, filter, topology));
    }
    for (const std::string& name : filter.missing(topology.nics)) MC_LOG_WARNING("NIC {} was asked for but is not usable here", name);
    return topology;
}

}  // namespace mooncake
