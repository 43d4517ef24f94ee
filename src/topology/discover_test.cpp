// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/testing/machine_tree.h"
#include "topology/topology.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MachineTree;

Topology discover(const MachineTree& tree, TopologyOptions options = {}) {
    options.root = tree.root();
    auto topology = discover_topology(options);
    EXPECT_TRUE(topology) << topology.error().to_string();
    return topology ? *topology : Topology();
}

/// Two sockets; on each a PCI switch with two GPUs and one NIC, and one more NIC at the root port.
void build_two_sockets(MachineTree& tree) {
    tree.add_nodes(2);
    for (int node = 0; node < 2; ++node) {
        const std::string root = format_text("pci0000:{}0", node);
        const std::string bridge = format_text("{}/0000:{}0:01.0/0000:{}1:00.0", root, node, node);
        tree.add_gpu({.path = format_text("{}/0000:{}2:00.0", bridge, node), .node = node});
        tree.add_gpu({.path = format_text("{}/0000:{}3:00.0", bridge, node), .node = node});
        tree.add_nic(format_text("mlx5_{}", 2 * node), {.path = format_text("{}/0000:{}4:00.0", bridge, node), .node = node});
        tree.add_nic(format_text("mlx5_{}", 2 * node + 1), {.path = format_text("{}/0000:{}0:05.0", root, node), .node = node});
    }
}

TEST(DiscoverTopology, ListsTheCpuLocationsOfAMachineWithoutNics) {
    MachineTree tree;
    tree.add_nodes(2);
    EXPECT_EQ(to_json(discover(tree)), R"({"cpu:0":[[],[]],"cpu:1":[[],[]]})");
}

TEST(DiscoverTopology, TakesAMachineWithoutNumaAsOneNode) {
    MachineTree tree;
    EXPECT_EQ(to_json(discover(tree)), R"({"cpu:0":[[],[]]})");
}

TEST(DiscoverTopology, PrefersNicsOfTheSameNodeForHostMemory) {
    MachineTree tree;
    build_two_sockets(tree);
    const Topology topology = discover(tree);
    EXPECT_THAT(topology.numa_nodes, ElementsAre(0, 1));
    EXPECT_THAT(topology.nics_for("cpu:0").preferred, ElementsAre("mlx5_0", "mlx5_1"));
    EXPECT_THAT(topology.nics_for("cpu:0").available, ElementsAre("mlx5_2", "mlx5_3"));
    EXPECT_THAT(topology.nics_for("cpu:1").preferred, ElementsAre("mlx5_2", "mlx5_3"));
}

TEST(DiscoverTopology, PrefersTheNicUnderTheSameSwitchForGpuMemory) {
    MachineTree tree;
    build_two_sockets(tree);
    const Topology topology = discover(tree);
    ASSERT_EQ(topology.gpus.size(), 4u);
    EXPECT_EQ(topology.gpus[3].location, "cuda:3");
    EXPECT_EQ(topology.gpus[3].numa_node, 1);
    EXPECT_THAT(topology.nics_for("cuda:1").preferred, ElementsAre("mlx5_0"));
    EXPECT_THAT(topology.nics_for("cuda:1").available, ElementsAre("mlx5_1", "mlx5_2", "mlx5_3"));
    EXPECT_THAT(topology.nics_for("cuda:2").preferred, ElementsAre("mlx5_2"));
}

TEST(DiscoverTopology, UsesAllNicsWhenTheNodeOfTheGpuHasNone) {
    MachineTree tree;
    tree.add_nodes(2);
    tree.add_gpu({.path = "pci0000:00/0000:00:01.0", .node = 0});
    tree.add_nic("mlx5_0", {.path = "pci0000:10/0000:10:01.0", .node = 1});
    tree.add_nic("mlx5_1", {.path = "pci0000:10/0000:10:02.0/0000:11:00.0", .node = 1});
    const Topology topology = discover(tree);
    EXPECT_THAT(topology.nics_for("cuda:0").preferred, ElementsAre("mlx5_0"));
    EXPECT_THAT(topology.nics_for("cuda:0").available, ElementsAre("mlx5_1"));
}

TEST(DiscoverTopology, GivesEveryNicToUnknownLocations) {
    MachineTree tree;
    build_two_sockets(tree);
    const Topology topology = discover(tree);
    EXPECT_THAT(topology.nics_for("*").preferred, ElementsAre("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"));
    EXPECT_THAT(topology.nics_for("*").available, IsEmpty());
    EXPECT_EQ(topology.nics_for("cuda:9"), topology.nics_for("*"));
}

TEST(DiscoverTopology, LeavesOutNicsWithoutActivePortOrDeviceFile) {
    MachineTree tree;
    tree.add_nodes(1);
    tree.add_nic("mlx5_0", {.path = "pci0000:00/0000:00:01.0"}, {.port = "1: DOWN"});
    tree.add_nic("mlx5_1", {.path = "pci0000:00/0000:00:02.0"}, {.device_file = false});
    tree.add_nic("mlx5_2", {.path = "pci0000:00/0000:00:03.0"});
    EXPECT_EQ(to_json(discover(tree)), R"({"cpu:0":[["mlx5_2"],[]]})");
}

TEST(DiscoverTopology, CountsDevicesWithoutNodeToTheOnlyNode) {
    MachineTree tree;
    tree.add_nodes(1);
    tree.add_nic("mlx5_0", {.path = "pci0000:00/0000:00:01.0", .node = -1});
    EXPECT_EQ(discover(tree).nics.at(0).numa_node, 0);
    MachineTree two;
    two.add_nodes(2);
    two.add_nic("mlx5_0", {.path = "pci0000:00/0000:00:01.0", .node = -1});
    EXPECT_EQ(discover(two).nics.at(0).numa_node, -1);
    EXPECT_THAT(discover(two).nics_for("cpu:1").available, ElementsAre("mlx5_0"));
}

