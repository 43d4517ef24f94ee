// SPDX-License-Identifier: Apache-2.0
#include "net/http_answer.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>

namespace mooncake::net {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr uint32_t kHeaderBytesMax = 64 * 1024;
// All bytes of an answer together: so many whatever they are, interim answers too, and those of the smallest chunks for each byte of the body.
constexpr uint64_t kBytesMax = 1 << 20, kBytesPerBodyByteMax = 8;

Unexpected parse_error(const beast::error_code& status, uint64_t body_bytes_max) {
    if (status == http::error::body_limit) return fail(Code::kNoSpace, "the answer is larger than {} bytes", body_bytes_max);
    return fail(Code::kCorrupt, "the answer is not HTTP: {}", status.message());
}

}  // namespace

struct HttpAnswerParser::Parser {
    beast::flat_buffer unread;
    std::optional<http::response_parser<http::string_body>> message;

    void begin(const Limits& limits) {
        message.emplace();
        message->body_limit(limits.body_bytes_max);
        message->header_limit(kHeaderBytesMax);
        message->eager(true);
        message->skip(limits.head);
    }
    /// Beast takes any three digits for a status.
    Result<> check_status() const {
        if (message->get().result_int() < 100) return fail(Code::kCorrupt, "the answer has no HTTP status");
        return {};
    }
    /// Whether too much came for what is there of the body, or of something that is parsed only as a whole (a chunk's head).
    bool excessive(uint64_t bytes) const {
        return unread.size() > kHeaderBytesMax || bytes > kBytesMax + kBytesPerBodyByteMax * message->get().body().size();
    }
    bool is_interim() const { return message->get().result_int() / 100 == 1; }
};

HttpAnswerParser::HttpAnswerParser(Limits limits) : limits_(limits), parser_(std::make_unique<Parser>()) { parser_->begin(limits_); }
HttpAnswerParser::~HttpAnswerParser() = default;

Result<bool> HttpAnswerParser::feed(std::string_view bytes) {
    if (bytes.empty()) return false;
    bytes_ += bytes.size();
    beast::flat_buffer& unread = parser_->unread;
    unread.commit(asio::buffer_copy(unread.prepare(bytes.size()), asio::buffer(bytes)));
    while (unread.size() > 0) {
        beast::error_code status;
        unread.consume(parser_->message->put(unread.data(), status));
        if (status == http::error::need_more) break;
        if (status) return parse_error(status, limits_.body_bytes_max);
        if (!parser_->message->is_done()) continue;
        MC_RETURN_IF_ERROR(parser_->check_status());
        if (!parser_->is_interim()) return true;
        parser_->begin(limits_);
    }
    if (parser_->excessive(bytes_)) return fail(Code::kCorrupt, "the answer has {} bytes and is no answer yet", bytes_);
    return false;
}

Result<> HttpAnswerParser::finish() {
    if (!began()) return fail(Code::kUnavailable, "the server closed the connection");
    beast::error_code status;
    parser_->message->put_eof(status);
    if (status || !parser_->message->is_done())
        return fail(Code::kUnavailable, "the server closed the connection in the middle of its answer");
    return parser_->check_status();
}

bool HttpAnswerParser::reusable() const { return parser_->message->keep_alive() && parser_->unread.size() == 0; }

HttpResponse HttpAnswerParser::take() {
    http::response<http::string_body> message = parser_->message->release();
    return {.status = static_cast<int>(message.result_int()),
            .body = std::move(message.body()),
            .content_type = std::string(message[http::field::content_type])};
}

}  // namespace mooncake::net
