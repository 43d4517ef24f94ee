// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/wire.h"

#include <gtest/gtest.h>

#include <random>

namespace mooncake::fabric {
namespace {

using Bytes = std::vector<std::byte>;

Bytes name_of(size_t length, int fill = 7) { return Bytes(length, static_cast<std::byte>(fill)); }

RailRecord rail(std::string nic) {
    return {.nic = std::move(nic),
            .provider = "efa",
            .protocol = 5,
            .address_format = 0x8001,
            .name = name_of(32),
            .epoch = UINT64_MAX,
            .virtual_addresses = true,
            .operation_bytes_max = UINT64_MAX,
            .speed_bits = 400'000'000'000,
            .numa_node = 1};
}

EndpointBlob blob(size_t rails) {
    EndpointBlob made{.profile = "efa", .rails = {}};
    for (size_t i = 0; i < rails; ++i) made.rails.push_back(rail(format_text("rdmap{}", i)));
    return made;
}

template <typename T>
Code code(const Result<T>& result) {
    return result ? Code::kOk : result.error().code();
}

TEST(FabricWire, EndpointSurvivesTheWire) {
    const auto again = decode_endpoint(encode_endpoint(blob(kRailsMax)));
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(*again, blob(kRailsMax));
    EXPECT_LT(encode_endpoint(blob(32)).size(), 16u << 10) << "a descriptor stays small";
}

TEST(FabricWire, EndpointMustHaveRailsThatWork) {
    EXPECT_EQ(code(decode_endpoint(encode_endpoint(blob(0)))), Code::kCorrupt);
    EXPECT_EQ(code(decode_endpoint(encode_endpoint(blob(kRailsMax + 1)))), Code::kCorrupt);
    const auto refused = [](auto change) {
        EndpointBlob bad = blob(2);
        change(bad.rails[1]);
        EXPECT_EQ(code(decode_endpoint(encode_endpoint(bad))), Code::kCorrupt);
    };
    refused([](RailRecord& rail) { rail.name.clear(); });
    refused([](RailRecord& rail) { rail.name = name_of(kNameBytesMax + 1); });
    refused([](RailRecord& rail) { rail.epoch = 0; });
    refused([](RailRecord& rail) { rail.operation_bytes_max = 0; });
    refused([](RailRecord& rail) { rail.nic = std::string(kTextBytesMax + 1, 'n'); });
    refused([](RailRecord& rail) { rail.provider = std::string(kTextBytesMax + 1, 'n'); });
}

TEST(FabricWire, ChunkKnowsItsKeysByRail) {
    ChunkRecord chunk{.address = 4096, .length = 4096, .rails = 0, .keys = {}};
    EXPECT_FALSE(chunk.key(0));
    chunk.set_key(5, UINT64_MAX);
    chunk.set_key(0, 0);
    chunk.set_key(63, 63);
    chunk.set_key(3, 3);
    EXPECT_EQ(chunk.key(0), 0u);
    EXPECT_EQ(chunk.key(3), 3u);
    EXPECT_EQ(chunk.key(5), UINT64_MAX);
    EXPECT_EQ(chunk.key(63), 63u);
    EXPECT_FALSE(chunk.key(1));
    EXPECT_FALSE(chunk.key(62));
    EXPECT_FALSE(chunk.key(64));
    chunk.set_key(3, 4);
    EXPECT_EQ(chunk.key(3), 4u);
    EXPECT_EQ(chunk.keys.size(), 4u);
}

ResolveAnswer keys() {
    ResolveAnswer answer{.chunks = {}, .complete = true, .rails = {}};
    for (uint64_t i = 0; i < 3; ++i) {
        ChunkRecord chunk{.address = (i + 1) << 30, .length = 1 << 30, .rails = 0, .keys = {}};
        for (uint32_t rail = 0; rail < 4; ++rail)
            if (rail != i) chunk.set_key(rail, UINT64_MAX - rail);
        answer.chunks.push_back(chunk);
    }
    answer.probe = ChunkRecord{.address = 4096, .length = 4096, .read_only = true};
    answer.probe->set_key(2, 99);
    answer.rails = {{.rail = 3, .epoch = UINT64_MAX, .name = name_of(kNameBytesMax)}, {.rail = 0, .epoch = 1, .name = {}}};
    return answer;
}

TEST(FabricWire, KeysSurviveTheWire) {
    const auto again = decode_resolve_answer(encode_answer(keys()), 4);
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(*again, keys());
}

TEST(FabricWire, AnswersMayNotNameWhatIsNotThere) {
    const auto refused = [](auto change) {
        ResolveAnswer bad = keys();
        change(bad);
        EXPECT_EQ(code(decode_resolve_answer(encode_answer(bad), 4)), Code::kCorrupt);
    };
    EXPECT_EQ(code(decode_resolve_answer(encode_answer(keys()), 3)), Code::kCorrupt) << "keys of a fourth rail";
    refused([](ResolveAnswer& answer) { answer.chunks[1].set_key(4, 1); });
    refused([](ResolveAnswer& answer) { answer.probe->set_key(4, 1); });
    refused([](ResolveAnswer& answer) { answer.probe->length = 0; });
    refused([](ResolveAnswer& answer) { answer.chunks[1].set_key(63, 1); });
    refused([](ResolveAnswer& answer) { answer.chunks[1].keys.push_back(1); });
    refused([](ResolveAnswer& answer) { answer.chunks[1].keys.pop_back(); });
    refused([](ResolveAnswer& answer) { answer.chunks[1].length = 0; });
    refused([](ResolveAnswer& answer) { answer.chunks[2].length = UINT64_MAX; });
    refused([](ResolveAnswer& answer) { answer.chunks[1].length += 1; });
    refused([](ResolveAnswer& answer) { std::swap(answer.chunks[0], answer.chunks[1]); });
    refused([](ResolveAnswer& answer) { answer.rails[0].rail = 4; });
    refused([](ResolveAnswer& answer) { answer.rails[0].epoch = 0; });
    refused([](ResolveAnswer& answer) { answer.rails[0].name = name_of(kNameBytesMax + 1); });
    refused([](ResolveAnswer& answer) { answer.rails.resize(kRailsMax + 1, answer.rails[0]); });
}

TEST(FabricWire, SizeOfAChunkIsKnownBeforehand) {
    ResolveAnswer answer;
    size_t expected = 0;
    for (uint64_t i = 0; expected < kAnswerBytesMax; ++i) {
        ChunkRecord chunk{.address = (i + 1) << 20, .length = 1 << 20, .rails = 0, .keys = {}};
        for (uint32_t rail = 0; rail < i % 33; ++rail) chunk.set_key(rail, i);
        expected += encoded_bytes(chunk);
        answer.chunks.push_back(std::move(chunk));
    }
    EXPECT_LE(encode_answer(answer).size(), expected + 128);
}

template <typename Body>
void expect_survives(Body body) {
    const auto again = decode_request(encode_request({.initiator = Incarnation{9}, .body = body}), 4);
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(again->initiator, Incarnation{9});
    ASSERT_TRUE(std::holds_alternative<Body>(again->body));
    EXPECT_EQ(std::get<Body>(again->body), body);
}

TEST(FabricWire, RequestsSurviveTheWire) {
    expect_survives(ResolveRequest{.address = 1ull << 47, .length = 1});
    expect_survives(FenceRequest{.rails = {{.rail = 0, .epoch = 1}, {.rail = 3, .epoch = UINT64_MAX}}});
    expect_survives(PingRequest{.rails = {}});
    expect_survives(PingRequest{.rails = blob(4).rails});
}

TEST(FabricWire, RequestsMayNotNameWhatIsNotThere) {
    const auto refused = [](Request request, Code why = Code::kCorrupt) {
        EXPECT_EQ(code(decode_request(encode_request(request), 4)), why);
    };
    refused({.initiator = {}, .body = PingRequest{}});
    refused({.initiator = Incarnation{1}, .body = ResolveRequest{.address = 1, .length = 0}});
    refused({.initiator = Incarnation{1}, .body = ResolveRequest{.address = UINT64_MAX, .length = 2}});
    refused({.initiator = Incarnation{1}, .body = FenceRequest{}});
    refused({.initiator = Incarnation{1}, .body = FenceRequest{.rails = {{.rail = 4, .epoch = 1}}}});
    refused({.initiator = Incarnation{1}, .body = FenceRequest{.rails = {{.rail = 1, .epoch = 0}}}});
    refused({.initiator = Incarnation{1},
             .body = FenceRequest{.rails = std::vector<FenceRequest::Closed>(kRailsMax + 1, {.rail = 1, .epoch = 1})}});
    refused({.initiator = Incarnation{1}, .body = PingRequest{.rails = blob(kRailsMax + 1).rails}});
}

TEST(FabricWire, RailsSurviveTheWire) {
    const RailsAnswer answer{.rails = keys().rails};
    EXPECT_EQ(decode_rails_answer(encode_answer(answer), 4).value(), answer);
    EXPECT_EQ(code(decode_rails_answer(encode_answer(answer), 3)), Code::kCorrupt);
    EXPECT_EQ(decode_rails_answer(encode_answer(RailsAnswer{}), 0).value(), RailsAnswer{});
}

TEST(FabricWire, TakesAnyBytes) {
    std::mt19937_64 random(3);
    const Bytes samples[] = {encode_answer(keys()),
                             encode_request({.initiator = Incarnation{9}, .body = PingRequest{.rails = blob(3).rails}}),
                             encode_request({.initiator = Incarnation{9}, .body = FenceRequest{.rails = {{.rail = 1, .epoch = 1}}}})};
    for (int round = 0; round < 3000; ++round) {
        Bytes bytes = samples[random() % 3];
        for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
        bytes.resize(random() % 4 == 0 ? random() % (bytes.size() + 1) : bytes.size());
        (void)decode_request(bytes, 4);
        (void)decode_resolve_answer(bytes, 4);
        (void)decode_rails_answer(bytes, 4);
        (void)decode_endpoint({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
}

}  // namespace
}  // namespace mooncake::fabric
