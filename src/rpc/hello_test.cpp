// SPDX-License-Identifier: Apache-2.0
#include "rpc/hello.h"

#include <flatbuffers/flatbuffers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/frame.h"
#include "rpc_generated.h"

namespace mooncake::rpc {
namespace {

HelloMessage sample() {
    return {.major = 7,
            .minor = 9,
            .message_bytes_max = 1 << 30,
            .hello = {.incarnation = {42}, .features = 0xf0f0, .software = "mooncake 9.9"}};
}

TEST(Hello, SurvivesTheWire) {
    const auto got = decode_hello(encode_hello(sample()));
    ASSERT_TRUE(got);
    EXPECT_EQ(got->major, 7);
    EXPECT_EQ(got->minor, 9);
    EXPECT_EQ(got->message_bytes_max, 1u << 30);
    EXPECT_EQ(got->hello.incarnation.value, 42u);
    EXPECT_EQ(got->hello.features, 0xf0f0u);
    EXPECT_EQ(got->hello.software, "mooncake 9.9");
}

TEST(Hello, ReplySurvivesTheWire) {
    const auto got = decode_hello_reply(encode_hello_reply({.message = sample(), .refusal = "no"}));
    ASSERT_TRUE(got);
    EXPECT_EQ(got->message.major, 7);
    EXPECT_EQ(got->message.hello.software, "mooncake 9.9");
    EXPECT_EQ(got->refusal, "no");
}

TEST(Hello, AlwaysFitsItsFrame) {
    HelloMessage message = sample();
    message.hello.software.assign(100'000, 'x');
    EXPECT_LE(encode_hello(message).size(), kHelloBytesMax);
    EXPECT_LE(encode_hello_reply({.message = message, .refusal = std::string(100'000, 'y')}).size(), kHelloBytesMax);
    EXPECT_TRUE(decode_hello(encode_hello(message)));
}

TEST(Hello, RefusalNamesBothPrograms) {
    HelloMessage server = sample(), client = sample();
    EXPECT_EQ(refusal_of(server, client), "");
    client.minor = 100;
    client.hello.features = UINT64_MAX;
    EXPECT_EQ(refusal_of(server, client), "");
    client.major = 8;
    client.hello.software = "mooncake 10";
    EXPECT_EQ(refusal_of(server, client), "server mooncake 9.9 speaks protocol 7, client mooncake 10 speaks protocol 8");
    client.hello.software.clear();
    EXPECT_EQ(refusal_of(server, client), "server mooncake 9.9 speaks protocol 7, client unknown software speaks protocol 8");
}

TEST(Hello, NonsenseIsRefused) {
    const Bytes good = encode_hello_reply({.message = sample()});
    for (size_t size = 0; size < good.size(); ++size) {
        const Bytes cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(size));
        (void)decode_hello(cut);
        (void)decode_hello_reply(cut);
        (void)decode_error(cut);
    }
    EXPECT_FALSE(decode_hello({}));
    EXPECT_FALSE(decode_hello(Bytes(64, std::byte{0xff})));
    EXPECT_FALSE(decode_hello_reply(Bytes(64, std::byte{0xff})));
}

TEST(Hello, ReplyWithoutHelloIsRefused) {
    flatbuffers::FlatBufferBuilder builder;
    builder.Finish(wire::CreateHelloReply(builder));
    EXPECT_FALSE(decode_hello_reply(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize()))));
}

TEST(ErrorReply, EveryCodeSurvivesTheWire) {
    for (int code = static_cast<int>(Code::kInvalidArgument); code <= static_cast<int>(Code::kInternal); ++code) {
        const Error got = decode_error(encode_error(Error(static_cast<Code>(code), "text", 111)));
        EXPECT_EQ(static_cast<int>(got.code()), code);
        EXPECT_EQ(got.message(), "text");
        EXPECT_EQ(got.system_errno(), 111);
    }
}

TEST(ErrorReply, LongTextsAreCut) {
    const Bytes body = encode_error(Error(Code::kNotFound, std::string(1 << 20, 'x')));
    EXPECT_LT(body.size(), 4096u);
    EXPECT_EQ(decode_error(body).code(), Code::kNotFound);
}

TEST(ErrorReply, CodesOfLaterVersionsBecomeInternal) {
    flatbuffers::FlatBufferBuilder builder;
    const auto text = builder.CreateString("from the future");
    builder.Finish(wire::CreateErrorReply(builder, static_cast<wire::ErrorCode>(200), 0, text));
    const Error got = decode_error(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
    EXPECT_EQ(got.code(), Code::kInternal);
    EXPECT_EQ(got.message(), "from the future");
}

TEST(ErrorReply, NonsenseBecomesCorrupt) { EXPECT_EQ(decode_error(Bytes(5)).code(), Code::kCorrupt); }

}  // namespace
}  // namespace mooncake::rpc
