// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "device/ascend/testing/emulator.h"
#include "transport/ascend/station.h"

namespace mooncake::ascend {
namespace {

using testing::Emulator;
using ::testing::HasSubstr;

TEST(AscendPorts, AllOfADevicesWindowAreTriedOnce) {
    for (const uint64_t seed : {0ul, 57ul, UINT64_MAX - 3}) {
        const auto ports = ports_to_try(20000, 3, seed).value();
        const std::set<uint16_t> all(ports.begin(), ports.end());
        EXPECT_EQ(all.size(), 100u);
        EXPECT_EQ(*all.begin(), 20300);
        EXPECT_EQ(*all.rbegin(), 20399) << "the next device's first is not among them";
    }
    EXPECT_NE(ports_to_try(20000, 0, 1).value().front(), ports_to_try(20000, 0, 2).value().front());
}

TEST(AscendPorts, WindowsBeyondTheLastPortAreRefused) {
    EXPECT_EQ(ports_to_try(65500, 0, 0).error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(ports_to_try(65436, 0, 0));
    EXPECT_FALSE(ports_to_try(65436, 1, 0));
}

TEST(AscendPorts, ThoseThatTheSystemHandsOutComeLast) {
    const auto ports = ports_to_try(32700, 0, 90).value();
    EXPECT_TRUE(std::is_partitioned(ports.begin(), ports.end(), [](uint16_t port) { return port < 32768; }));
}

/// Stations on device 0, with a window of their own for each test.
class StationTest : public ::testing::Test {
protected:
    Result<std::unique_ptr<Station>> open(const std::function<void(AscendOptions&)>& change = {}) {
        AscendOptions options;
        options.base_port = 24000;
        if (change) change(options);
        return Station::open({.library = emulator.library(), .options = options, .host = "127.0.0.1", .device = 0});
    }
    void TearDown() override { emulator.set_faults(""); }
    Emulator emulator;
};

TEST_F(StationTest, ManyFindPortsOfTheirOwn) {
    std::vector<std::unique_ptr<Station>> all;
    std::set<std::string> names;
    for (int i = 0; i < 16; ++i) {
        all.push_back(open().value());
        names.insert(all.back()->endpoint().name);
    }
    EXPECT_EQ(names.size(), 16u);
}

TEST_F(StationTest, APortThatIsTakenAtTheLastMomentLeadsToTheNext) {
    emulator.set_faults("bind,count=3->return:503900");
    EXPECT_TRUE(open());
    EXPECT_EQ(emulator.calls("Initialize"), 4u);
}

TEST_F(StationTest, AFullWindowIsAnErrorThatSaysWhatWasTried) {
    emulator.set_faults("bind->return:503900");
    const auto refused = open();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kUnavailable);
    EXPECT_THAT(refused.error().message(), HasSubstr("24000 to 24099"));
    EXPECT_THAT(refused.error().message(), HasSubstr("503900 (FAILED)"));
    EXPECT_EQ(emulator.calls("Initialize"), 100u);
}

/// Finding 28: the engine that links devices to themselves takes no pool, so it is not asked for where one is set.
TEST_F(StationTest, APoolDoesNotMeetAnEngineThatRefusesIt) {
    const auto pooled = open([](AscendOptions& options) { options.buffer_pool = "4:8"; });
    ASSERT_TRUE(pooled) << pooled.error().to_string();
    EXPECT_FALSE((*pooled)->endpoint().client_server);
    EXPECT_TRUE(open().value()->endpoint().client_server);
}

TEST_F(StationTest, OptionsThatTheLibraryRefusesAreNotRetriedOnEveryPort) {
    const auto refused = open([](AscendOptions& options) { options.local_comm_res = "x", options.traffic_class = 3; });
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(emulator.calls("Initialize"), 1u);
}

}  // namespace
}  // namespace mooncake::ascend
