// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/wire.h"

#include <gtest/gtest.h>

#include <random>

namespace mooncake::ascend {
namespace {

TEST(AscendWire, EndpointsComeBack) {
    const std::vector<EndpointRecord> all{{"10.0.0.1:20001", 0, false}, {"[2001:db8::1]:20100", 15, true}, {"10.0.0.1:1", -1, false}};
    EXPECT_EQ(encode_endpoints(all), "1;10.0.0.1:20001@0;[2001:db8::1]:20100@15+;10.0.0.1:1@-1");
    EXPECT_EQ(decode_endpoints(encode_endpoints(all)).value(), all);
}

TEST(AscendWire, RefusesEndpointsThatMakeNoSense) {
    for (const char* const text : {"", "1", "2;10.0.0.1:1@0", "1;10.0.0.1:1", "1;10.0.0.1@0", "1;10.0.0.1:1@x", "1;10.0.0.1:1@-2", "1;:1@0",
                                   "1;10.0.0.1:99999@0", "1;10.0.0.1:1@0x"})
        EXPECT_FALSE(decode_endpoints(text)) << text;
    std::string many = "1";
    for (int i = 0; i < 65; ++i) many += ";10.0.0.1:1@0";
    EXPECT_FALSE(decode_endpoints(many));
}

TEST(AscendWire, QuestionsAndAnswersComeBack) {
    const ResolveRequest request{.ranges = {{1, 2}, {UINT64_MAX, UINT64_MAX}}};
    const auto asked = decode_request(encode(request)).value();
    ASSERT_EQ(asked.ranges.size(), 2u);
    EXPECT_EQ(asked.ranges[1].length, UINT64_MAX);
    const ResolveAnswer answer{.version = 7, .regions = {{100, 50, 3, 0, true}, {100, 50, 3, 1, false}}};
    const auto told = decode_answer(encode(answer)).value();
    EXPECT_EQ(told.version, 7u);
    EXPECT_EQ(told.regions, answer.regions);
}

TEST(AscendWire, RefusesWhatIsCutOrTooLongOrWraps) {
    const auto request = encode(ResolveRequest{.ranges = {{1, 2}, {3, 4}}});
    const auto answer = encode(ResolveAnswer{.version = 1, .regions = {{100, 50, 3, 0, true}}});
    for (size_t length = 0; length < request.size(); ++length) EXPECT_FALSE(decode_request(std::span(request).first(length)));
    for (size_t length = 0; length < answer.size(); ++length) EXPECT_FALSE(decode_answer(std::span(answer).first(length)));
    auto longer = request;
    longer.push_back({});
    EXPECT_FALSE(decode_request(longer));
    EXPECT_FALSE(decode_request(encode(ResolveRequest{.ranges = std::vector<AddressRange>(kRangesMax + 1)})));
    EXPECT_FALSE(decode_answer(encode(ResolveAnswer{.version = 1, .regions = {{100, 0, 3, 0, true}}})));
    EXPECT_FALSE(decode_answer(encode(ResolveAnswer{.version = 1, .regions = {{UINT64_MAX, 2, 3, 0, true}}})));
}

TEST(AscendWire, NoiseIsRefusedOrRead) {
    std::mt19937_64 random(1);
    for (int round = 0; round < 20'000; ++round) {
        std::vector<std::byte> bytes(random() % 100);
        for (std::byte& one : bytes) one = static_cast<std::byte>(random());
        if (bytes.size() > 8 && round % 2 == 0)
            bytes[0] = std::byte{1}, bytes[1] = bytes[2] = bytes[3] = bytes[5] = bytes[6] = bytes[7] = std::byte{0};
        (void)decode_request(bytes);
        (void)decode_answer(bytes);
        (void)decode_endpoints(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
}

}  // namespace
}  // namespace mooncake::ascend
