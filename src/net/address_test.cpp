// SPDX-License-Identifier: Apache-2.0
#include "net/address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace mooncake::net {
namespace {

struct Good {
    std::string_view text, host;
    uint16_t port;
    std::string_view suffix, written;
};

TEST(HostPort, ReadsEveryFormThatUsersWrite) {
    const Good forms[] = {
        {"10.0.0.1", "10.0.0.1", 0, "", "10.0.0.1"},
        {"10.0.0.1:15000", "10.0.0.1", 15000, "", "10.0.0.1:15000"},
        {"node-3.example:65535", "node-3.example", 65535, "", "node-3.example:65535"},
        {"10.0.0.1:5000:npu_3", "10.0.0.1", 5000, "npu_3", "10.0.0.1:5000"},
        {"[2001:db8::1]:80", "2001:db8::1", 80, "", "[2001:db8::1]:80"},
        {"[2001:db8::1]:80:npu_12", "2001:db8::1", 80, "npu_12", "[2001:db8::1]:80"},
        {"[::1]", "::1", 0, "", "[::1]"},
        {"2001:db8::1", "2001:db8::1", 0, "", "[2001:db8::1]"},
        {"fe80::1%eth0", "fe80::1%eth0", 0, "", "[fe80::1%eth0]"},
        {"[fe80::1%eth0]:9", "fe80::1%eth0", 9, "", "[fe80::1%eth0]:9"},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.1", 0, "", "[::ffff:10.0.0.1]"},
        {"host:0", "host", 0, "", "host"},
    };
    for (const Good& form : forms) {
        const auto parsed = HostPort::parse(form.text);
        ASSERT_TRUE(parsed) << form.text << ": " << parsed.error().to_string();
        EXPECT_EQ(parsed->host, form.host) << form.text;
        EXPECT_EQ(parsed->port, form.port) << form.text;
        EXPECT_EQ(parsed->suffix, form.suffix) << form.text;
        EXPECT_EQ(parsed->to_string(), form.written) << form.text;
    }
}

TEST(HostPort, RefusesEverythingElse) {
    const std::string_view forms[] = {
        "",
        ":80",
        "host:",
        "host:x",
        "host:-1",
        "host:+1",
        "host:65536",
        "host: 80",
        "host:80 ",
        " host",
        "host:80:x",
        "host:80:npu_",
        "host:80:npu_x",
        "host:80:npu_1:2",
        "host:npu_1",
        "[::1",
        "[]",
        "[host]:80",
        "[::1]80",
        "[::1]:",
        "[::1]:x",
        "::1]",
        "[fe80::1%]:80",
        "fe80::1%eth0]:80",
        "fe80::1%a%b",
        "http://host:80",
        "a:b:c:d",
        "host\n:80",
        std::string_view("ho\0st", 5),
        std::string_view("::1\0x", 5),
    };
    for (const std::string_view form : forms) {
        const auto parsed = HostPort::parse(form);
        ASSERT_FALSE(parsed) << form;
        EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument) << form;
    }
    EXPECT_FALSE(HostPort::parse(std::string(513, 'a')));
    EXPECT_TRUE(HostPort::parse(std::string(512, 'a')));
}

TEST(Ipv6Literal, IsRecognisedWithAndWithoutScope) {
    for (const std::string_view literal : {"::", "::1", "2001:db8::1", "fe80::1%eth0", "::ffff:1.2.3.4"})
        EXPECT_TRUE(is_ipv6_literal(literal)) << literal;
    for (const std::string_view other :
         {"", "%", "1.2.3.4", "host", "::1%", "::1%eth 0", "::1%a_name_of_16_chars", "1:2", ":::", "12345::"})
        EXPECT_FALSE(is_ipv6_literal(other)) << other;
}

TEST(Resolve, NumericAddressesGiveThemselves) {
    const auto v4 = resolve("127.0.0.1", 80);
    ASSERT_TRUE(v4);
    ASSERT_EQ(v4->size(), 1u);
    EXPECT_EQ(v4->front().family(), AF_INET);
    EXPECT_EQ(v4->front().port(), 80);
    EXPECT_EQ(v4->front().to_string(), "127.0.0.1:80");
    const auto v6 = resolve("::1", 81);
    ASSERT_TRUE(v6);
    EXPECT_EQ(v6->front().to_string(), "[::1]:81");
}

TEST(Resolve, SaysWhichNameItCouldNotFind) {
    const auto result = resolve("", 80);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kUnavailable);
    EXPECT_NE(result.error().message().find("''"), std::string::npos);
}

TEST(SocketAddress, AnEmptyOneHasNoPortAndDoesNotCrash) {
    EXPECT_EQ(SocketAddress().port(), 0);
    EXPECT_EQ(SocketAddress().to_string(), "?");
}

TEST(FirstPublicAddress, IsNumericAndNotLoopbackWhereThereIsOne) {
    const auto v4 = first_public_address(false);
    if (v4) {
        in_addr parsed;
        EXPECT_EQ(::inet_pton(AF_INET, v4->c_str(), &parsed), 1);
        EXPECT_NE(ntohl(parsed.s_addr) >> 24, 127u);
    } else {
        EXPECT_EQ(v4.error().code(), Code::kUnavailable);
    }
    const auto v6 = first_public_address(true);
    if (v6) {
        EXPECT_TRUE(is_ipv6_literal(*v6));
    }
}

TEST(LoopbackAddress, IsWhatOnlyThisMachineCanMean) {
    EXPECT_EQ(loopback_address("127.0.0.1"), "127.0.0.1");
    EXPECT_EQ(loopback_address("127.1.2.3"), "127.1.2.3");
    EXPECT_EQ(loopback_address("::1"), "::1");
    EXPECT_TRUE(loopback_address("localhost") == "127.0.0.1" || loopback_address("localhost") == "::1");
    EXPECT_EQ(loopback_address("LOCALHOST"), loopback_address("localhost"));
    for (const char* other : {"", "10.0.0.1", "0.0.0.0", "::", "fe80::1", "128.0.0.1", "localhost.example.org", "a-host"})
        EXPECT_EQ(loopback_address(other), "") << other;
}

}  // namespace
}  // namespace mooncake::net
