// SPDX-License-Identifier: Apache-2.0
#include "base/incarnation.h"

#include <gtest/gtest.h>

#include <set>

namespace mooncake {
namespace {

TEST(Incarnation, DefaultIsNone) { EXPECT_FALSE(Incarnation()); }

TEST(Incarnation, RandomOnesAreSetAndDiffer) {
    std::set<uint64_t> seen;
    for (int i = 0; i < 1000; ++i) {
        const Incarnation incarnation = Incarnation::random();
        EXPECT_TRUE(incarnation);
        seen.insert(incarnation.value);
    }
    EXPECT_EQ(seen.size(), 1000u);
}

TEST(Incarnation, TextComesBackAsTheSameValue) {
    for (const uint64_t value : {uint64_t{1}, uint64_t{0xdeadbeef}, ~uint64_t{0}}) {
        const Incarnation incarnation{value};
        EXPECT_EQ(incarnation.to_string().size(), 16u);
        EXPECT_EQ(Incarnation::parse(incarnation.to_string()).value(), incarnation);
    }
}

TEST(Incarnation, RefusesWhatIsNotSixteenHexDigits) {
    for (const std::string_view text : {"", "1", "000000000000000g", "00000000000000001", "0x00000000000001", "-000000000000001",
                                        " 000000000000001", "000000000000001 ", "0000000000000000"}) {
        const auto parsed = Incarnation::parse(text);
        ASSERT_FALSE(parsed) << text;
        EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
    }
}

TEST(BootId, IsTheSameEachTime) { EXPECT_EQ(boot_id(), boot_id()); }

}  // namespace
}  // namespace mooncake
