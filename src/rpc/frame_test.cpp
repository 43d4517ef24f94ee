// SPDX-License-Identifier: Apache-2.0
#include "rpc/frame.h"

#include <gtest/gtest.h>

#include <random>

#include "rpc/testing/raw_peer.h"

namespace mooncake::rpc {
namespace {

using testing::bytes_of;
using testing::frame_bytes;

/// Keeps everything it gets.
class Collector final : public FrameSink {
public:
    Result<> on_frame(const FrameHeader& header, FrameBody body) override {
        aligned &= reinterpret_cast<uintptr_t>(body.bytes.data()) % kFrameAlignment == 0 || body.bytes.empty();
        headers.push_back(header);
        bodies.push_back(body.take());
        return {};
    }
    std::vector<FrameHeader> headers;
    std::vector<Bytes> bodies;
    bool aligned = true;
};

Bytes random_bytes(std::mt19937& random, size_t size) {
    Bytes bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

/// Frames of many sizes, and what should come out.
struct Stream {
    Bytes bytes;
    std::vector<Bytes> bodies;
};

Stream make_stream(std::initializer_list<size_t> sizes) {
    std::mt19937 random(3);
    Stream stream;
    for (const size_t size : sizes) {
        stream.bodies.push_back(random_bytes(random, size));
        const Bytes frame = frame_bytes({.kind = FrameKind::kRequest, .method = 7, .call = stream.bodies.size()}, stream.bodies.back());
        stream.bytes.insert(stream.bytes.end(), frame.begin(), frame.end());
    }
    return stream;
}

TEST(FrameHeader, SurvivesTheWire) {
    const FrameHeader sent{
        .kind = FrameKind::kCancel, .flags = 3, .method = 65535, .call = UINT64_MAX, .left_us = 1ull << 40, .body_bytes = 12345};
    const HeaderBytes bytes = encode_header(sent);
    const auto got = decode_header(bytes);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->kind, sent.kind);
    EXPECT_EQ(got->flags, sent.flags);
    EXPECT_EQ(got->method, sent.method);
    EXPECT_EQ(got->call, sent.call);
    EXPECT_EQ(got->left_us, sent.left_us);
    EXPECT_EQ(got->body_bytes, sent.body_bytes);
}

TEST(FrameHeader, LooksAsDocumented) {
    const HeaderBytes bytes = encode_header({.kind = FrameKind::kRequest,
                                             .flags = 1,
                                             .method = 0x0302,
                                             .call = 0x0807060504030201,
                                             .left_us = 0x1817161514131211,
                                             .body_bytes = 0x24232221});
    const unsigned char expected[28] = {'M', 'R', 'P',  'C',  3,    1,    2,    3,    1,    2,    3,    4,    5,    6,
                                        7,   8,   0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24};
    EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(FrameHeader, EveryFlippedBitIsNoticed) {
    const HeaderBytes good = encode_header({.kind = FrameKind::kReply, .call = 5, .body_bytes = 8});
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
        HeaderBytes bad = good;
        bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        const auto decoded = decode_header(bad);
        ASSERT_FALSE(decoded) << "bit " << bit;
        EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
    }
}

TEST(FrameHeader, UnknownKindsAreRefused) {
    for (const int kind : {0, 8, 255}) EXPECT_FALSE(decode_header(encode_header({.kind = static_cast<FrameKind>(kind)}))) << kind;
}

TEST(FrameDeadline, TravelsAsTheTimeLeft) {
    EXPECT_EQ(deadline_to_wire(Deadline::never()), kNoDeadlineUs);
    EXPECT_TRUE(deadline_from_wire(kNoDeadlineUs).is_never());
    EXPECT_TRUE(deadline_from_wire(kNoDeadlineUs - 1).is_never());
    EXPECT_EQ(deadline_to_wire(Deadline(Clock::now() - 1s)), 0u);
    EXPECT_TRUE(deadline_from_wire(0).passed());
    const uint64_t wire = deadline_to_wire(Deadline::after(100s));
    EXPECT_GT(wire, 90'000'000u);
    EXPECT_LE(wire, 100'000'000u);
    EXPECT_GT(deadline_from_wire(wire).left(), 80s);
}

TEST(FrameReader, CutsAStreamWhateverThePieces) {
    const Stream stream = make_stream({0, 1, 7, 8, 9, 0, 100, 33});
    for (size_t piece = 1; piece <= stream.bytes.size(); ++piece) {
        Collector got;
        FrameReader reader(1000);
        for (size_t at = 0; at < stream.bytes.size(); at += piece) {
            const size_t size = std::min(piece, stream.bytes.size() - at);
            ASSERT_TRUE(reader.feed(std::span(stream.bytes).subspan(at, size), got));
        }
        EXPECT_EQ(got.bodies, stream.bodies) << "pieces of " << piece;
        EXPECT_FALSE(reader.partial());
    }
}

TEST(FrameReader, CutsAStreamSplitAtAnyTwoPlaces) {
    const Stream stream = make_stream({5, 16, 3});
    for (size_t first = 0; first <= stream.bytes.size(); ++first) {
        for (size_t second = first; second <= stream.bytes.size(); ++second) {
            Collector got;
            FrameReader reader(1000);
            const std::span<const std::byte> all(stream.bytes);
            ASSERT_TRUE(reader.feed(all.first(first), got));
            ASSERT_TRUE(reader.feed(all.subspan(first, second - first), got));
            ASSERT_TRUE(reader.feed(all.subspan(second), got));
            ASSERT_EQ(got.bodies, stream.bodies) << first << " " << second;
        }
    }
}

TEST(FrameReader, BodiesAreAlignedWhenReceivedAtTheRightDistance) {
    const Stream stream = make_stream({13, 27, 64, 5, 40, 1});
    alignas(8) std::byte scratch[4096];
    for (size_t piece = 1; piece < 200; ++piece) {
        Collector got;
        FrameReader reader(1000);
        for (size_t at = 0; at < stream.bytes.size(); at += piece) {
            const size_t size = std::min(piece, stream.bytes.size() - at);
            std::byte* const place = scratch + reader.misalignment();
            std::memcpy(place, stream.bytes.data() + at, size);
            ASSERT_TRUE(reader.feed({place, size}, got));
        }
        EXPECT_EQ(got.bodies, stream.bodies);
        EXPECT_TRUE(got.aligned) << "pieces of " << piece;
    }
}

TEST(FrameReader, LongBodiesAreReceivedInPlace) {
    const Stream stream = make_stream({3, 1'000'003, 12, 300'000, 0});
    Collector got;
    FrameReader reader(2'000'000);
    size_t at = 0, direct = 0;
    while (at < stream.bytes.size()) {
        const auto space = reader.space();
        const size_t size = std::min(space.empty() ? size_t{1000} : space.size(), stream.bytes.size() - at);
        if (space.empty()) {
            ASSERT_TRUE(reader.feed(std::span(stream.bytes).subspan(at, size), got));
        } else {
            std::memcpy(space.data(), stream.bytes.data() + at, size);
            ASSERT_TRUE(reader.filled(size, got));
            direct += size;
        }
        at += size;
    }
    EXPECT_EQ(got.bodies, stream.bodies);
    EXPECT_GT(direct, 1'000'000u);
}

TEST(FrameReader, PromisedBytesCostNoMemory) {
    Collector got;
    FrameReader reader(kBodyBytesMax);
    ASSERT_TRUE(reader.feed(encode_header({.kind = FrameKind::kRequest, .body_bytes = 2'000'000'000}), got));
    EXPECT_LE(reader.space().size(), 64u << 10);
    ASSERT_TRUE(reader.filled(1000, got));
    EXPECT_LE(reader.space().size(), 64u << 10);
    EXPECT_TRUE(reader.partial());
}

TEST(FrameReader, TooLongABodyIsRefusedAtItsHeader) {
    Collector got;
    FrameReader fits(100), refuses(99);
    const HeaderBytes header = encode_header({.kind = FrameKind::kRequest, .body_bytes = 100});
    EXPECT_TRUE(fits.feed(header, got));
    const auto refused = refuses.feed(header, got);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kCorrupt);
}

TEST(FrameReader, StrangersAreRecognisedByTheirFirstBytes) {
    for (const std::string_view text : {"G", "GET / HTTP/1.1\r\n", "\x16\x03\x01\x02", "SSH-2.0", "MRPX", "\0"}) {
        Collector got;
        FrameReader reader(100);
        EXPECT_FALSE(reader.feed(bytes_of(text.empty() ? std::string_view("\0", 1) : text), got)) << text;
    }
    Collector got;
    FrameReader reader(100);
    EXPECT_TRUE(reader.feed(bytes_of("MRP"), got));
    EXPECT_TRUE(reader.partial());
}

TEST(FrameReader, StopsWhenTheSinkFails) {
    class Refuser final : public FrameSink {
    public:
        Result<> on_frame(const FrameHeader&, FrameBody) override {
            ++frames;
            return fail(Code::kRefused, "no");
        }
        int frames = 0;
    };
    const Stream stream = make_stream({4, 4, 4});
    Refuser refuser;
    FrameReader reader(100);
    const auto result = reader.feed(stream.bytes, refuser);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kRefused);
    EXPECT_EQ(refuser.frames, 1);
}

TEST(FrameReader, DamagedStreamsNeverComeOutWrong) {
    const Stream stream = make_stream({20, 0, 64});
    std::mt19937 random(9);
    for (int round = 0; round < 5000; ++round) {
        Bytes bytes = stream.bytes;
        const size_t at = random() % kHeaderBytes;  // in the first header
        bytes[at] ^= static_cast<std::byte>(1 + random() % 255);
        Collector got;
        FrameReader reader(100);
        EXPECT_FALSE(reader.feed(bytes, got));
        EXPECT_TRUE(got.bodies.empty());
    }
}

}  // namespace
}  // namespace mooncake::rpc
