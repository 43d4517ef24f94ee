// SPDX-License-Identifier: Apache-2.0
#include "net/http_client.h"

#include <poll.h>

#include <algorithm>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <sstream>
#include <vector>

#include "net/http_answer.h"

namespace mooncake::net {

namespace {

namespace http = boost::beast::http;

constexpr size_t kReadBytes = 64 * 1024;

std::string serialise(const HttpUrl& url, const HttpRequest& request) {
    http::request<http::string_body> message;
    message.method_string(request.method);
    message.target(url.target);
    message.version(11);
    message.set(http::field::host, url.port == 80 ? HostPort{.host = url.host}.to_string() : url.host_port());
    message.set(http::field::user_agent, "mooncake");
    if (!request.content_type.empty()) message.set(http::field::content_type, request.content_type);
    message.body() = request.body;
    message.prepare_payload();
    std::ostringstream text;
    text.exceptions(std::ios::badbit);  // out of memory: no request rather than half of one
    text << message;
    return std::move(text).str();
}

/// Zero at the end of the stream.
Result<size_t> receive_some(int fd, void* data, size_t size, Deadline deadline) {
    for (;;) {
        const ssize_t got = ::recv(fd, data, size, 0);
        if (got >= 0) return static_cast<size_t>(got);
        if (errno == EAGAIN) {
            if (!wait_ready(fd, POLLIN, deadline)) return fail(Code::kTimedOut, "no answer in time");
        } else if (errno != EINTR) {
            return fail_errno(Code::kUnavailable, errno, "connection lost");
        }
    }
}

Result<> receive_answer(int fd, HttpAnswerParser& parser, Deadline deadline) {
    std::vector<char> bytes(kReadBytes);
    for (;;) {
        MC_ASSIGN_OR_RETURN(const size_t got, receive_some(fd, bytes.data(), bytes.size(), deadline));
        if (got == 0) return parser.finish();
        MC_ASSIGN_OR_RETURN(const bool complete, parser.feed({bytes.data(), got}));
        if (complete) return {};
        // Who never stops sending leaves nothing to wait for.
        if (deadline.passed()) return fail(Code::kTimedOut, "no whole answer in time");
    }
}

Result<> exchange(int fd, const std::string& request, HttpAnswerParser& parser, Deadline deadline) {
    auto sent = send_all(fd, request.data(), request.size(), deadline);
    if (!sent && sent.error().code() == Code::kTimedOut) return Unexpected(std::move(sent).error().with_context("sending the request"));
    // A server that refuses a large request may answer and close before it has read all of it.
    auto received = receive_answer(fd, parser, deadline);
    if (received) return {};
    if (!sent) return Unexpected(std::move(sent).error().with_context("sending the request"));
    return Unexpected(std::move(received).error().with_context("waiting for the answer"));
}

bool is_repeatable(const HttpRequest& request) {
    return request.repeatable || request.method == "GET" || request.method == "HEAD" || request.method == "PUT" ||
           request.method == "DELETE";
}

bool is_token(std::string_view text) {
    return !text.empty() && text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string_view::npos;
}

/// An idle connection has nothing to read; if it has, the server closed it or speaks out of turn.
bool looks_alive(int fd) noexcept {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) == 0;
}

}  // namespace

Result<HttpResponse> HttpClient::send(const HttpRequest& request, Deadline deadline) {
    const auto context = [&](Error error) {
        return Unexpected(std::move(error).with_context(format_text("{} {}", request.method, request.url)));
    };
    auto url = HttpUrl::parse(request.url);
    if (!url) return Unexpected(std::move(url).error());
    if (!is_token(request.method)) return fail(Code::kInvalidArgument, "'{}' is not an HTTP method", request.method);
    if (request.content_type.find_first_of("\r\n") != std::string::npos)
        return fail(Code::kInvalidArgument, "a content type with line breaks");
    if (url->tls) return context(error(Code::kNotSupported, "https is not supported by this build; use http"));
    auto response = send_to(*url, request, deadline);
    if (!response) return context(std::move(response).error());
    return response;
}

Result<HttpResponse> HttpClient::send_to(const HttpUrl& url, const HttpRequest& request, Deadline deadline) {
    const std::string text = serialise(url, request);
    for (bool fresh = false;; fresh = true) {
        MC_ASSIGN_OR_RETURN(Connection connection, take(url, fresh, deadline));
        HttpAnswerParser parser({.body_bytes_max = options_.response_bytes_max, .head = request.method == "HEAD"});
        auto exchanged = exchange(connection.socket.fd(), text, parser, deadline);
        if (exchanged) {
            if (parser.reusable()) keep(url.host_port(), std::move(connection));
            return parser.take();
        }
        // The server may have closed a kept connection just when we sent on it; that says nothing about the server.
        const bool was_stale = connection.reused && !parser.began() && exchanged.error().code() == Code::kUnavailable;
        if (!was_stale || !is_repeatable(request)) return Unexpected(std::move(exchanged).error());
    }
}

Result<HttpClient::Connection> HttpClient::take(const HttpUrl& url, bool fresh, Deadline deadline) {
    const std::string server = url.host_port();
    if (!fresh) {
        Lock lock(mutex_);
        for (auto found = idle_.find(server); found != idle_.end() && found->first == server; found = idle_.erase(found)) {
            Connection connection = std::move(found->second);
            if (Clock::now() - connection.used > options_.idle_timeout || !looks_alive(connection.socket.fd())) continue;
            idle_.erase(found);
            connection.reused = true;
            return connection;
        }
    }
    MC_ASSIGN_OR_RETURN(Socket socket, connect_to(url.host, url.port, deadline.earlier(Deadline::after(options_.connect_timeout))));
    return Connection{.socket = std::move(socket), .used = {}, .reused = false};
}

void HttpClient::keep(const std::string& server, Connection connection) {
    connection.used = Clock::now();
    if (options_.idle_connections_max == 0) return;
    Lock lock(mutex_);
    if (idle_.size() >= options_.idle_connections_max) {
        const auto older = [](const auto& a, const auto& b) { return a.second.used < b.second.used; };
        idle_.erase(std::min_element(idle_.begin(), idle_.end(), older));
    }
    idle_.emplace(server, std::move(connection));
}

Result<HttpResponse> http_request(const HttpRequest& request, Deadline deadline) {
    HttpClient client({.idle_connections_max = 0});
    return client.send(request, deadline);
}

}  // namespace mooncake::net
