// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mooncake::ascend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::vector<int>> choose(std::vector<std::string> names, int current) {
    const std::vector<int> physical{8, 9, 10, 11};
    return choose_devices({.names = names, .current = current, .count = 4, .physical = physical});
}

TEST(AscendChoice, TheThreadsDeviceIsTheDefault) {
    EXPECT_THAT(choose({}, 2).value(), ElementsAre(2));
    const auto none = choose({}, -1);
    EXPECT_EQ(none.error().code(), Code::kNotSupported);
    EXPECT_THAT(none.error().message(), HasSubstr("no device set"));
}

TEST(AscendChoice, DevicesAreNamedInSeveralForms) {
    EXPECT_THAT(choose({"3"}, 0).value(), ElementsAre(3));
    EXPECT_THAT(choose({"npu:1", "3", "1"}, -1).value(), ElementsAre(1, 3));
    EXPECT_THAT(choose({"all"}, 2).value(), ElementsAre(0, 1, 2, 3));
    for (const char* const wrong : {"4", "npu:9", "mlx5_0", "npu:", "-1", "npu_", "1x"})
        EXPECT_EQ(choose({wrong}, 0).error().code(), Code::kInvalidArgument) << wrong;
}

TEST(AscendChoice, AServersNameIsAHintThatMayBeTheMachinesNumber) {
    EXPECT_THAT(choose({"npu_10"}, -1).value(), ElementsAre(2));
    EXPECT_THAT(choose({"npu_1"}, -1).value(), ElementsAre(1));
    EXPECT_THAT(choose({"npu_10"}, 2).value(), ElementsAre(2));
    EXPECT_THAT(choose({"npu_3"}, 1).value(), ElementsAre(1)) << "what the program has set counts";
}

TEST(AscendChoice, NothingTakesItsPlaceUnlessThatIsAllowed) {
    const Error absent(Code::kNotSupported, "no library");
    EngineOptions options;
    options.protocol = "ascend";
    const auto refused = check_choice(options, AscendOptions{}, false, absent);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("no library"));
    AscendOptions optional;
    optional.required = false;
    EXPECT_TRUE(check_choice(options, optional, false, absent));
    EXPECT_TRUE(check_choice(options, AscendOptions{}, true, absent));
    options.transports = {"tcp"};
    EXPECT_TRUE(check_choice(options, AscendOptions{}, false, absent)) << "MC_FORCE_TCP";
    options = {};
    options.protocol = "tcp";
    EXPECT_TRUE(check_choice(options, AscendOptions{}, false, absent));
    EXPECT_FALSE(asked_for(options));
    options.transports = {"ascend", "tcp"};
    EXPECT_TRUE(asked_for(options));
}

TEST(AscendChoice, APoolExcludesWhatTheLibraryDoesNotDoWithIt) {
    AscendOptions options;
    options.async = true;
    EXPECT_TRUE(check_settings(options));
    options.buffer_pool = "4:8";
    EXPECT_EQ(check_settings(options).error().code(), Code::kInvalidArgument);
    options.async = false;
    EXPECT_TRUE(check_settings(options));
    options.fabric_memory = true;
    EXPECT_FALSE(check_settings(options));
}

}  // namespace
}  // namespace mooncake::ascend
