// SPDX-License-Identifier: Apache-2.0
#include "engine/codes.h"

#include <gtest/gtest.h>
#include <netdb.h>

#include <cerrno>

namespace mooncake {
namespace {

TEST(Codes, OnlySuccessIsZero) {
    EXPECT_EQ(public_code(Code::kOk), 0);
    EXPECT_EQ(status_code(Code::kOk), 0);
    for (int code = 1; code <= static_cast<int>(Code::kInternal); ++code) {
        EXPECT_LT(public_code(static_cast<Code>(code)), 0) << code_name(static_cast<Code>(code));
        EXPECT_GT(status_code(static_cast<Code>(code)), 0) << code_name(static_cast<Code>(code));
    }
}

TEST(Codes, AreTheNumbersCallersCompareWith) {
    EXPECT_EQ(public_code(Code::kInvalidArgument), -1);
    EXPECT_EQ(public_code(Code::kNotRegistered), -3);
    EXPECT_EQ(public_code(Code::kOverlap), -7);
    EXPECT_EQ(public_code(Code::kNotFound), -200);
    EXPECT_EQ(public_code(Code::kNotSupported), -303);
    EXPECT_EQ(status_code(Code::kNoSpace), 2);
    EXPECT_EQ(status_code(Code::kBusy), 4);
    EXPECT_EQ(status_code(Code::kNotSupported), 8);
}

TEST(Codes, OfAResultAreThoseOfItsError) {
    EXPECT_EQ(public_code(Result<int>(5)), 0);
    EXPECT_EQ(public_code(Result<>(fail(Code::kOverlap, "two ranges"))), -7);
    EXPECT_EQ(status_code(Result<>(fail(Code::kBusy, "a task runs"))), 4);
}

TEST(Codes, TellAnUnresolvedNameFromAHostThatCannotBeReached) {
    EXPECT_EQ(public_code(Error(Code::kUnavailable, "cannot resolve a", EAI_NONAME)), -101);
    EXPECT_EQ(status_code(Error(Code::kTimedOut, "cannot resolve a in time", EAI_AGAIN)), 101);
    EXPECT_EQ(public_code(Error(Code::kUnavailable, "cannot connect a", ECONNREFUSED)), -102);
    EXPECT_EQ(status_code(Error(Code::kUnavailable, "cannot connect a", ECONNREFUSED)), 102);
}

}  // namespace
}  // namespace mooncake
