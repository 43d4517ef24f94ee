// SPDX-License-Identifier: Apache-2.0
// Bytes from the network: the stream of frames, cut anywhere, and the bodies of hello and error frames.
#include <cstdint>
#include <span>

#include "base/error.h"
#include "rpc/frame.h"
#include "rpc/hello.h"

namespace {

using namespace mooncake;
using namespace mooncake::rpc;

constexpr uint64_t kLimit = 1 << 20;

/// Reads every frame as both ends would.
class Sink final : public FrameSink {
public:
    Result<> on_frame(const FrameHeader& header, FrameBody body) override {
        MC_CHECK(header.body_bytes == body.bytes.size() && body.bytes.size() <= kLimit);
        (void)decode_hello(body.bytes);
        (void)decode_hello_reply(body.bytes);
        (void)decode_error(body.bytes);
        ++frames;
        bytes += body.take().size();
        return {};
    }
    uint64_t frames = 0, bytes = 0;
};

struct Outcome {
    bool good = true;
    uint64_t frames = 0, bytes = 0;
    friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome read(std::span<const std::byte> input, size_t piece) {
    Sink sink;
    FrameReader reader(kLimit);
    while (!input.empty()) {
        const auto space = reader.space();
        const size_t size = std::min(space.empty() ? piece : std::min(piece, space.size()), input.size());
        if (!space.empty()) std::copy_n(input.data(), size, space.data());
        const auto result = space.empty() ? reader.feed(input.first(size), sink) : reader.filled(size, sink);
        if (!result) return {false, sink.frames, sink.bytes};
        input = input.subspan(size);
    }
    return {true, sink.frames, sink.bytes};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    (void)decode_hello(bytes);
    (void)decode_hello_reply(bytes);
    (void)decode_error(bytes);
    // However the stream is cut, the same frames come out.
    const Outcome whole = read(bytes, size + 1);
    MC_CHECK(read(bytes, 1) == whole);
    MC_CHECK(read(bytes, 13) == whole);
    // A header only passes with its checksum, which the fuzzer cannot guess: give it one.
    if (size >= kHeaderBytes) {
        const FrameHeader header{.kind = static_cast<FrameKind>(1 + data[0] % 7),
                                 .method = data[1],
                                 .call = data[2],
                                 .left_us = data[3],
                                 .body_bytes = static_cast<uint32_t>(data[4] | data[5] << 8)};
        const HeaderBytes good = encode_header(header);
        Bytes stream(good.begin(), good.end());
        stream.insert(stream.end(), bytes.begin() + 6, bytes.end());
        const Outcome framed = read(stream, stream.size());
        MC_CHECK(read(stream, 1) == framed);
        MC_CHECK(read(stream, 40) == framed);
    }
    return 0;
}
