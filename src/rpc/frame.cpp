// SPDX-License-Identifier: Apache-2.0
#include "rpc/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace mooncake::rpc {

namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian, and so are the machines we run on");

constexpr uint32_t kMagic = 0x4350524d;  // "MRPC"
constexpr size_t kChecksumAt = 28;
constexpr size_t kBodyStepBytes = 64 << 10;

template <typename T>
void put(HeaderBytes& bytes, size_t at, T value) noexcept {
    std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <typename T>
T get(std::span<const std::byte, kHeaderBytes> bytes, size_t at) noexcept {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

uint32_t checksum(const std::byte* header) noexcept { return static_cast<uint32_t>(XXH3_64bits(header, kChecksumAt)); }

}  // namespace

HeaderBytes encode_header(const FrameHeader& header) noexcept {
    HeaderBytes bytes;
    put(bytes, 0, kMagic);
    put(bytes, 4, header.kind);
    put(bytes, 5, header.flags);
    put(bytes, 6, header.method);
    put(bytes, 8, header.call);
    put(bytes, 16, header.left_us);
    put(bytes, 24, header.body_bytes);
    put(bytes, kChecksumAt, checksum(bytes.data()));
    return bytes;
}

Result<FrameHeader> decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
    if (get<uint32_t>(bytes, 0) != kMagic) return fail(Code::kCorrupt, "not an rpc frame");
    if (get<uint32_t>(bytes, kChecksumAt) != checksum(bytes.data())) return fail(Code::kCorrupt, "a frame header with a wrong checksum");
    const FrameHeader header{.kind = get<FrameKind>(bytes, 4),
                             .flags = get<uint8_t>(bytes, 5),
                             .method = get<uint16_t>(bytes, 6),
                             .call = get<uint64_t>(bytes, 8),
                             .left_us = get<uint64_t>(bytes, 16),
                             .body_bytes = get<uint32_t>(bytes, 24)};
    if (header.kind < FrameKind::kHello || header.kind > FrameKind::kPart)
        return fail(Code::kCorrupt, "a frame of unknown kind {}", static_cast<int>(header.kind));
    return header;
}

bool may_be_header(std::span<const std::byte> bytes) noexcept {
    return std::memcmp(bytes.data(), &kMagic, std::min(bytes.size(), sizeof kMagic)) == 0;
}

uint64_t deadline_to_wire(Deadline deadline) noexcept {
    if (deadline.is_never()) return kNoDeadlineUs;
    return static_cast<uint64_t>(std::chrono::ceil<std::chrono::microseconds>(deadline.left()).count());
}

Deadline deadline_from_wire(uint64_t left_us) noexcept {
    constexpr uint64_t kLongUs = 1'000'000'000'000'000;  // 31 years; the clock cannot count much further
    if (left_us >= kLongUs) return Deadline::never();
    return Deadline::after(std::chrono::microseconds(left_us));
}

Result<> FrameReader::feed(std::span<const std::byte> input, FrameSink& sink) {
    position_ += input.size();
    while (!input.empty()) {
        if (state_ == State::kPadding) {
            const size_t skipped = std::min(padding_after(header_.body_bytes) - have_, input.size());
            have_ += skipped;
            input = input.subspan(skipped);
            if (have_ < padding_after(header_.body_bytes)) return {};
            state_ = State::kHeader;
            have_ = 0;
            continue;
        }
        if (state_ == State::kHeader) {
            MC_RETURN_IF_ERROR(take_header(input));
            if (state_ == State::kHeader) return {};
        }
        MC_RETURN_IF_ERROR(take_body(input, sink));
    }
    return {};
}

Result<> FrameReader::take_header(std::span<const std::byte>& input) {
    std::span<const std::byte> whole = input;
    if (have_ != 0 || input.size() < kHeaderBytes) {
        const size_t taken = std::min(kHeaderBytes - have_, input.size());
        std::memcpy(header_bytes_.data() + have_, input.data(), taken);
        have_ += taken;
        input = input.subspan(taken);
        whole = std::span(header_bytes_).first(have_);
        // A stranger may wait for our word after a few bytes of its own: tell it early.
        if (!may_be_header(whole)) return fail(Code::kCorrupt, "not an rpc frame");
        if (have_ < kHeaderBytes) return {};
    } else {
        input = input.subspan(kHeaderBytes);
    }
    MC_ASSIGN_OR_RETURN(header_, decode_header(whole.first<kHeaderBytes>()));
    if (header_.body_bytes > body_bytes_max_)
        return fail(Code::kCorrupt, "a message of {} bytes where at most {} are taken", header_.body_bytes, body_bytes_max_);
    state_ = State::kBody;
    have_ = 0;
    return {};
}

Result<> FrameReader::take_body(std::span<const std::byte>& input, FrameSink& sink) {
    const size_t size = header_.body_bytes;
    if (have_ == 0 && input.size() >= size) {
        const auto bytes = input.first(size);
        input = input.subspan(size);
        return deliver({.bytes = bytes}, sink);
    }
    while (have_ < size && !input.empty()) {
        if (have_ == body_.size()) grow();
        const size_t taken = std::min(body_.size() - have_, input.size());
        std::memcpy(body_.data() + have_, input.data(), taken);
        have_ += taken;
        input = input.subspan(taken);
    }
    if (have_ < size) return {};
    return deliver({.bytes = body_, .owned = &body_}, sink);
}

void FrameReader::grow() { body_.resize(std::min<size_t>(header_.body_bytes, std::max(2 * have_, kBodyStepBytes))); }

Result<> FrameReader::deliver(FrameBody body, FrameSink& sink) {
    state_ = padding_after(header_.body_bytes) != 0 ? State::kPadding : State::kHeader;
    have_ = 0;
    auto result = sink.on_frame(header_, body);
    body_ = Bytes();
    return result;
}

std::span<std::byte> FrameReader::space() {
    if (state_ != State::kBody || header_.body_bytes - have_ < kBodyStepBytes) return {};
    if (have_ == body_.size()) grow();
    return std::span(body_).subspan(have_);
}

Result<> FrameReader::filled(size_t bytes, FrameSink& sink) {
    position_ += bytes;
    have_ += bytes;
    if (have_ < header_.body_bytes) return {};
    return deliver({.bytes = body_, .owned = &body_}, sink);
}

}  // namespace mooncake::rpc
