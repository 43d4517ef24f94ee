// SPDX-License-Identifier: Apache-2.0
#include "net/http_client.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <sstream>

namespace mooncake::net {

namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr uint32_t kHeaderBytesMax = 64 * 1024;
constexpr size_t kReadBytes = 64 * 1024;

/// How far an exchange came, and whether the connection can carry another one.
struct Outcome {
    bool answer_began = false;
    bool reusable = false;
};

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

/// Reads one message after another until one is no interim (1xx) answer.
class AnswerReader {
public:
    AnswerReader(int fd, uint64_t bytes_max, bool head) : fd_(fd), bytes_max_(bytes_max), head_(head) {}

    Result<HttpResponse> read(Deadline deadline, Outcome& outcome) {
        for (;;) {
            http::response_parser<http::string_body> parser;
            parser.body_limit(bytes_max_);
            parser.header_limit(kHeaderBytesMax);
            parser.eager(true);
            parser.skip(head_);
            MC_RETURN_IF_ERROR(read_message(parser, deadline, outcome));
            if (parser.get().result_int() / 100 == 1) continue;
            outcome.reusable = parser.keep_alive() && buffer_.size() == 0;
            http::response<http::string_body> message = parser.release();
            return HttpResponse{.status = static_cast<int>(message.result_int()),
                                .body = std::move(message.body()),
                                .content_type = std::string(message[http::field::content_type])};
        }
    }

private:
    Result<> read_message(http::response_parser<http::string_body>& parser, Deadline deadline, Outcome& outcome) {
        beast::error_code status;
        for (;;) {
            while (buffer_.size() > 0 && !parser.is_done()) {
                const size_t used = parser.put(buffer_.data(), status);
                buffer_.consume(used);
                if (status == http::error::need_more) break;
                if (status) return parse_error(status);
            }
            if (parser.is_done()) return {};
            const auto space = buffer_.prepare(kReadBytes);
            MC_ASSIGN_OR_RETURN(const size_t got, receive_some(fd_, space.data(), space.size(), deadline));
            buffer_.commit(got);
            if (got > 0) {
                outcome.answer_began = true;
                continue;
            }
            if (!outcome.answer_began) return fail(Code::kUnavailable, "the server closed the connection");
            parser.put_eof(status);
            if (status) return fail(Code::kUnavailable, "the server closed the connection in the middle of its answer");
            return {};
        }
    }

    Result<> parse_error(const beast::error_code& status) const {
        if (status == http::error::body_limit) return fail(Code::kNoSpace, "the answer is larger than {} bytes", bytes_max_);
        return fail(Code::kCorrupt, "the answer is not HTTP: {}", status.message());
    }

    const int fd_;
    const uint64_t bytes_max_;
    const bool head_;
    beast::flat_buffer buffer_;
};

Result<HttpResponse> exchange(int fd, const std::string& request, AnswerReader reader, Deadline deadline, Outcome& outcome) {
    auto sent = send_all(fd, request.data(), request.size(), deadline);
    if (!sent && sent.error().code() == Code::kTimedOut) return Unexpected(std::move(sent).error().with_context("sending the request"));
    // A server that refuses a large request may answer and close before it has read all of it.
    auto answer = reader.read(deadline, outcome);
    if (answer) {
        if (!sent) outcome.reusable = false;
        return answer;
    }
    if (!sent) return Unexpected(std::move(sent).error().with_context("sending the request"));
    return Unexpected(std::move(answer).error().with_context("waiting for the answer"));
}

bool is_repeatable(const HttpRequest& request) {
    return request.repeatable || request.method == "GET" || request.method == "HEAD" || request.method == "PUT" || request.method == "DELETE";
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
    const auto context = [&](Error error) { return Unexpected(std::move(error).with_context(format_text("{} {}", request.method, request.url))); };
    auto url = HttpUrl::parse(request.url);
    if (!url) return Unexpected(std::move(url).error());
    if (!is_token(request.method)) return fail(Code::kInvalidArgument, "'{}' is not an HTTP method", request.method);
    if (request.content_type.find_first_of("\r\n") != std::string::npos) return fail(Code::kInvalidArgument, "a content type with line breaks");
    if (url->tls) return context(error(Code::kNotSupported, "https is not supported by this build; use http"));
    auto response = send_to(*url, request, deadline);
    if (!response) return context(std::move(response).error());
    return response;
}

Result<HttpResponse> HttpClient::send_to(const HttpUrl& url, const HttpRequest& request, Deadline deadline) {
    const std::string text = serialise(url, request);
    for (bool fresh = false;; fresh = true) {
        MC_ASSIGN_OR_RETURN(Connection connection, take(url, fresh, deadline));
        Outcome outcome;
        const AnswerReader reader(connection.socket.fd(), options_.response_bytes_max, request.method == "HEAD");
        auto response = exchange(connection.socket.fd(), text, reader, deadline, outcome);
        // The server may have closed a kept connection just when we sent on it; that says nothing about the server.
        const bool was_stale = !response && response.error().code() == Code::kUnavailable && connection.reused && !outcome.answer_began;
        if (was_stale && is_repeatable(request)) continue;
        if (outcome.reusable) keep(url.host_port(), std::move(connection));
        return response;
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
