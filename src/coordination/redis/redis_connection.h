// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/time.h"
#include "coordination/redis/redis_protocol.h"
#include "net/socket.h"

namespace mooncake {

struct RedisServer {
    std::string host;
    uint16_t port = 6379;
    std::string username, password;  // no AUTH when both are empty
    int database = 0;

    /// "[user[:password]@]host[:port][/database]"; what is missing keeps its default. kInvalidArgument.
    static Result<RedisServer> parse(std::string_view text, RedisServer defaults);
    /// Host and port; never the password.
    std::string to_string() const;
};

/// One connection to a redis server: our socket, hiredis' protocol code. hiredis' own blocking calls bound each read but not
/// the whole call, and their sockets would survive a fork. Not thread-safe.
class RedisConnection {
public:
    /// Connects, authenticates and selects the database. kUnavailable, kTimedOut, kRefused (password, database).
    static Result<RedisConnection> open(const RedisServer& server, Deadline deadline);

    /// Sends one command and waits for its reply. An error the server sends is kUnavailable when it says that it cannot now,
    /// else kRefused. After any other error the connection must not be used again: its next reply would belong to this call.
    Result<RedisReply> call(std::span<const std::string_view> arguments, Deadline deadline);

private:
    explicit RedisConnection(net::Socket socket) : socket_(std::move(socket)) {}

    net::Socket socket_;
    RedisDecoder decoder_;
};

}  // namespace mooncake
