// SPDX-License-Identifier: Apache-2.0
// What a directory server may send: HTTP answers, redis replies, etcd's JSON. Cut into pieces or whole, the outcome is the same.
#include <cstddef>
#include <cstdint>
#include <string>

#include "coordination/etcd/etcd_answer.h"
#include "coordination/redis/redis_protocol.h"
#include "net/http_answer.h"

namespace {

using namespace mooncake;

/// A short text for what came out.
std::string parse_http(std::string_view text, size_t step) {
    net::HttpAnswerParser parser({.body_bytes_max = 1000, .head = false});
    for (size_t at = 0; at < text.size(); at += step) {
        const auto complete = parser.feed(text.substr(at, step));
        if (!complete) return std::string(code_name(complete.error().code()));
        if (*complete) {
            const net::HttpResponse answer = parser.take();
            MC_CHECK(answer.body.size() <= 1000 && answer.status >= 200);
            return format_text("{} {}", answer.status, answer.body);
        }
    }
    if (!parser.finish()) return "incomplete";
    const net::HttpResponse answer = parser.take();
    return format_text("{} {}", answer.status, answer.body);
}

std::string parse_redis(std::string_view text, size_t step) {
    RedisDecoder decoder;
    std::string outcome;
    for (size_t at = 0; at < text.size(); at += step) {
        decoder.feed(text.substr(at, step));
        for (;;) {
            const auto reply = decoder.next();
            if (!reply && reply.error().code() == Code::kCorrupt) return outcome + "corrupt";
            if (reply && !*reply) break;
            outcome += reply ? format_text("{} {} {};", static_cast<int>((*reply)->kind), (*reply)->number, (*reply)->text) : "error;";
        }
    }
    return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    MC_CHECK(parse_redis(text, 1) == parse_redis(text, size + 1));
    (void)parse_http(text, size + 1);
    (void)parse_http(text, 1);
    (void)parse_range_answer(text);
    MC_CHECK(etcd_error_text(text).size() <= 200);
    return 0;
}
