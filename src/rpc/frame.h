// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/time.h"
#include "rpc/rpc.h"

// Frames as they lie on the wire: a header of 32 bytes, the body, and zeros up to the next multiple of 8 bytes
// (docs/wire/rpc.md). Everything here is plain computation.
namespace mooncake::rpc {

enum class FrameKind : uint8_t { kHello = 1, kHelloReply = 2, kRequest = 3, kReply = 4, kError = 5, kCancel = 6, kPart = 7 };

constexpr uint8_t kFlagParts = 1;  // of a request: the answer may come in parts

struct FrameHeader {
    FrameKind kind = FrameKind::kHello;
    uint8_t flags = 0;  // unknown ones are ignored
    uint16_t method = 0;
    uint64_t call = 0;     // chosen by the caller, repeated in the answer
    uint64_t left_us = 0;  // requests: time left; relative, so that clocks need not agree
    uint32_t body_bytes = 0;
};

constexpr size_t kHeaderBytes = 32;
constexpr size_t kFrameAlignment = 8;
constexpr uint64_t kBodyBytesMax = UINT32_MAX - kFrameAlignment;  // what the length field can say
constexpr uint64_t kHelloBytesMax = 4096;
constexpr uint64_t kNoDeadlineUs = UINT64_MAX;

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode_header(const FrameHeader& header) noexcept;
/// kCorrupt: wrong magic, wrong checksum or an unknown kind.
Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> bytes);
/// False as soon as the first bytes of a header (any number of them) cannot be ours.
bool may_be_header(std::span<const std::byte> bytes) noexcept;

/// Zeros after a body of this length.
constexpr size_t padding_after(uint64_t body_bytes) noexcept { return (kFrameAlignment - body_bytes % kFrameAlignment) % kFrameAlignment; }

uint64_t deadline_to_wire(Deadline deadline) noexcept;
Deadline deadline_from_wire(uint64_t left_us) noexcept;

/// A received body. `owned` is not null when the bytes lie in a buffer of their own, which the receiver may move away.
struct FrameBody {
    std::span<const std::byte> bytes;
    Bytes* owned = nullptr;

    Bytes take() { return owned != nullptr ? std::move(*owned) : Bytes(bytes.begin(), bytes.end()); }
};

/// Gets complete frames; an error ends the connection. The body is valid only during the call.
class FrameSink {
public:
    virtual Result<> on_frame(const FrameHeader& header, FrameBody body) = 0;

protected:
    ~FrameSink() = default;
};

/// Cuts a stream of bytes into frames. Memory grows with the bytes that really arrived, not with what a header promises. After
/// an error it must not be used any more. Not thread-safe.
class FrameReader {
public:
    explicit FrameReader(uint64_t body_bytes_max) noexcept : body_bytes_max_(body_bytes_max) {}

    void set_body_bytes_max(uint64_t bytes) noexcept { body_bytes_max_ = bytes; }

    /// Takes the next bytes of the stream, in pieces of any size.
    Result<> feed(std::span<const std::byte> input, FrameSink& sink);

    /// Where the next bytes of a long body may be received directly, to be reported with filled(); empty: use feed().
    std::span<std::byte> space();
    Result<> filled(size_t bytes, FrameSink& sink);

    /// A frame has begun and is not complete.
    bool partial() const noexcept { return state_ != State::kHeader || have_ != 0; }
    /// How far the next byte of the stream is from a multiple of 8. Who receives into a buffer at this distance lets bodies
    /// that arrive in one piece be aligned, so that FlatBuffers in them can be read in place.
    size_t misalignment() const noexcept { return position_ % kFrameAlignment; }

private:
    enum class State : uint8_t { kHeader, kBody, kPadding };

    Result<> take_header(std::span<const std::byte>& input);
    Result<> take_body(std::span<const std::byte>& input, FrameSink& sink);
    Result<> deliver(FrameBody body, FrameSink& sink);
    void grow();

    uint64_t body_bytes_max_;
    uint64_t position_ = 0;
    State state_ = State::kHeader;
    size_t have_ = 0;  // bytes of the header, the body or the padding that arrived
    HeaderBytes header_bytes_{};
    FrameHeader header_;
    Bytes body_;  // of a frame that did not arrive in one piece
};

}  // namespace mooncake::rpc
