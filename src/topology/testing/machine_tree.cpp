// SPDX-License-Identifier: Apache-2.0
#include "topology/testing/machine_tree.h"

#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace mooncake::testing {

namespace fs = std::filesystem;

MachineTree::MachineTree() {
    std::string pattern = (fs::temp_directory_path() / "machine-XXXXXX").string();
    MC_CHECK(::mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    fs::create_directories(root_ / "sys/devices");
}

MachineTree::~MachineTree() {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
}

void MachineTree::write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
}

void MachineTree::add_nodes(int count) {
    write("sys/devices/system/node/online", count == 1 ? "0\n" : format_text("0-{}\n", count - 1));
    for (int node = 0; node < count; ++node) write(format_text("sys/devices/system/node/node{}/cpulist", node), "0\n");
}

void MachineTree::add_pci_device(const Device& device, const std::string& vendor, const std::string& pci_class) {
    const std::string folder = "sys/devices/" + device.path;
    write(folder + "/vendor", vendor + "\n");
    write(folder + "/class", pci_class + "\n");
    write(folder + "/numa_node", format_text("{}\n", device.node));
    const fs::path link = root_ / "sys/bus/pci/devices" / fs::path(device.path).filename();
    fs::create_directories(link.parent_path());
    fs::create_symlink(fs::relative(root_ / folder, link.parent_path()), link);
}

void MachineTree::add_verbs(const std::string& name, const fs::path& device, const NicState& state) {
    write((device / "infiniband" / name / "ports/1/state").string(), state.port + "\n");
    const fs::path link = root_ / "sys/class/infiniband" / name;
    fs::create_directories(link.parent_path());
    fs::create_symlink(fs::relative(root_ / device / "infiniband" / name, link.parent_path()), link);
    const std::string uverbs = format_text("uverbs{}", verbs_++);
    write("sys/class/infiniband_verbs/" + uverbs + "/ibdev", name + "\n");
    if (state.device_file) write("dev/infiniband/" + uverbs, "");
}

void MachineTree::add_nic(const std::string& name, const Device& device, const NicState& state) {
    add_pci_device(device, "0x15b3", "0x020700");
    add_verbs(name, fs::path("sys/devices") / device.path, state);
    fs::create_symlink("../..", root_ / "sys/devices" / device.path / "infiniband" / name / "device");
}

void MachineTree::add_software_nic(const std::string& name) { add_verbs(name, "sys/devices/virtual", NicState()); }

void MachineTree::add_gpu(const Device& device, const std::string& vendor, const std::string& pci_class) {
    add_pci_device(device, vendor, pci_class);
}

}  // namespace mooncake::testing
