// SPDX-License-Identifier: Apache-2.0
#include "net/http_answer.h"

#include <gtest/gtest.h>

namespace mooncake::net {
namespace {

TEST(HttpAnswerParser, TakesAWholeAnswerAndOneInPieces) {
    const std::string_view text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
    for (const size_t step : {text.size(), size_t{1}}) {
        HttpAnswerParser parser({.body_bytes_max = 10, .head = false});
        bool complete = false;
        for (size_t at = 0; at < text.size(); at += step) complete = parser.feed(text.substr(at, step)).value();
        ASSERT_TRUE(complete);
        const HttpResponse answer = parser.take();
        EXPECT_EQ(answer.status, 200);
        EXPECT_EQ(answer.body, "hi");
    }
}

TEST(HttpAnswerParser, RefusesAnswersThatNeverComeToTheirBody) {
    const std::string extension(1000, 'x');
    for (const auto& [head, again] :
         {std::pair<std::string, std::string>{"", "HTTP/1.1 100 Continue\r\n\r\n"},
          std::pair<std::string, std::string>{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", extension}}) {
        HttpAnswerParser parser({.body_bytes_max = 64 << 20, .head = false});
        Result<bool> complete = parser.feed(head);
        uint64_t bytes = 0;
        for (; complete && !*complete && bytes < 10'000'000; bytes += again.size()) complete = parser.feed(again);
        EXPECT_FALSE(complete) << again.substr(0, 20) << " " << bytes;
    }
}

TEST(HttpAnswerParser, TakesALongBodyInSmallChunks) {
    HttpAnswerParser parser({.body_bytes_max = 1 << 20, .head = false});
    ASSERT_TRUE(parser.feed("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < 1 << 20; ++i) ASSERT_FALSE(parser.feed("1\r\nx\r\n").value());
    ASSERT_TRUE(parser.feed("0\r\n\r\n").value());
    EXPECT_EQ(parser.take().body.size(), size_t{1} << 20);
}

TEST(HttpAnswerParser, RefusesAStatusBelow100) {
    for (const std::string_view status : {"000", "099"}) {
        HttpAnswerParser parser({.body_bytes_max = 10, .head = false});
        const auto complete = parser.feed(format_text("HTTP/1.1 {} x\r\nContent-Length: 0\r\n\r\n", status));
        ASSERT_FALSE(complete) << status;
        EXPECT_EQ(complete.error().code(), Code::kCorrupt);
    }
}

TEST(HttpAnswerParser, RefusesAStatusBelow100AlsoWhenTheEndOfTheConnectionEndsTheAnswer) {
    HttpAnswerParser parser({.body_bytes_max = 10, .head = false});
    ASSERT_TRUE(parser.feed("HTTP/1.1 042 x\r\n\r\nhi"));
    const auto finished = parser.finish();
    ASSERT_FALSE(finished);
    EXPECT_EQ(finished.error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace mooncake::net
