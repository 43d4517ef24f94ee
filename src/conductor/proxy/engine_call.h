// SPDX-License-Identifier: Apache-2.0
// Include only in .cpp files: it needs Boost.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "conductor/proxy/dialect.h"
#include "net/address.h"

namespace mooncake::conductor {

/// gcc 12 destroys temporaries of `a ? b : c` in a statement with co_await also where they were never made, and mistreats lists in braces there: name such
/// values before.
template <typename T>
using Task = boost::asio::awaitable<T>;

using Headers = std::vector<std::pair<std::string, std::string>>;

/// The system's resolver on a thread of its own; literal addresses need none.
boost::asio::awaitable<Result<std::vector<net::SocketAddress>>> resolve_host(const std::string& host, uint16_t port);
boost::asio::ip::tcp::endpoint endpoint_of(const net::SocketAddress& address);

/// Connections to engines that wait for their next request; one pool for each thread of the proxy. Not thread-safe.
class EnginePool {
public:
    explicit EnginePool(boost::asio::io_context& loop) : loop_(loop) {}
    boost::asio::io_context& loop() noexcept { return loop_; }
    std::unique_ptr<boost::beast::tcp_stream> take(const Endpoint& endpoint);
    void keep(const Endpoint& endpoint, std::unique_ptr<boost::beast::tcp_stream> stream);
    void clear() { idle_.clear(); }

private:
    static constexpr size_t kIdleMax = 64;  // for one engine

    boost::asio::io_context& loop_;
    std::map<std::pair<std::string, uint16_t>, std::vector<std::unique_ptr<boost::beast::tcp_stream>>> idle_;
};

struct EngineRequest {
    std::string method = "POST", target, body;
    Headers headers;
};

/// One request to an engine and its answer, piece by piece. Ends with its connection unless the answer was read to its end; so destroying it aborts
/// the request at the engine. Everything runs on its pool's thread. Errors name the engine: kUnavailable, kTimedOut, kCorrupt.
class EngineCall {
public:
    EngineCall(EnginePool& pool, Endpoint endpoint) : pool_(pool), endpoint_(std::move(endpoint)) {}

    /// Sends it and waits for the header of the answer.
    Task<Result<int>> send(const EngineRequest& request, Duration timeout);
    /// More of the body; empty at its end.
    Task<Result<std::string>> read(Duration timeout);
    /// The whole body.
    Task<Result<std::string>> read_all(size_t bytes_max, Duration timeout);
    /// Ends what is under way with an error.
    void abort();

    int status() const noexcept { return status_; }
    const boost::beast::http::fields& headers() const { return parser_->get().base(); }

private:
    using Parser = boost::beast::http::response_parser<boost::beast::http::string_body>;

    Task<Result<>> connect(Duration timeout);
    Task<Result<int>> exchange(const std::string& text, Duration timeout);
    Unexpected failure(const char* stage, boost::system::error_code problem) const;

    EnginePool& pool_;
    const Endpoint endpoint_;
    std::unique_ptr<boost::beast::tcp_stream> stream_;
    boost::beast::flat_buffer buffer_;
    std::optional<Parser> parser_;
    int status_ = 0;
    bool reused_ = false, aborted_ = false;
};

}  // namespace mooncake::conductor
