// SPDX-License-Identifier: Apache-2.0
// Include only in .cpp files: it needs Boost.
#pragma once

#include <boost/beast/core/tcp_stream.hpp>
#include <string>
#include <string_view>

#include "conductor/proxy/engine_call.h"

namespace mooncake::conductor {

/// The answer to one request of a client. A write waits until the client has taken what was written before. False: the client is gone. Not thread-safe.
class ClientStream {
public:
    ClientStream(boost::beast::tcp_stream& stream, Duration timeout, bool keep_alive)
        : stream_(stream), timeout_(timeout), keep_alive_(keep_alive) {}

    /// The header, and with it the first piece of a body whose end is not known.
    Task<bool> begin(int status, const Headers& headers, std::string_view first);
    Task<bool> write(std::string_view piece);
    Task<bool> end();
    /// All of it at once.
    Task<bool> whole(int status, const Headers& headers, std::string_view body);

    bool began() const noexcept { return began_; }
    /// Nothing more can be said on this connection.
    bool broken() const noexcept { return broken_; }
    bool keep_alive() const noexcept { return keep_alive_ && !broken_; }

private:
    Task<bool> put(std::string text);

    boost::beast::tcp_stream& stream_;
    const Duration timeout_;
    const bool keep_alive_;
    bool began_ = false, broken_ = false;
};

}  // namespace mooncake::conductor