TEST(DiscoverTopology, NeverPrefersASoftwareNicForAGpuOverARealOne) {
    MachineTree tree;
    tree.add_nodes(1);
    tree.add_gpu({.path = "pci0000:00/0000:00:01.0"});
    tree.add_software_nic("rxe0");
    EXPECT_THAT(discover(tree).nics_for("cuda:0").preferred, ElementsAre("rxe0"));
    tree.add_nic("mlx5_0", {.path = "pci0000:80/0000:80:01.0/0000:81:00.0"});
    EXPECT_THAT(discover(tree).nics_for("cuda:0").preferred, ElementsAre("mlx5_0"));
}

TEST(DiscoverTopology, CountsOnlyNvidiaDisplayDevicesAsGpusInPciOrder) {
    MachineTree tree;
    tree.add_nodes(1);
    tree.add_gpu({.path = "pci10000:00/10000:01:00.0"});
    tree.add_gpu({.path = "pci0000:a0/0000:a0:00.0"}, "0x10de", "0x030000");
    tree.add_gpu({.path = "pci0000:20/0000:20:00.0"});
    tree.add_gpu({.path = "pci0000:00/0000:00:02.0"}, "0x1002");
    tree.add_gpu({.path = "pci0000:00/0000:00:03.0"}, "0x10de", "0x040300");
    const Topology topology = discover(tree);
    ASSERT_EQ(topology.gpus.size(), 3u);
    EXPECT_EQ(topology.gpus[0].pci_path, "pci0000:20/0000:20:00.0");
    EXPECT_EQ(topology.gpus[1].pci_path, "pci0000:a0/0000:a0:00.0");
    EXPECT_EQ(topology.gpus[2].pci_path, "pci10000:00/10000:01:00.0");
}

TEST(DiscoverTopology, SortsNamesAsPeopleNumberThem) {
    MachineTree tree;
    tree.add_nodes(11);
    tree.add_nic("mlx5_10", {.path = "pci0000:00/0000:00:01.0"});
    tree.add_nic("mlx5_2", {.path = "pci0000:00/0000:00:02.0"});
    const Topology topology = discover(tree);
    EXPECT_THAT(topology.nics_for("cpu:0").preferred, ElementsAre("mlx5_2", "mlx5_10"));
    EXPECT_EQ(topology.locations.rbegin()->first, "cpu:10");
}

TEST(DiscoverTopology, AppliesAllowAndDenyLists) {
    MachineTree tree;
    build_two_sockets(tree);
    const auto names = [&](std::vector<std::string> allow, std::vector<std::string> deny) {
        return discover(tree, {.nic_allow = std::move(allow), .nic_deny = std::move(deny)}).nics_for("*").preferred;
    };
    EXPECT_THAT(names({"mlx5_3", "mlx5_1", "absent"}, {}), ElementsAre("mlx5_1", "mlx5_3"));
    EXPECT_THAT(names({"mlx5_3", "mlx5_1"}, {"mlx5_3"}), ElementsAre("mlx5_1"));
    EXPECT_THAT(names({}, {"mlx5_0"}), ElementsAre("mlx5_1", "mlx5_2", "mlx5_3"));
    EXPECT_EQ(names({"auto-discovery"}, {}).size(), 4u);
    EXPECT_EQ(names({""}, {}).size(), 4u);
    EXPECT_THAT(names({"absent"}, {}), IsEmpty());
}

TEST(DiscoverTopology, LetsAFileReplaceTheLocationsAndStillFilters) {
    MachineTree tree;
    build_two_sockets(tree);
    tree.write("custom.json", R"({"cpu:0": [["mlx5_3", "other"], ["mlx5_0"]]})");
    const Topology topology = discover(tree, {.nic_deny = {"mlx5_0"}, .file = tree.root() + "/custom.json"});
    EXPECT_EQ(to_json(topology), R"({"cpu:0":[["mlx5_3","other"],[]]})");
    EXPECT_EQ(topology.nics.at(0).numa_node, 1);  // known from the machine
}

TEST(DiscoverTopology, SaysWhatIsWrongWithAFile) {
    MachineTree tree;
    const auto problem = [&](const std::string& file) {
        const auto topology = discover_topology({.root = tree.root(), .file = file});
        EXPECT_FALSE(topology);
        return topology ? std::string() : topology.error().to_string();
    };
    EXPECT_THAT(problem(tree.root() + "/absent.json"), HasSubstr("absent.json"));
    tree.write("bad.json", "{\"cpu:0\": [[]]}");
    EXPECT_THAT(problem(tree.root() + "/bad.json"), ::testing::AllOf(HasSubstr("bad.json"), HasSubstr("'cpu:0' needs two lists")));
    tree.write("large.json", std::string((1 << 20) + 1, ' '));
    EXPECT_THAT(problem(tree.root() + "/large.json"), HasSubstr("more than 1048576"));
    EXPECT_THAT(problem(tree.root()), HasSubstr("cannot read"));  // a folder
}

TEST(DiscoverTopology, ReadsThisMachine) {
    const auto topology = discover_topology({});
    ASSERT_TRUE(topology);
    EXPECT_FALSE(topology->numa_nodes.empty());
    EXPECT_THAT(to_json(*topology), HasSubstr("\"cpu:"));
}

}  // namespace
}  // namespace mooncake
