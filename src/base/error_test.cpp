// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <gtest/gtest.h>
#include <netdb.h>

#include <cerrno>
#include <memory>
#include <set>

#include "base/version.h"

namespace mooncake {
namespace {

Result<int> half(int value) {
    if (value % 2 != 0) return fail(Code::kInvalidArgument, "{} is odd", value);
    return value / 2;
}

Result<int> quarter(int value) {
    MC_ASSIGN_OR_RETURN(const int halved, half(value));
    return half(halved);
}

Result<> check_even(int value) {
    MC_RETURN_IF_ERROR(half(value));
    return {};
}

TEST(Error, SaysCodeMessageAndErrnoInOneLine) {
    EXPECT_EQ(Error(Code::kNotFound, "no segment a").to_string(), "not found: no segment a");
    EXPECT_EQ(Error(Code::kUnavailable, "cannot connect b", ECONNREFUSED).to_string(),
              "unavailable: cannot connect b (errno 111 Connection refused)");
    EXPECT_EQ(Error(Code::kUnavailable, "cannot resolve c: no such name", EAI_NONAME).to_string(),
              "unavailable: cannot resolve c: no such name");
    EXPECT_EQ(Error(Code::kInternal, "x", 99999).to_string(), "internal error: x (errno 99999 ?)");
}

TEST(Error, ContextIsPutInFrontAndTheRestKept) {
    const Error error = Error(Code::kStale, "other incarnation", EPIPE).with_context("peer a");
    EXPECT_EQ(error.message(), "peer a: other incarnation");
    EXPECT_EQ(error.code(), Code::kStale);
    EXPECT_EQ(error.system_errno(), EPIPE);
}

TEST(Error, EveryCodeHasItsOwnName) {
    std::set<std::string_view> names;
    for (int code = 0; code <= static_cast<int>(Code::kInternal); ++code) names.insert(code_name(static_cast<Code>(code)));
    EXPECT_EQ(names.size(), static_cast<size_t>(Code::kInternal) + 1);
    EXPECT_EQ(names.count("unknown"), 0u);
    EXPECT_EQ(code_name(static_cast<Code>(200)), "unknown");
}

TEST(Result, MacrosHandOnValuesAndErrors) {
    EXPECT_EQ(quarter(12).value(), 3);
    EXPECT_EQ(quarter(6).error().message(), "3 is odd");
    EXPECT_TRUE(check_even(2));
    EXPECT_EQ(check_even(1).error().code(), Code::kInvalidArgument);
}

TEST(Result, MacroMovesValuesThatCannotBeCopied) {
    const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
    const auto use = [&]() -> Result<int> {
        MC_ASSIGN_OR_RETURN(const auto value, make());
        return *value;
    };
    EXPECT_EQ(use().value(), 5);
}

TEST(Result, FailErrnoKeepsTheGivenErrno) {
    const Result<> result = fail_errno(Code::kNoSpace, ENOSPC, "disk {}", 3);
    EXPECT_EQ(result.error().system_errno(), ENOSPC);
    EXPECT_EQ(result.error().message(), "disk 3");
}

TEST(CheckDeathTest, AbortsWithConditionFileAndLine) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    EXPECT_DEATH(MC_CHECK(1 + 1 == 3), "check failed: 1 \\+ 1 == 3 .*error_test.cpp");
}

TEST(Version, IsTheOneOfTheBuild) {
    ASSERT_FALSE(version().empty());
    EXPECT_TRUE(version().front() >= '0' && version().front() <= '9');
}

}  // namespace
}  // namespace mooncake
