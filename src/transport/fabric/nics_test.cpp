// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/nics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace mooncake::fabric {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> selected(const std::vector<std::string>& nics, const EngineOptions& options, size_t max = 64) {
    std::vector<Offer> offers;
    for (const std::string& nic : nics) offers.push_back({.nic = nic});
    std::vector<std::string> names;
    for (const Offer& offer : select_offers(std::move(offers), options, max)) names.push_back(offer.nic);
    return names;
}

TEST(FabricNics, AreTakenOnceEachInNaturalOrder) {
    EXPECT_THAT(selected({"rdmap10", "rdmap2", "rdmap10", "rdmap1"}, {}), ElementsAre("rdmap1", "rdmap2", "rdmap10"));
    EXPECT_THAT(selected({"b", "a", "c"}, {}, 2), ElementsAre("a", "b"));
}

TEST(FabricNics, KeepToTheDeviceLists) {
    EngineOptions options;
    options.device_allow = {"a", "c"};
    EXPECT_THAT(selected({"a", "b", "c"}, options), ElementsAre("a", "c"));
    options.device_deny = {"a"};
    EXPECT_THAT(selected({"a", "b", "c"}, options), ElementsAre("c"));
    options.device_allow = {"auto-discovery"};
    EXPECT_THAT(selected({"a", "b", "c"}, options), ElementsAre("b", "c"));
    options.device_allow = {"nobody"};
    EXPECT_THAT(selected({"a", "b", "c"}, options), IsEmpty());
}

TEST(FabricNics, UseLoopbackOnlyWhereThereIsNothingElse) {
    EXPECT_THAT(selected({"lo", "eth0"}, {}), ElementsAre("eth0"));
    EXPECT_THAT(selected({"lo"}, {}), ElementsAre("lo"));
}

TEST(FabricNics, AreNearOrFar) {
    const auto topology = topology_from_json(R"({"cuda:0": [["n1", "n2"], ["n0"]], "cpu:0": [["x"], []]})");
    ASSERT_TRUE(topology);
    const std::vector<std::string> nics = {"n0", "n1", "n2", "n3"};
    EXPECT_THAT(rails_near(*topology, "cuda:0", nics).near, ElementsAre(1, 2));
    EXPECT_THAT(rails_near(*topology, "cuda:0", nics).far, ElementsAre(0, 3));
    EXPECT_THAT(rails_near(*topology, "cpu:0", nics).near, ElementsAre(0, 1, 2, 3)) << "none of ours is near: all are alike";
    EXPECT_THAT(rails_near(*topology, "cpu:0", nics).far, IsEmpty());
    EXPECT_THAT(rails_near(Topology{}, "cpu:7", nics).near, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(rails_near(Topology{}, "*", {}).near, IsEmpty());
}

TEST(FabricNics, KeepTheOrderOfTheAddressesGiven) {
    EngineOptions options;
    options.fabric.nodes = {"10.0.0.9", "10.0.0.1"};
    EXPECT_THAT(selected({"10.0.0.9", "10.0.0.1"}, options), ElementsAre("10.0.0.9", "10.0.0.1"));
}

TEST(FabricNics, AreOrderedByLocation) {
    const auto topology = topology_from_json(R"({"cuda:0": [["n1"], ["n0"]], "cpu:0": [["n0", "n1"], []]})");
    const std::vector<std::string> nics = {"n0", "n1"};
    const RailOrder order(*topology, nics);
    EXPECT_THAT(order.of("cuda:0").near, ElementsAre(1));
    EXPECT_THAT(order.of("cuda:0").far, ElementsAre(0));
    EXPECT_THAT(order.of("cpu:0").near, ElementsAre(0, 1));
    EXPECT_THAT(order.of("*").near, ElementsAre(0, 1));
    EXPECT_THAT(RailOrder(Topology{}, nics).of("cuda:0").near, ElementsAre(0, 1));
}

TEST(FabricNics, TopologyMayComeFromAFileOrNotAtAll) {
    EngineOptions options;
    options.discover_topology = false;
    EXPECT_TRUE(topology_for(options).locations.empty());
    options.topology_file = "/there/is/no/such/file.json";
    EXPECT_TRUE(topology_for(options).locations.empty());
    const auto file = std::filesystem::path(::testing::TempDir()) / "fabric_nics_topology.json";
    std::ofstream(file) << R"({"cpu:0": [["n1"], ["n0"]]})";
    options.topology_file = file;
    EXPECT_THAT(topology_for(options).nics_for("cpu:0").preferred, ElementsAre("n1"));
    std::filesystem::remove(file);
}

TEST(FabricNics, KnowAnEfaByItsVendor) {
    const auto root = std::filesystem::path(::testing::TempDir()) / "fabric_nics_root";
    const auto device = root / "sys/class/infiniband/rdmap0/device";
    std::filesystem::create_directories(device);
    EXPECT_FALSE(has_efa_device(root));
    std::ofstream(device / "vendor") << "0x15b3\n";
    EXPECT_FALSE(has_efa_device(root));
    std::ofstream(device / "vendor") << "0x1d0f\n";
    EXPECT_TRUE(has_efa_device(root));
    std::filesystem::remove_all(root);
    EXPECT_FALSE(has_efa_device(root));
}

}  // namespace
}  // namespace mooncake::fabric
