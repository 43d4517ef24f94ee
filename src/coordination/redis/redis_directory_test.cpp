// SPDX-License-Identifier: Apache-2.0
#include "coordination/redis/redis_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>

#include "coordination/redis/redis_connection.h"
#include "coordination/testing/directory_servers.h"

namespace mooncake {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Deadline soon() { return Deadline::after(20s); }

TEST(RedisServer, ReadsAllPartsOfAnAddress) {
    const auto full = RedisServer::parse("user:p@ss:w@[::1]:7000/3", {});
    ASSERT_TRUE(full) << full.error().to_string();
    EXPECT_EQ(full->username, "user");
    EXPECT_EQ(full->password, "p@ss:w");
    EXPECT_EQ(full->to_string(), "[::1]:7000");
    EXPECT_EQ(full->database, 3);
    EXPECT_EQ(RedisServer::parse(":secret@host", {})->password, "secret");
    const auto plain = RedisServer::parse("host/", {.username = "u", .password = "p", .database = 7});
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->to_string(), "host:6379");
    EXPECT_EQ(plain->username, "u");
    EXPECT_EQ(plain->password, "p");
    EXPECT_EQ(plain->database, 7);
}

TEST(RedisServer, RefusesOtherTexts) {
    for (const char* text : {"", ":", "host:", "host:1x", "host:70000", "host/1x", "host/-1", "host/1/2", "a b", "@", "host:1:npu_0"})
        EXPECT_FALSE(RedisServer::parse(text, {})) << text;
}

TEST(RedisDirectory, AuthenticatesWithAPassword) {
    const auto server = testing::make_redis_server("requirepass secret\n");
    server->start();
    EngineOptions options;
    options.redis_password = "secret";
    const auto directory = open_directory(server->connection(), options).value();
    ASSERT_TRUE(directory->put("k", "v", soon()));
    EXPECT_EQ(directory->get("k", soon()).value(), "v");
    EXPECT_EQ(open_directory("redis://:secret@" + server->address(), {}).value()->get("k", soon()).value(), "v");
}

TEST(RedisDirectory, ReportsAWrongOrMissingPasswordWithoutRepeatingIt) {
    const auto server = testing::make_redis_server("requirepass secret\n");
    server->start();
    EngineOptions options;
    options.redis_password = "guessed";
    const auto wrong = open_directory(server->connection(), options).value()->get("k", soon());
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().code(), Code::kRefused);
    EXPECT_THAT(wrong.error().message(), AllOf(HasSubstr(server->address()), HasSubstr("authenticating"), Not(HasSubstr("guessed"))));
    const auto missing = open_directory(server->connection(), {}).value()->get("k", soon());
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().code(), Code::kRefused);
    EXPECT_THAT(missing.error().message(), HasSubstr("NOAUTH"));
}

TEST(RedisDirectory, AuthenticatesWithAUserName) {
    const auto server = testing::make_redis_server("user alice on >wonder ~* +@all\nuser default off\n");
    server->start();
    EngineOptions options;
    options.redis_username = "alice";
    options.redis_password = "wonder";
    const auto directory = open_directory(server->connection(), options).value();
    const auto put = directory->put("k", "v", soon());
    EXPECT_TRUE(put) << put.error().to_string();
}

TEST(RedisDirectory, SelectsItsDatabase) {
    const auto server = testing::make_redis_server();
    server->start();
    EngineOptions options;
    options.redis_database = 3;
    const auto third = open_directory(server->connection(), options).value(), first = open_directory(server->connection(), {}).value();
    ASSERT_TRUE(third->put("k", "v", soon()));
    EXPECT_EQ(first->get("k", soon()).error().code(), Code::kNotFound);
    EXPECT_EQ(open_directory(server->connection() + "/3", {}).value()->get("k", soon()).value(), "v");
    options.redis_database = 200;  // the server has 16
    const auto absent = open_directory(server->connection(), options).value()->get("k", soon());
    ASSERT_FALSE(absent);
    EXPECT_EQ(absent.error().code(), Code::kRefused);
    EXPECT_THAT(absent.error().message(), HasSubstr("selecting the database"));
}

