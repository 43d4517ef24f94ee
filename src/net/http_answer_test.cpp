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
