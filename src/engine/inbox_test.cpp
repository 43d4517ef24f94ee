// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <gtest/gtest.h>

namespace mooncake {
namespace {

TEST(Inbox, GivesWhatArrivedInOrderAndOnce) {
    Inbox inbox;
    ASSERT_TRUE(inbox.add({.name = "a", .message = "1"}));
    ASSERT_TRUE(inbox.add({.name = "b", .message = "2"}));
    const auto taken = inbox.take();
    ASSERT_EQ(taken.size(), 2u);
    EXPECT_EQ(taken[0].name, "a");
    EXPECT_EQ(taken[1].message, "2");
    EXPECT_TRUE(inbox.take().empty());
}

TEST(Inbox, RefusesWhatIsLongerThanAnyMayBe) {
    Inbox inbox;
    EXPECT_TRUE(inbox.add({.name = "a", .message = std::string(kNotificationBytesMax - 1, 'x')}));
    EXPECT_EQ(inbox.add({.name = "a", .message = std::string(kNotificationBytesMax, 'x')}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(inbox.add({.name = std::string(kNotificationBytesMax + 1, 'x'), .message = ""}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(inbox.take().size(), 1u);
}

TEST(Inbox, TellsTheSenderWhenTooManyBytesWaitAndTakesMoreOnceTheyAreTaken) {
    Inbox inbox;
    const Notification large{.name = "large", .message = std::string(1'000'000, 'x')};
    size_t kept = 0;
    Result<> added;
    while ((added = inbox.add(large))) ++kept;
    EXPECT_EQ(added.error().code(), Code::kNoSpace);
    EXPECT_LE(kept * large.message.size(), Inbox::kBytesMax);
    EXPECT_GE((kept + 2) * large.message.size(), Inbox::kBytesMax);
    EXPECT_EQ(inbox.take().size(), kept);
    EXPECT_TRUE(inbox.add(large));
}

TEST(Inbox, CountsEmptyOnesToo) {
    Inbox inbox;
    size_t kept = 0;
    while (inbox.add({})) ++kept;
    EXPECT_LE(kept, Inbox::kCountMax);
    EXPECT_LE(kept * sizeof(Notification), Inbox::kBytesMax);
}

}  // namespace
}  // namespace mooncake