/// What a directory says to one answer, sent as it is.
Result<std::string> get_with_answer(std::string_view bytes) {
    net::Listener listener = net::listen_on(0, 4).value();
    const auto directory = make_redis_directory(format_text("127.0.0.1:{}", listener.port), {}).value();
    auto got = std::async(std::launch::async, [&] { return directory->get("k", soon()); });
    EXPECT_TRUE(net::wait_ready(listener.socket.fd(), POLLIN, soon()));
    const net::Socket connection(::accept4(listener.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    char request[20];
    EXPECT_TRUE(net::receive_all(connection.fd(), request, sizeof request, soon()));
    EXPECT_EQ(std::string_view(request, sizeof request), "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
    EXPECT_TRUE(net::send_all(connection.fd(), bytes.data(), bytes.size(), soon()));
    ::shutdown(connection.fd(), SHUT_WR);
    return got.get();
}

TEST(RedisDirectory, UnderstandsAnswersAndReportsBrokenOnes) {
    EXPECT_EQ(get_with_answer("$3\r\nabc\r\n").value(), "abc");
    EXPECT_EQ(get_with_answer("$0\r\n\r\n").value(), "");
    EXPECT_EQ(get_with_answer("$-1\r\n").error().code(), Code::kNotFound);
    EXPECT_EQ(get_with_answer("-ERR something\r\n").error().code(), Code::kRefused);
    EXPECT_EQ(get_with_answer("-LOADING Redis is loading the dataset in memory\r\n").error().code(), Code::kUnavailable);
    EXPECT_EQ(get_with_answer("HTTP/1.1 400 Bad Request\r\n\r\n").error().code(), Code::kCorrupt);
    EXPECT_EQ(get_with_answer("*2\r\n$1\r\na\r\n$1\r\nb\r\n").error().code(), Code::kCorrupt);
    EXPECT_EQ(get_with_answer("*2147483647\r\n").error().code(), Code::kCorrupt);
    EXPECT_EQ(get_with_answer("$3\r\nab").error().code(), Code::kUnavailable);
    EXPECT_EQ(get_with_answer("").error().code(), Code::kUnavailable);
}

TEST(RedisDirectory, EndsAtItsDeadlineWhenTheAnswerDrips) {
    net::Listener listener = net::listen_on(0, 4).value();
    const auto directory = make_redis_directory(format_text("127.0.0.1:{}", listener.port), {}).value();
    auto got = std::async(std::launch::async, [&] { return directory->get("k", Deadline::after(200ms)); });
    ASSERT_TRUE(net::wait_ready(listener.socket.fd(), POLLIN, soon()));
    const net::Socket connection(::accept4(listener.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    ASSERT_TRUE(net::send_all(connection.fd(), "$1000000\r\n", 10, soon()));
    while (got.wait_for(5ms) != std::future_status::ready) (void)net::send_all(connection.fd(), "x", 1, soon());  // always some progress
    EXPECT_EQ(got.get().error().code(), Code::kTimedOut);
}

TEST(RedisDirectory, EndsAtItsDeadlineWhenTheAnswerNeverPauses) {
    net::Listener listener = net::listen_on(0, 4).value();
    const auto directory = make_redis_directory(format_text("127.0.0.1:{}", listener.port), {}).value();
    auto got = std::async(std::launch::async, [&] { return directory->get("k", Deadline::after(200ms)); });
    ASSERT_TRUE(net::wait_ready(listener.socket.fd(), POLLIN, soon()));
    const net::Socket connection(::accept4(listener.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const std::string line(64 << 10, '+');  // it has no end, and to look for one takes longer the longer it is
    while (got.wait_for(0ms) != std::future_status::ready)
        (void)net::send_all(connection.fd(), line.data(), line.size(), Deadline::after(1s));
    EXPECT_EQ(got.get().error().code(), Code::kTimedOut);
}

}  // namespace
}  // namespace mooncake
