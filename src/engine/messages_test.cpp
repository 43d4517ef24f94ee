// SPDX-License-Identifier: Apache-2.0
#include "engine/messages.h"

#include <flatbuffers/flatbuffers.h>
#include <gtest/gtest.h>

#include <random>

#include "engine_generated.h"

namespace mooncake {
namespace {

using Body = std::vector<std::byte>;

SegmentDescriptor sample() {
    SegmentDescriptor descriptor;
    descriptor.name = "10.0.0.1:15123";
    descriptor.incarnation = Incarnation{0x0123456789abcdef};
    descriptor.host = "10.0.0.1";
    descriptor.rpc_port = 15123;
    descriptor.boot_id = "8c2a7a7e-0000-4000-8000-000000000001";
    descriptor.endpoints = {{"tcp", std::string("\0\1\xff", 3)}, {"shm", ""}};
    descriptor.buffers = {{0x7f0000000000, 4096, "cpu:0"}, {0x7f0000001000, UINT64_MAX - 0x7f0000001000, "*"}};
    descriptor.device_memory = {{0x7e0000000000, 4096, MemoryKind::kCuda, 3}, {0x7e0000001000, 4096, MemoryKind::kAscend, 0}};
    return descriptor;
}

void expect_equal(const SegmentDescriptor& a, const SegmentDescriptor& b) {
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.incarnation, b.incarnation);
    EXPECT_EQ(a.host, b.host);
    EXPECT_EQ(a.rpc_port, b.rpc_port);
    EXPECT_EQ(a.boot_id, b.boot_id);
    EXPECT_EQ(a.endpoints, b.endpoints);
    ASSERT_EQ(a.buffers.size(), b.buffers.size());
    for (size_t i = 0; i < a.buffers.size(); ++i) {
        EXPECT_EQ(a.buffers[i].address, b.buffers[i].address);
        EXPECT_EQ(a.buffers[i].length, b.buffers[i].length);
        EXPECT_EQ(a.buffers[i].location, b.buffers[i].location);
    }
    EXPECT_EQ(a.device_memory, b.device_memory);
}

void expect_refused(const SegmentDescriptor& descriptor) {
    const auto decoded = decode_descriptor(encode_descriptor(descriptor));
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
}

TEST(EngineMessages, DescribeRequestSurvivesTheWire) {
    const auto decoded = decode_describe_request(encode_describe_request("host:1:npu_0", 77));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->segment_name, "host:1:npu_0");
    EXPECT_EQ(decoded->buffers_max, 77u);
}

TEST(EngineMessages, DescribeRequestRefusesAnEndlessName) {
    EXPECT_TRUE(decode_describe_request(encode_describe_request(std::string(kSegmentNameBytesMax, 'x'), 0)));
    const auto decoded = decode_describe_request(encode_describe_request(std::string(kSegmentNameBytesMax + 1, 'x'), 0));
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
}

TEST(EngineMessages, DescriptorSurvivesTheWire) {
    const auto decoded = decode_descriptor(encode_descriptor(sample()));
    ASSERT_TRUE(decoded) << decoded.error().to_string();
    expect_equal(*decoded, sample());
}

TEST(EngineMessages, DescriptorIsReadFromAnyAlignment) {
    const Body body = encode_descriptor(sample());
    for (size_t shift = 0; shift < 8; ++shift) {
        Body moved(body.size() + 8);
        std::copy(body.begin(), body.end(), moved.begin() + static_cast<ptrdiff_t>(shift));
        const auto decoded = decode_descriptor(std::span(moved).subspan(shift, body.size()));
        ASSERT_TRUE(decoded) << decoded.error().to_string();
        expect_equal(*decoded, sample());
    }
}

