// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace mooncake::tcp {
namespace {

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

std::vector<std::byte> head_of(const Header& header, std::vector<AddressRange> ranges, bool checked) {
    std::vector<std::byte> out;
    append_head(header, ranges, checked, out);
    return out;
}

Result<Header> header_of(const std::vector<std::byte>& head) { return decode_header(std::span(head).first<kHeaderBytes>()); }

TEST(TcpWire, HelloComesBackAsItWas) {
    const SessionId one{.high = 1, .low = 2}, two{.high = 3, .low = 4};
    for (const Hello& hello :
         {Hello{.lane = 3, .features = 5, .initiator = {11}, .target = {22}, .session = one, .ended = {two, one}},
          Hello{.initiator = {11}, .target = {22}, .session = one},
          Hello{.version = kNumberedSessions, .lane = 3, .features = 5, .initiator = {11}, .target = {22}, .number = 33},
          Hello{.version = 7, .lane = 3, .features = 5, .initiator = {11}, .target = {22}, .number = 33}}) {
        const auto bytes = encode(hello);
        EXPECT_EQ(hello_bytes(bytes), bytes.size());
        for (size_t some = 0; some <= bytes.size(); ++some) EXPECT_TRUE(may_be_hello(std::span(bytes).first(some)));
        for (size_t some = 0; some < kHelloBytes; ++some) EXPECT_EQ(hello_bytes(std::span(bytes).first(some)), 0u);
        const auto back = decode_hello(bytes);
        ASSERT_TRUE(back);
        EXPECT_EQ(*back, hello);
    }
}

TEST(TcpWire, TheVersionBeforeHasAHelloOfFortyBytesWithItsNumberAtTheEnd) {
    const auto bytes = encode(Hello{.version = kNumberedSessions, .initiator = {1}, .target = {2}, .number = 0x0102030405060708});
    ASSERT_EQ(bytes.size(), 40u);
    EXPECT_EQ(bytes[32], std::byte{8});
    EXPECT_EQ(bytes[39], std::byte{1});
}

TEST(TcpWire, AHelloNamesOnlySoManySessions) {
    auto bytes = encode(Hello{.ended = std::vector<SessionId>(kEndedMax + 1)});
    ASSERT_TRUE(decode_hello(bytes));
    EXPECT_EQ(decode_hello(bytes)->ended.size(), kEndedMax);
    bytes[49] = std::byte{1};
    EXPECT_FALSE(decode_hello(std::span(bytes).first(hello_bytes(bytes))));
}

TEST(TcpWire, WhatIsNoHelloIsKnownByItsFirstByte) {
    const std::string http = "GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n";
    EXPECT_FALSE(may_be_hello(std::as_bytes(std::span(http)).first(1)));
    EXPECT_EQ(decode_hello(std::as_bytes(std::span(http)).first(kHelloBytes)).error().code(), Code::kCorrupt);
}

TEST(TcpWire, HelloReplyComesBackWithItsText) {
    const HelloReply reply{.version = 2, .status = Status::kStale, .features = 1, .text = "not me"};
    const auto bytes = encode(reply);
    size_t text_bytes = 0;
    auto back = decode_hello_reply(std::span(bytes).first<kHelloReplyBytes>(), text_bytes);
    ASSERT_TRUE(back);
    ASSERT_EQ(text_bytes, 6u);
    back->text.assign(reinterpret_cast<const char*>(bytes.data()) + kHelloReplyBytes, text_bytes);
    EXPECT_EQ(*back, reply);
}

TEST(TcpWire, HelloReplyWithANonsenseFieldIsCorrupt) {
    const auto good = encode(HelloReply{.text = std::string(5000, 'x')});
    EXPECT_EQ(good.size(), kHelloReplyBytes + kTextBytesMax);
    size_t text_bytes = 0;
    EXPECT_TRUE(decode_hello_reply(std::span(good).first<kHelloReplyBytes>(), text_bytes));
    for (const size_t at : {size_t{0}, size_t{10}, size_t{17}}) {  // magic, status, length of the text
        auto bad = good;
        bad[at] = std::byte{0xee};
        EXPECT_FALSE(decode_hello_reply(std::span(bad).first<kHelloReplyBytes>(), text_bytes)) << at;
    }
}

TEST(TcpWire, HeadComesBackAsItWas) {
    const std::vector<AddressRange> ranges{{.address = 0x1000, .length = 10}, {.address = 0x5000, .length = 20}};
    for (const bool checked : {false, true}) {
        for (const bool part : {false, true}) {
            const Header header{.kind = Kind::kWrite, .descriptors = 2, .payload_bytes = part ? 20u : 30u, .id = 77, .part = part};
            const auto head = head_of(header, ranges, checked);
            ASSERT_EQ(head.size(), head_bytes(header));
            EXPECT_EQ(header_of(head).value(), header);
            std::vector<AddressRange> back;
            ASSERT_TRUE(decode_descriptors(header, head, checked, back));
            ASSERT_EQ(back.size(), 2u);
            EXPECT_EQ(back[1].address, 0x5000u);
            EXPECT_EQ(back[1].length, 20u);
        }
    }
}

TEST(TcpWire, HeadersThatBreakTheRulesOfTheirKindAreCorrupt) {
    const Header bad[] = {
        {.kind = Kind{0}},
        {.kind = Kind{6}},
        {.kind = Kind::kWrite, .descriptors = 0, .payload_bytes = 1},
        {.kind = Kind::kWrite, .descriptors = 1, .payload_bytes = 0},
        {.kind = Kind::kWrite, .descriptors = 1, .payload_bytes = kPayloadBytesMax + 1},
        {.kind = Kind::kRead, .descriptors = kDescriptorsMax + 1, .payload_bytes = 5000},
        {.kind = Kind::kRead, .status = Status::kStale, .descriptors = 1, .payload_bytes = 1},
        {.kind = Kind::kRead, .descriptors = 3, .payload_bytes = 1, .part = true},
        {.kind = Kind::kWritten, .payload_bytes = 1},
        {.kind = Kind::kWritten, .part = true},
        {.kind = Kind::kData, .payload_bytes = 0},
        {.kind = Kind::kData, .payload_bytes = kPayloadBytesMax + 1},
        {.kind = Kind::kError, .status = Status::kOk},
        {.kind = Kind::kError, .status = Status{8}},
        {.kind = Kind::kError, .status = Status::kStale, .payload_bytes = kTextBytesMax + 1},
    };
    for (const Header& header : bad) {
        const auto head = head_of(header, std::vector<AddressRange>(header.descriptors), false);
        EXPECT_FALSE(header_of(head)) << static_cast<int>(header.kind) << " " << header.descriptors << " " << header.payload_bytes;
    }
    auto unknown_flag = head_of({.kind = Kind::kWritten}, {}, false);
    unknown_flag[20] = std::byte{2};
    EXPECT_FALSE(header_of(unknown_flag));
}

TEST(TcpWire, DescriptorsMustAddUpToTheHeader) {
    const auto accepted = [](std::vector<AddressRange> ranges, uint32_t bytes, bool part = false) {
        const Header header{.kind = Kind::kRead, .descriptors = static_cast<uint16_t>(ranges.size()), .payload_bytes = bytes, .part = part};
        std::vector<AddressRange> out;
        return decode_descriptors(header, head_of(header, ranges, false), false, out).has_value();
    };
    EXPECT_TRUE(accepted({{1, 5}, {9, 5}}, 10));
    EXPECT_FALSE(accepted({{1, 5}, {9, 5}}, 9));
    EXPECT_FALSE(accepted({{1, 5}, {9, 5}}, 11));
    EXPECT_FALSE(accepted({{1, 10}, {9, 0}}, 10));
    EXPECT_FALSE(accepted({{1, ~uint64_t{0}}, {9, 11}}, 10));  // the sum wraps around to what the header says
    EXPECT_TRUE(accepted({{1, 1000}, {9, 10}}, 10, true));     // the first is the whole
    EXPECT_FALSE(accepted({{1, 1000}, {9, 11}}, 10, true));
}

TEST(TcpWire, DescriptorsThatAreCutOffAreCorrupt) {
    const Header header{.kind = Kind::kRead, .descriptors = 2, .payload_bytes = 2};
    const auto head = head_of(header, {{1, 1}, {2, 1}}, false);
    std::vector<AddressRange> out;
    EXPECT_FALSE(decode_descriptors(header, std::span(head).first(head.size() - 1), false, out));
}

TEST(TcpWire, ChecksumOfAHeadNoticesEveryChangedBit) {
    const Header header{.kind = Kind::kWrite, .descriptors = 2, .payload_bytes = 30, .id = 5};
    const auto good = head_of(header, {{0x1000, 10}, {0x2000, 20}}, true);
    EXPECT_TRUE(head_intact(good));
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
        auto bad = good;
        bad[bit / 8] ^= std::byte{1} << (bit % 8);
        EXPECT_FALSE(head_intact(bad)) << bit;
    }
}

TEST(TcpWire, RandomBytesNeverGetThroughAsDescriptorsThatDoNotFit) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 20'000; ++round) {
        std::vector<std::byte> bytes(kHeaderBytes + 16 * (random() % 4));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % (round % 2 ? 256 : 3));
        const auto header = header_of(bytes);
        if (!header || head_bytes(*header) > bytes.size()) continue;
        std::vector<AddressRange> ranges;
        if (!decode_descriptors(*header, std::span(bytes).first(head_bytes(*header)), false, ranges)) continue;
        uint64_t total = 0;
        for (size_t i = header->part ? 1 : 0; i < ranges.size(); ++i) total += ranges[i].length;
        EXPECT_EQ(total, header->payload_bytes);
    }
}

}  // namespace
}  // namespace mooncake::tcp
