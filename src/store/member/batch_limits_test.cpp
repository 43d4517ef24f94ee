// SPDX-License-Identifier: Apache-2.0
#include "store/member/batch_limits.h"

#include <gtest/gtest.h>

#include <string>

namespace mooncake::store {
namespace {

constexpr BatchLimits kSmall{.keys = 3, .bytes = 100, .keys_max = 5, .bytes_max = 200};
using Plan = std::vector<std::vector<uint32_t>>;

TEST(BatchLimits, CutABatchByKeysAndByBytes) {
    const std::vector<std::string_view> brief{"a", "b", "c", "d"};
    EXPECT_EQ(first_request(std::span(brief), kSmall), 3u);
    const std::string text(60, 'x');
    const std::vector<std::string_view> wordy{text, text, "c"};
    EXPECT_EQ(first_request(std::span(wordy), kSmall), 1u);
    const std::string huge(1000, 'x');
    const std::vector<std::string_view> one{huge, "b"};
    EXPECT_EQ(first_request(std::span(one), kSmall), 1u) << "the master says what it thinks of it";
    EXPECT_EQ(first_request(std::span(one).first(0), kSmall), 0u);
}

TEST(BatchLimits, APlanKeepsTheOrderOfItemsWithoutGroups) {
    const std::vector<PutItem> items{{.key = "a"}, {.key = "b"}, {.key = "c"}, {.key = "d"}};
    EXPECT_EQ(plan_put_start(items, kSmall), (Plan{{0, 1, 2}, {3}}));
    EXPECT_EQ(plan_put_start({}, kSmall), Plan{});
}

TEST(BatchLimits, APlanKeepsGroupsTogether) {
    const std::vector<PutItem> items{
        {.key = "a", .group = "g"}, {.key = "b"}, {.key = "c", .group = "h"}, {.key = "d", .group = "g"}, {.key = "e", .group = "h"}};
    EXPECT_EQ(plan_put_start(items, kSmall), (Plan{{0, 3, 1}, {2, 4}}));
}

TEST(BatchLimits, AGroupMayBeLargerThanOtherwiseGoesIntoARequestButNotLargerThanTheMasterTakes) {
    std::vector<PutItem> items(5, {.key = "k", .group = "g"});
    items.push_back({.key = "z"});
    EXPECT_EQ(plan_put_start(items, kSmall), (Plan{{0, 1, 2, 3, 4}, {5}}));
    items.push_back({.key = "k", .group = "g"});
    EXPECT_EQ(plan_put_start(items, kSmall), (Plan{{5}}));
}

TEST(BatchLimits, AConfigurationThatNoMasterWouldReadIsRecognised) {
    EXPECT_TRUE(is_expressible(WriteConfig{}));
    EXPECT_TRUE(is_expressible(WriteConfig{.preferred_segments = std::vector<std::string>(kPreferredSegmentsMax, "a:1")}));
    EXPECT_FALSE(is_expressible(WriteConfig{.preferred_segments = std::vector<std::string>(kPreferredSegmentsMax + 1, "a:1")}));
    EXPECT_FALSE(is_expressible(WriteConfig{.preferred_segments = {std::string(kNameBytesMax + 1, 'a')}}));
}

}  // namespace
}  // namespace mooncake::store