TEST(EngineMessages, DescriptorHoldsManyBuffers) {
    SegmentDescriptor descriptor = sample();
    descriptor.buffers.clear();
    for (uint64_t i = 0; i < 100'000; ++i) descriptor.buffers.push_back({.address = (i + 1) << 20, .length = 1 << 20, .location = "cpu:1"});
    const Body body = encode_descriptor(descriptor);
    EXPECT_LT(body.size(), descriptor.buffers.size() * 48);
    const auto decoded = decode_descriptor(body);
    ASSERT_TRUE(decoded) << decoded.error().to_string();
    expect_equal(*decoded, descriptor);
}

TEST(EngineMessages, DescriptorWithoutIdentityIsRefused) {
    SegmentDescriptor nameless = sample(), lifeless = sample(), portless = sample();
    nameless.name.clear();
    lifeless.incarnation = {};
    portless.rpc_port = 0;
    expect_refused(nameless);
    expect_refused(lifeless);
    expect_refused(portless);
}

TEST(EngineMessages, DescriptorBeyondTheLimitsIsRefused) {
    SegmentDescriptor name = sample(), host = sample(), many = sample(), big = sample(), location = sample(), empty = sample(),
                      wraps = sample();
    name.name.assign(kSegmentNameBytesMax + 1, 'x');
    host.host.assign(kHostBytesMax + 1, 'x');
    for (size_t i = 0; i <= kEndpointsMax; ++i) many.endpoints[format_text("t{}", i)] = "x";
    big.endpoints["tcp"].assign(kEndpointBytesMax + 1, 'x');
    location.buffers[0].location.assign(kLocationBytesMax + 1, 'x');
    empty.buffers[0].length = 0;
    wraps.buffers[0].length = UINT64_MAX;
    for (const auto* descriptor : {&name, &host, &many, &big, &location, &empty, &wraps}) expect_refused(*descriptor);
}

TEST(EngineMessages, DeviceMemoryThatMakesNoSenseIsRefused) {
    SegmentDescriptor empty = sample(), wraps = sample(), crossed = sample(), unordered = sample(), endless = sample();
    empty.device_memory[0].length = 0;
    wraps.device_memory[1].length = UINT64_MAX;
    crossed.device_memory[0].length += 1;
    std::swap(unordered.device_memory[0], unordered.device_memory[1]);
    endless.device_memory.clear();
    for (uint64_t i = 0; i <= kDeviceRangesLimit; ++i) endless.device_memory.push_back({i * 8 + 8, 4, MemoryKind::kCuda, 0});
    for (const auto* descriptor : {&empty, &wraps, &crossed, &unordered, &endless}) expect_refused(*descriptor);
}

TEST(EngineMessages, DeviceMemoryOfAKindThatIsNotKnownIsPassedOver) {
    SegmentDescriptor descriptor = sample();
    descriptor.device_memory[0].kind = static_cast<MemoryKind>(77);
    const auto decoded = decode_descriptor(encode_descriptor(descriptor));
    ASSERT_TRUE(decoded) << decoded.error().to_string();
    EXPECT_EQ(decoded->device_memory, std::vector<DeviceRange>{sample().device_memory[1]});
}

TEST(EngineMessages, ADescriptorOfAnEngineThatKnowsNoDeviceMemoryIsUnderstood) {
    flatbuffers::FlatBufferBuilder builder;
    const auto name = builder.CreateString("n");
    builder.Finish(wire::CreateDescribeReply(builder, name, 1, name, 1, name));
    const auto decoded = decode_descriptor(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
    ASSERT_TRUE(decoded) << decoded.error().to_string();
    EXPECT_TRUE(decoded->device_memory.empty());
}

TEST(EngineMessages, DescriptorNamingATransportTwiceIsRefused) {
    flatbuffers::FlatBufferBuilder builder;
    const auto tcp = builder.CreateString("tcp");
    const std::vector<flatbuffers::Offset<wire::Endpoint>> twice = {wire::CreateEndpoint(builder, tcp), wire::CreateEndpoint(builder, tcp)};
    const auto list = builder.CreateVector(twice);
    const auto name = builder.CreateString("n");
    builder.Finish(wire::CreateDescribeReply(builder, name, 1, name, 1, name, list));
    const auto decoded = decode_descriptor(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
}

TEST(EngineMessages, NotificationSurvivesTheWireWithAnyBytes) {
    const Notification sent{.name = "decode-1", .message = std::string("\0\xff done", 7) + std::string(1 << 20, 'm')};
    const auto decoded = decode_notification(encode_notification(sent, Incarnation{77}));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(decoded->notification.name, sent.name);
    EXPECT_EQ(decoded->notification.message, sent.message);
    EXPECT_EQ(decoded->target, Incarnation{77});
    EXPECT_FALSE(decode_notification(encode_notification(sent, {}))->target) << "for whoever is there";
}

TEST(EngineMessages, TruncatedMessagesAreRefusedOrHarmless) {
    const Body body = encode_descriptor(sample());
    for (size_t size = 0; size < body.size(); ++size) {
        // A copy of the exact size, so that the address sanitizer sees a read beyond it.
        const Body cut(body.begin(), body.begin() + static_cast<ptrdiff_t>(size));
        (void)decode_descriptor(cut);
        (void)decode_describe_request(cut);
        (void)decode_notification(cut);
    }
    EXPECT_FALSE(decode_descriptor({}));
    EXPECT_FALSE(decode_describe_request({}));
    EXPECT_FALSE(decode_notification({}));
}

TEST(EngineMessages, DamagedMessagesAreRefusedOrHarmless) {
    std::mt19937 random(1);
    const Body body = encode_descriptor(sample());
    size_t refused = 0;
    for (int round = 0; round < 20'000; ++round) {
        Body damaged = body;
        for (int flips = 0; flips < 3; ++flips) damaged[random() % damaged.size()] = static_cast<std::byte>(random());
        refused += decode_descriptor(damaged) ? 0 : 1;
    }
    EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace mooncake
