// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/engine_call.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "net/address.h"
#include "net/resolver.h"
#include "net/socket.h"

namespace mooncake::conductor {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr Duration kConnectTimeout = 5s;
constexpr uint32_t kHeaderBytesMax = 64 * 1024;

}  // namespace

boost::asio::ip::tcp::endpoint endpoint_of(const net::SocketAddress& address) {
    Tcp::endpoint endpoint;
    std::memcpy(endpoint.data(), address.get(), address.length);
    endpoint.resize(address.length);
    return endpoint;
}

Task<Result<std::vector<net::SocketAddress>>> resolve_host(const std::string& host, uint16_t port) {
    using Addresses = Result<std::vector<net::SocketAddress>>;
    if (net::is_numeric_host(host)) co_return net::resolve(host, port);
    const auto executor = co_await asio::this_coro::executor;
    // Named: gcc 12 destroys the captures of a lambda within an awaited expression twice.
    const auto initiate = [executor, host, port](auto handler) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        const auto work = asio::prefer(executor, asio::execution::outstanding_work.tracked);
        net::resolve_in_background(host, port, [shared, work](Addresses addresses) {
            asio::post(work, [shared, result = std::move(addresses)]() mutable { std::move (*shared)(std::move(result)); });
        });
    };
    co_return co_await asio::async_initiate<const asio::use_awaitable_t<>, void(Addresses)>(initiate, asio::use_awaitable);
}

std::unique_ptr<beast::tcp_stream> EnginePool::take(const Endpoint& endpoint) {
    auto& idle = idle_[{endpoint.host, endpoint.port}];
    while (!idle.empty()) {
        auto stream = std::move(idle.back());
        idle.pop_back();
        // One that the engine closed meanwhile is readable.
        char byte = 0;
        const auto got = ::recv(stream->socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return stream;
    }
    return nullptr;
}

void EnginePool::keep(const Endpoint& endpoint, std::unique_ptr<beast::tcp_stream> stream) {
    auto& idle = idle_[{endpoint.host, endpoint.port}];
    if (idle.size() < kIdleMax) idle.push_back(std::move(stream));
}

Unexpected EngineCall::failure(const char* stage, boost::system::error_code problem) const {
    const Code code = problem == beast::error::timeout ? Code::kTimedOut
                      : problem.category() == http::make_error_code(http::error::bad_version).category() &&
                              problem != http::error::end_of_stream && problem != http::error::partial_message
                          ? Code::kCorrupt
                          : Code::kUnavailable;
    return fail(code, "{} while {}: {}", endpoint_.name, stage, problem.message());
}

void EngineCall::abort() {
    aborted_ = true;
    if (stream_) stream_->close();
}

Task<Result<>> EngineCall::connect(Duration timeout) {
    const auto addresses = co_await resolve_host(endpoint_.host, endpoint_.port);
    if (!addresses) co_return Unexpected(Error(addresses.error()));
    boost::system::error_code last = asio::error::host_not_found;
    for (const net::SocketAddress& address : *addresses) {
        stream_ = std::make_unique<beast::tcp_stream>(pool_.loop());
        stream_->expires_after(std::min(timeout, kConnectTimeout));
        auto [problem] = co_await stream_->async_connect(endpoint_of(address), kTuple);
        if (aborted_) co_return fail(Code::kCancelled, "{} was given up", endpoint_.name);
        if (!problem) {
            net::tune(stream_->socket().native_handle());
            co_return Result<>();
        }
        last = problem;
    }
    co_return failure("connecting", last);
}

Task<Result<int>> EngineCall::send(const EngineRequest& request, Duration timeout) {
    std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n", request.method, request.target,
                                   net::join_host_port(endpoint_.host, endpoint_.port), request.body.size());
    for (const auto& [name, value] : request.headers) text += name + ": " + value + "\r\n";
    text += "\r\n" + request.body;
    stream_ = pool_.take(endpoint_);
    reused_ = stream_ != nullptr;
    if (!reused_) {
        auto connected = co_await connect(timeout);
        if (!connected) co_return Unexpected(std::move(connected).error());
    }
    auto answered = co_await exchange(text, timeout);
    // A kept connection that the engine closed at the same moment: nothing of an answer came, so it was not begun.
    if (!answered && reused_ && !aborted_ && answered.error().code() == Code::kUnavailable && !parser_->got_some()) {
        reused_ = false;
        auto connected = co_await connect(timeout);
        if (!connected) co_return Unexpected(std::move(connected).error());
        answered = co_await exchange(text, timeout);
    }
    co_return answered;
}

Task<Result<int>> EngineCall::exchange(const std::string& text, Duration timeout) {
    buffer_.clear();
    parser_.emplace();
    parser_->header_limit(kHeaderBytesMax);
    parser_->body_limit(boost::none);
    parser_->eager(true);
    stream_->expires_after(timeout);
    auto [unsent, sent] = co_await asio::async_write(*stream_, asio::buffer(text), kTuple);
    if (unsent) co_return failure("sending", unsent);
    auto [problem, got] = co_await http::async_read_header(*stream_, buffer_, *parser_, kTuple);
    if (problem) co_return failure("waiting for its answer", problem);
    status_ = static_cast<int>(parser_->get().result_int());
    co_return status_;
}

Task<Result<std::string>> EngineCall::read(Duration timeout) {
    std::string& body = parser_->get().body();
    while (body.empty() && !parser_->is_done()) {
        stream_->expires_after(timeout);
        auto [problem, got] = co_await http::async_read_some(*stream_, buffer_, *parser_, kTuple);
        if (problem == http::error::end_of_stream && parser_->is_done()) break;
        if (problem) co_return failure("reading its answer", problem);
    }
    std::string piece = std::exchange(body, {});
    if (piece.empty() && parser_->is_done() && stream_) {
        stream_->expires_never();
        if (parser_->keep_alive()) pool_.keep(endpoint_, std::move(stream_));
        stream_.reset();
    }
    co_return piece;
}

Task<Result<std::string>> EngineCall::read_all(size_t bytes_max, Duration timeout) {
    std::string all;
    while (true) {
        auto piece = co_await read(timeout);
        if (!piece) co_return Unexpected(std::move(piece).error());
        if (piece->empty()) co_return all;
        if (all.size() + piece->size() > bytes_max)
            co_return fail(Code::kNoSpace, "{} answered with more than {} bytes", endpoint_.name, bytes_max);
        all += *piece;
    }
}

}  // namespace mooncake::conductor
