// SPDX-License-Identifier: Apache-2.0
#include "net/http_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mooncake::net {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(HttpUrl, SplitsHostPortAndTarget) {
    const auto url = HttpUrl::parse("http://meta.example:8080/metadata?a=b#part");
    ASSERT_TRUE(url) << url.error().to_string();
    EXPECT_FALSE(url->tls);
    EXPECT_EQ(url->host, "meta.example");
    EXPECT_EQ(url->port, 8080);
    EXPECT_EQ(url->target, "/metadata?a=b");
}

TEST(HttpUrl, FillsInPortAndPath) {
    EXPECT_EQ(HttpUrl::parse("http://a")->port, 80);
    EXPECT_EQ(HttpUrl::parse("http://a")->target, "/");
    EXPECT_EQ(HttpUrl::parse("HTTPS://a")->port, 443);
    EXPECT_TRUE(HttpUrl::parse("https://a")->tls);
    EXPECT_EQ(HttpUrl::parse("http://a?x=1")->target, "/?x=1");
}

TEST(HttpUrl, TakesIpv6InBrackets) {
    const auto url = HttpUrl::parse("http://[::1]:99/x");
    ASSERT_TRUE(url);
    EXPECT_EQ(url->host, "::1");
    EXPECT_EQ(url->host_port(), "[::1]:99");
}

TEST(HttpUrl, RefusesWhatIsNoHttpUrl) {
    for (const char* text :
         {"", "http", "http:/a", "http://", "http:///path", "http://:80", "ftp://a", "a:80", "http://a:99999", "http://a:x",
          "http://u:p@a/", "http://a/b c", "http://a/\r\nX: y", "http://[::1", "http://a:1:npu_0/", "http://[zz]/"}) {
        const auto url = HttpUrl::parse(text);
        ASSERT_FALSE(url) << text;
        EXPECT_EQ(url.error().code(), Code::kInvalidArgument);
    }
    EXPECT_FALSE(HttpUrl::parse("http://a/" + std::string(20'000, 'x')));
}

TEST(PercentCode, ComesBackForAllBytes) {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    EXPECT_EQ(percent_decode(percent_encode(all)).value(), all);
    EXPECT_EQ(percent_decode(percent_encode(all), Plus::kBlank).value(), all);
    EXPECT_EQ(percent_encode("a/b c%~_-.\xc3\xa9"), "a%2Fb%20c%25~_-.%C3%A9");
}

TEST(PercentCode, RefusesBrokenEscapes) {
    for (const char* text : {"%", "%1", "a%", "%zz", "%1g", "%%20"}) EXPECT_FALSE(percent_decode(text)) << text;
}

TEST(ParseQuery, DecodesNamesAndValues) {
    EXPECT_THAT(parse_query("key=a%2Fb&x=1+2&flag&&e=&=v&k=a=b").value(),
                ElementsAre(Pair("key", "a/b"), Pair("x", "1 2"), Pair("flag", ""), Pair("e", ""), Pair("", "v"), Pair("k", "a=b")));
    EXPECT_TRUE(parse_query("").value().empty());
    EXPECT_FALSE(parse_query("a=%f"));
}

}  // namespace
}  // namespace mooncake::net
