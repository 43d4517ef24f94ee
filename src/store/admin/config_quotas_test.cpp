// SPDX-License-Identifier: Apache-2.0
#include "store/admin/config_quotas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/format.h"
#include "store/service/tenant_name.h"

namespace mooncake::store {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

/// A folder of its own.
class QuotaFileTest : public testing::Test {
protected:
    void SetUp() override {
        char path[] = "/tmp/mooncake-quotas-XXXXXX";
        ASSERT_NE(::mkdtemp(path), nullptr);
        folder_ = path;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string file() const { return (folder_ / "quotas.yaml").string(); }
    std::filesystem::path folder_;
};

TEST(ParseQuota, UnderstandsUnits) {
    EXPECT_EQ(*parse_quota("1"), 1u);
    EXPECT_EQ(*parse_quota("512MB"), uint64_t{512} << 20);
    EXPECT_EQ(*parse_quota("1.5 gb"), uint64_t{3} << 29);
    EXPECT_EQ(*parse_quota("2 TB"), uint64_t{2} << 40);
    EXPECT_EQ(*parse_quota("10B"), 10u);
    EXPECT_EQ(*parse_quota("9223372036854775807"), static_cast<uint64_t>(INT64_MAX)) << "exact";
    for (const char* bad :
         {"", "0", "0GB", "-1", "x", "1XB", "GB", "9223372036854775808", "99999999TB", "1e3", "1..5GB", "50%", "0.4B", "1 GB extra"})
        EXPECT_FALSE(parse_quota(bad)) << bad;
}

TEST(ParseQuotas, ReadsAPolicy) {
    EXPECT_THAT(*parse_quotas("version: 1\ntenants:\n  - name: b\n    quota: 1GB\n  - {name: a c, quota: 5}\n"),
                ElementsAre(Pair("a c", 5u), Pair("b", uint64_t{1} << 30)));
    EXPECT_THAT(*parse_quotas("version: 1\n"), IsEmpty());
    EXPECT_THAT(*parse_quotas("{version: 1, tenants: []}"), IsEmpty());
}

TEST(ParseQuotas, RefusesAnythingElse) {
    for (const std::string& bad :
         {std::string(), std::string("tenants: []"), std::string("version: 2\ntenants: []"), std::string("version: [1]"),
          std::string("version: 1\ntenants: x"), std::string("version: 1\ntenants: [x]"), std::string("version: 1\ntenants: [{name: a}]"),
          std::string("version: 1\ntenants: [{quota: 1}]"), std::string("version: 1\ntenants: [{name: _a, quota: 1}]"),
          std::string("version: 1\ntenants: [{name: '', quota: 1}]"), std::string("version: 1\ntenants: [{name: \"a\\nb\", quota: 1}]"),
          std::string("version: 1\ntenants: [{name: a, quota: 0}]"),
          std::string("version: 1\ntenants: [{name: a, quota: 1}, {name: a, quota: 2}]"),
          std::string("version: 1\ntenants: [{name: [a], quota: 1}]"), std::string("\0", 1), std::string(100000, '['),
          std::string((1 << 20) + 1, ' ')})
        EXPECT_FALSE(parse_quotas(bad)) << bad.substr(0, 60);
}

TEST(TenantName, IsTextWithoutControlCharacters) {
    for (const char* good : {"a", "default", "a_b", "\xc3\xa4", "\xe6\x97\xa5 1", "\xf0\x9f\xa5\xae"})
        EXPECT_TRUE(valid_tenant_name(good)) << good;
    for (const std::string& bad : {std::string(), std::string("_a"), std::string("a\nb"), std::string("a\x7f"), std::string("a\0b", 3),
                                   std::string("\xff"), std::string("a\xc3"), std::string("\xc0\x80"), std::string("\xe0\x80\x80"),
                                   std::string("\xed\xa0\x80"), std::string("\xc2\x85"), std::string("\xf5\x80\x80\x80")})
        EXPECT_FALSE(valid_tenant_name(bad)) << bad;
}

TEST(FormatQuotas, ReadsBackAsTheSame) {
    const Quotas quotas = {{"a", 1}, {"b: \"'#{}", 123456789}, {"\xc3\xa4 yes", INT64_MAX}, {"1", 7}};
    const auto again = parse_quotas(format_quotas(quotas));
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_EQ(*again, quotas);
    EXPECT_EQ(*parse_quotas(format_quotas({})), Quotas{});
}

TEST_F(QuotaFileTest, IsReplacedAsAWhole) {
    EXPECT_EQ(load_quotas(file()).error().code(), Code::kNotFound);
    ASSERT_TRUE(save_quotas(file(), {{"a", 5}}));
    ASSERT_TRUE(save_quotas(file(), {{"b", 6}}));
    EXPECT_EQ(*load_quotas(file()), (Quotas{{"b", 6}}));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing is left behind";
    std::ofstream(file()) << "version: 7\n";
    EXPECT_THAT(load_quotas(file()).error().message(), HasSubstr(file()));
}

TEST_F(QuotaFileTest, IsNeverLongerThanItMayBeRead) {
    Quotas quotas;
    for (int i = 0; i < 2000; ++i) quotas.emplace(format_text("{:0>1000}", i), 1);
    ASSERT_TRUE(save_quotas(file(), {{"a", 5}}));
    const auto saved = save_quotas(file(), quotas);
    ASSERT_FALSE(saved) << "no master would start with it";
    EXPECT_EQ(saved.error().code(), Code::kNoSpace);
    EXPECT_EQ(*load_quotas(file()), (Quotas{{"a", 5}})) << "the old one stays";
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
    EXPECT_TRUE(valid_tenant_name(std::string(1024, 't')));
    EXPECT_FALSE(valid_tenant_name(std::string(1025, 't')));
}

TEST_F(QuotaFileTest, FailsWhereNothingCanBeWritten) {
    EXPECT_FALSE(save_quotas((folder_ / "none" / "q").string(), {}));
    EXPECT_FALSE(load_quotas(folder_.string())) << "a folder is no file";
}

}  // namespace

}  // namespace mooncake::store
