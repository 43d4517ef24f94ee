// SPDX-License-Identifier: Apache-2.0
#include "coordination/redis/redis_connection.h"

#include <poll.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <vector>

#include "net/address.h"

namespace mooncake {

namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kReplyBytesMax = 64 << 20;

Result<int> parse_database(std::string_view text) {
    int number = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (status != std::errc() || end != text.data() + text.size() || number < 0)
        return fail(Code::kInvalidArgument, "redis: '{}' is not a database number", text);
    return number;
}

}  // namespace

Result<RedisServer> RedisServer::parse(std::string_view text, RedisServer defaults) {
    RedisServer server = std::move(defaults);
    if (const size_t at = text.rfind('@'); at != std::string_view::npos) {
        const std::string_view user = text.substr(0, at);
        const size_t colon = std::min(user.find(':'), user.size());
        server.username = user.substr(0, colon);
        server.password = user.substr(std::min(colon + 1, user.size()));
        text.remove_prefix(at + 1);
    }
    if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
        if (slash + 1 < text.size()) {
            MC_ASSIGN_OR_RETURN(server.database, parse_database(text.substr(slash + 1)));
        }
        text = text.substr(0, slash);
    }
    auto address = net::HostPort::parse(text);
    if (!address || !address->suffix.empty()) return fail(Code::kInvalidArgument, "redis: '{}' is not host:port", text);
    server.host = std::move(address->host);
    if (address->port != 0) server.port = address->port;
    return server;
}

std::string RedisServer::to_string() const { return net::join_host_port(host, port); }

Result<RedisConnection> RedisConnection::open(const RedisServer& server, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(net::Socket socket, net::connect_to(server.host, server.port, deadline));
    RedisConnection connection(std::move(socket));
    const auto step = [&](const char* stage, std::span<const std::string_view> arguments) -> Result<> {
        auto reply = connection.call(arguments, deadline);
        if (!reply) return Unexpected(std::move(reply).error().with_context(stage));
        return {};
    };
    if (!server.username.empty()) {
        MC_RETURN_IF_ERROR(step("authenticating", std::array<std::string_view, 3>{"AUTH", server.username, server.password}));
    } else if (!server.password.empty()) {
        MC_RETURN_IF_ERROR(step("authenticating", std::array<std::string_view, 2>{"AUTH", server.password}));
    }
    if (server.database != 0) {
        const std::string number = format_text("{}", server.database);
        MC_RETURN_IF_ERROR(step("selecting the database", std::array<std::string_view, 2>{"SELECT", number}));
    }
    return connection;
}

Result<RedisReply> RedisConnection::call(std::span<const std::string_view> arguments, Deadline deadline) {
    const std::string command = encode_redis_command(arguments);
    MC_RETURN_IF_ERROR(net::send_all(socket_.fd(), command.data(), command.size(), deadline));
    std::vector<char> bytes(kReadBytes);
    for (size_t total = 0;;) {
        MC_ASSIGN_OR_RETURN(auto reply, decoder_.next());
        if (reply) return std::move(*reply);
        if (total > kReplyBytesMax) return fail(Code::kNoSpace, "the answer is larger than {} bytes", kReplyBytesMax);
        // Who never stops sending leaves nothing to wait for.
        if (total > 0 && deadline.passed()) return fail(Code::kTimedOut, "no whole answer in time");
        const ssize_t got = ::recv(socket_.fd(), bytes.data(), bytes.size(), 0);
        if (got > 0) {
            decoder_.feed({bytes.data(), static_cast<size_t>(got)});
            total += static_cast<size_t>(got);
        } else if (got == 0) {
            return fail(Code::kUnavailable, "the server closed the connection");
        } else if (errno == EAGAIN) {
            if (!net::wait_ready(socket_.fd(), POLLIN, deadline)) return fail(Code::kTimedOut, "no answer in time");
        } else if (errno != EINTR) {
            return fail_errno(Code::kUnavailable, errno, "connection lost");
        }
    }
}

}  // namespace mooncake
