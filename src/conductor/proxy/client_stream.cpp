// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/client_stream.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/status.hpp>

namespace mooncake::conductor {

namespace {

std::string header_text(int status, const Headers& headers, bool keep_alive) {
    const auto reason = boost::beast::http::obsolete_reason(boost::beast::http::int_to_status(static_cast<unsigned>(status)));
    std::string text = fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    if (!keep_alive) text += "Connection: close\r\n";
    return text;
}

std::string chunk_of(std::string_view piece) { return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece); }

}  // namespace

Task<bool> ClientStream::put(std::string text) {
    if (broken_) co_return false;
    stream_.expires_after(timeout_);
    auto [problem, sent] = co_await boost::asio::async_write(stream_, boost::asio::buffer(text),
                                                             boost::asio::as_tuple(boost::asio::use_awaitable));
    stream_.expires_never();
    broken_ = static_cast<bool>(problem);
    co_return !broken_;
}

Task<bool> ClientStream::begin(int status, const Headers& headers, std::string_view first) {
    began_ = true;
    co_return co_await put(header_text(status, headers, keep_alive_) + "Transfer-Encoding: chunked\r\n\r\n" + chunk_of(first));
}

Task<bool> ClientStream::write(std::string_view piece) {
    if (piece.empty()) co_return !broken_;  // an empty chunk would be the end
    co_return co_await put(chunk_of(piece));
}

Task<bool> ClientStream::end() { co_return co_await put("0\r\n\r\n"); }

Task<bool> ClientStream::whole(int status, const Headers& headers, std::string_view body) {
    began_ = true;
    co_return co_await put(header_text(status, headers, keep_alive_) + fmt::format("Content-Length: {}\r\n\r\n{}", body.size(), body));
}

}  // namespace mooncake::conductor
