// SPDX-License-Identifier: Apache-2.0
#include "topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/sysfs.h"

namespace mooncake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TopologyJson, ComesBackAsItWasWritten) {
    const std::string text = R"({"cpu:0":[["mlx5_0"],["mlx5_1"]],"cpu:1":[["mlx5_1"],["mlx5_0"]],"cuda:0":[["mlx5_0"],["mlx5_1"]]})";
    const auto topology = topology_from_json(text);
    ASSERT_TRUE(topology) << topology.error().to_string();
    EXPECT_EQ(to_json(*topology), text);
    ASSERT_EQ(topology->nics.size(), 2u);
    EXPECT_EQ(topology->nics[1].name, "mlx5_1");
}

TEST(TopologyJson, AcceptsBlanksEmptyListsAndRepeatedNames) {
    const auto topology = topology_from_json("\n{ \"cpu:0\" : \n[\n [],\n []\n ], \"npu:3\": [[\"a\", \"a\"], [\"b\"]] }\n");
    ASSERT_TRUE(topology) << topology.error().to_string();
    EXPECT_EQ(to_json(*topology), R"({"cpu:0":[[],[]],"npu:3":[["a"],["b"]]})");
    EXPECT_TRUE(topology_from_json("{}"));
}

TEST(TopologyJson, SaysWhereTheTextIsWrong) {
    const auto problem = [](std::string_view text) {
        const auto topology = topology_from_json(text);
        EXPECT_FALSE(topology) << text;
        if (topology) return std::string();
        EXPECT_EQ(topology.error().code(), Code::kInvalidArgument);
        return topology.error().message();
    };
    EXPECT_THAT(problem(""), HasSubstr("not JSON"));
    EXPECT_THAT(problem("{\"cpu:0\": [[], []"), HasSubstr("column"));
    EXPECT_THAT(problem("[]"), HasSubstr("not an object"));
    EXPECT_THAT(problem("{\"cpu:1\": 5}"), HasSubstr("'cpu:1' needs two lists"));
    EXPECT_THAT(problem("{\"cpu:1\": [[],[],[]]}"), HasSubstr("needs two lists"));
    EXPECT_THAT(problem("{\"cpu:1\": [[], \"mlx5_0\"]}"), HasSubstr("available NICs of 'cpu:1' are not a list"));
    EXPECT_THAT(problem("{\"cpu:1\": [[3], []]}"), HasSubstr("preferred NICs of 'cpu:1'"));
    EXPECT_THAT(problem("{\"cpu:1\": [[\"\"], []]}"), HasSubstr("preferred NICs of 'cpu:1'"));
    EXPECT_THAT(problem("{\"\": [[], []]}"), HasSubstr("without a name"));
    EXPECT_THAT(problem(std::string(100'000, '[')), HasSubstr("not JSON"));
    EXPECT_THAT(problem("{\"cpu:0\xff\": [[], []]}"), HasSubstr("not JSON"));
}

TEST(PciDistance, CountsTheStepsToTheCommonBridgeAndBack) {
    EXPECT_EQ(pci_distance("pci0/a/b", "pci0/a/b"), 0u);
    EXPECT_EQ(pci_distance("pci0/a/b", "pci0/a/c"), 2u);
    EXPECT_EQ(pci_distance("pci0/a/b/c", "pci0/d"), 4u);
    EXPECT_EQ(pci_distance("pci0/a", "pci1/a"), 4u);
    EXPECT_EQ(pci_distance("pci0/a", "pci0/ab"), 2u);
    EXPECT_EQ(pci_distance("", "pci0/a"), SIZE_MAX);
}

TEST(CpuList, ReadsRangesAndStopsAtNonsense) {
    EXPECT_THAT(sysfs::parse_cpu_list("0"), ElementsAre(0));
    EXPECT_THAT(sysfs::parse_cpu_list("0-2,5,7-8"), ElementsAre(0, 1, 2, 5, 7, 8));
    EXPECT_THAT(sysfs::parse_cpu_list(""), IsEmpty());
    EXPECT_THAT(sysfs::parse_cpu_list("x"), IsEmpty());
    EXPECT_THAT(sysfs::parse_cpu_list("1,x"), ElementsAre(1));
    EXPECT_THAT(sysfs::parse_cpu_list("1-"), IsEmpty());
    EXPECT_THAT(sysfs::parse_cpu_list("3-1"), IsEmpty());
    EXPECT_THAT(sysfs::parse_cpu_list("0-4000000000"), IsEmpty());
    EXPECT_THAT(sysfs::parse_cpu_list("-3"), IsEmpty());
}

}  // namespace
}  // namespace mooncake
