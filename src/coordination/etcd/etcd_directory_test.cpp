// SPDX-License-Identifier: Apache-2.0
#include "coordination/etcd/etcd_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordination/etcd/base64.h"
#include "coordination/testing/directory_servers.h"
#include "coordination/testing/server_process.h"
#include "net/http_server.h"
#include "net/socket.h"

namespace mooncake {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::after(20s); }

TEST(Base64, FollowsTheStandard) {
    const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                            {"f", "Zg=="},
                                                            {"fo", "Zm8="},
                                                            {"foo", "Zm9v"},
                                                            {"foob", "Zm9vYg=="},
                                                            {"fooba", "Zm9vYmE="},
                                                            {"foobar", "Zm9vYmFy"},
                                                            {"\xff\xfe\xfd", "//79"}};
    for (const auto& [bytes, text] : examples) {
        EXPECT_EQ(base64_encode(bytes), text);
        EXPECT_EQ(base64_decode(text).value(), bytes);
    }
}

TEST(Base64, ComesBackForAllLengths) {
    std::string bytes;
    for (int length = 0; length < 300; ++length) {
        EXPECT_EQ(base64_decode(base64_encode(bytes)).value(), bytes);
        bytes += static_cast<char>(length * 7);
    }
}

TEST(Base64, RefusesWhatItWouldNotWrite) {
    for (const char* text : {"a", "ab", "abc", "====", "a===", "ab=c", "ab==abcd", "=abc", "ab c", "ab\nc", "Zh==", "Zm9=", "-_-_"})
        EXPECT_FALSE(base64_decode(text)) << text;
}

/// A gateway that answers every request in the same way.
std::unique_ptr<net::HttpServer> make_gateway(const std::string& path, const net::HttpResponse& answer, uint16_t port = 0) {
    auto server = net::HttpServer::create({.host = "127.0.0.1", .port = port}).value();
    server->handle("POST", path, [answer](const net::HttpServerRequest&) { return answer; });
    server->start();
    return server;
}

Result<std::string> get_from(const net::HttpServer& server) {
    return make_etcd_directory(format_text("127.0.0.1:{}", server.port())).value()->get("k", soon());
}

TEST(EtcdDirectory, UsesTheOlderPathWhereTheNewOneIsUnknown) {
    const net::HttpResponse answer{.body = R"({"kvs": [{"key": "aw==", "value": "dg=="}]})"};
    auto server = make_gateway("/v3beta/kv/range", answer);
    const uint16_t port = server->port();
    const auto directory = make_etcd_directory(format_text("127.0.0.1:{}", port)).value();
    EXPECT_EQ(directory->get("k", soon()).value(), "v");
    server.reset();
    server = make_gateway("/v3/kv/range", answer, port);  // upgraded
    EXPECT_EQ(directory->get("k", soon()).value(), "v");
}

TEST(EtcdDirectory, ReadsEmptyValuesAndMissingKeys) {
    EXPECT_EQ(get_from(*make_gateway("/v3/kv/range", {.body = R"({"kvs": [{"key": "aw=="}], "count": "1"})"})).value(), "");
    EXPECT_EQ(get_from(*make_gateway("/v3/kv/range", {.body = R"({"header": {}})"})).error().code(), Code::kNotFound);
}

TEST(EtcdDirectory, ReportsAnswersThatMakeNoSense) {
    for (const char* body : {"", "[]", "nonsense", R"({"kvs": 3})", R"({"kvs": []})", R"({"kvs": [3]})", R"({"kvs": [{"value": 3}]})",
                             R"({"kvs": [{"value": "x"}]})"}) {
        const auto got = get_from(*make_gateway("/v3/kv/range", {.body = body}));
        ASSERT_FALSE(got) << body;
        EXPECT_EQ(got.error().code(), Code::kCorrupt) << got.error().to_string();
    }
}

TEST(EtcdDirectory, PassesOnWhatTheServerSays) {
    const auto unavailable = make_gateway("/v3/kv/range", {.status = 503, .body = R"({"error": "etcdserver: no leader", "code": 14})"});
    const auto got = get_from(*unavailable);
    EXPECT_EQ(got.error().code(), Code::kUnavailable);
    const std::string address = format_text("127.0.0.1:{}", unavailable->port());
    EXPECT_THAT(got.error().message(), AllOf(HasSubstr("etcd get 'k'"), HasSubstr(address), HasSubstr("503"), HasSubstr("no leader")));
    const auto refused = get_from(*make_gateway("/v3/kv/range", {.status = 401, .body = R"({"message": "user name is empty"})"}));
    EXPECT_EQ(refused.error().code(), Code::kRefused);
    EXPECT_THAT(refused.error().message(), HasSubstr("user name is empty"));
    EXPECT_EQ(get_from(*make_gateway("/other", {})).error().code(), Code::kRefused);  // 404 on every path: no etcd
}

TEST(EtcdDirectory, RefusesAValueThatTheServerFindsTooLarge) {
    const auto server = testing::make_etcd_server();
    server->start();
    const auto directory = open_directory(server->connection(), {}).value();
    testing::wait_usable(*directory);
    const auto put = directory->put("k", std::string(3 << 20, 'x'), soon());
    ASSERT_FALSE(put);
    EXPECT_THAT(put.error().message(), HasSubstr("larger than max"));
}

TEST(EtcdDirectory, GoesOnToTheNextEndpoint) {
    const auto good = make_gateway("/v3/kv/range", {.body = R"({"kvs": [{"key": "aw==", "value": "dg=="}]})"});
    const auto leaderless = make_gateway("/v3/kv/range", {.status = 503, .body = "{}"});
    const auto silent = net::listen_on(0, 4).value();  // accepts in the kernel only
    const auto directory = make_etcd_directory(format_text("127.0.0.1:{},127.0.0.1:{},http://127.0.0.1:{}/,127.0.0.1:{}",
                                                           testing::free_port(), leaderless->port(), silent.port, good->port()))
                               .value();
    const auto got = directory->get("k", Deadline::after(2s));  // the silent one gets half of what is left
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_EQ(*got, "v");
    const Time begin = Clock::now();
    EXPECT_TRUE(directory->get("k", Deadline::after(60s)));  // and is not asked again
    EXPECT_LT(Clock::now() - begin, 2s);
}

}  // namespace
}  // namespace mooncake
