// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace mooncake::testing {

/// A folder that looks like the sys/ and dev/ of a machine; removed on destruction.
class MachineTree {
public:
    MachineTree();
    ~MachineTree();
    MachineTree(const MachineTree&) = delete;
    MachineTree& operator=(const MachineTree&) = delete;

    std::string root() const { return root_.string(); }
    void add_nodes(int count);
    struct Device {
        std::string path;  // below sys/devices: "pci0000:00/0000:00:01.0/0000:01:00.0"
        int node = 0;
    };
    struct NicState {
        std::string port = "4: ACTIVE";
        bool device_file = true;
    };
    void add_nic(const std::string& name, const Device& device, const NicState& state);
    void add_nic(const std::string& name, const Device& device) { add_nic(name, device, NicState()); }
    /// A device without hardware behind it, as soft RoCE makes.
    void add_software_nic(const std::string& name);
    void add_gpu(const Device& device, const std::string& vendor = "0x10de", const std::string& pci_class = "0x030200");
    void write(const std::string& path, const std::string& text);

private:
    void add_pci_device(const Device& device, const std::string& vendor, const std::string& pci_class);
    void add_verbs(const std::string& name, const std::filesystem::path& device, const NicState& state);

    std::filesystem::path root_;
    int verbs_ = 0;
};

}  // namespace mooncake::testing
