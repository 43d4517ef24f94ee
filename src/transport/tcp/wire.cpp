// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/wire.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace mooncake::tcp {

namespace {

static_assert(std::endian::native == std::endian::little, "descriptors and fields are copied as they lie in memory");
static_assert(sizeof(AddressRange) == kDescriptorBytes);
static_assert(sizeof(SessionId) == 16);

constexpr size_t kEndedCountAt = 48;
constexpr size_t kEndedAt = 56;

constexpr size_t kHeadCheckAt = 16;
constexpr size_t kFlagsAt = 20;
constexpr uint32_t kFlagPart = 1;

template <typename T>
void put(std::byte* at, T value) noexcept {
    std::memcpy(at, &value, sizeof value);
}

template <typename T>
T get(const std::byte* at) noexcept {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

uint32_t check_of_head(std::span<const std::byte> head) noexcept {
    // The field of the checksum itself counts as zero. Hashing the rest first avoids a copy of the descriptors.
    std::byte header[kHeaderBytes];
    std::memcpy(header, head.data(), kHeaderBytes);
    put<uint32_t>(header + kHeadCheckAt, 0);
    const uint64_t rest = XXH3_64bits(head.data() + kHeaderBytes, head.size() - kHeaderBytes);
    return static_cast<uint32_t>(XXH3_64bits_withSeed(header, kHeaderBytes, rest));
}

bool fields_allowed(const Header& header) noexcept {
    switch (header.kind) {
        case Kind::kWrite:
        case Kind::kRead:
            return header.status == Status::kOk && header.descriptors > 0 && header.descriptors <= kDescriptorsMax &&
                   (!header.part || header.descriptors == 2) && header.payload_bytes > 0 && header.payload_bytes <= kPayloadBytesMax;
        case Kind::kWritten: return !header.part && header.status == Status::kOk && header.descriptors == 0 && header.payload_bytes == 0;
        case Kind::kData:
            return !header.part && header.status == Status::kOk && header.descriptors == 0 && header.payload_bytes > 0 &&
                   header.payload_bytes <= kPayloadBytesMax;
        case Kind::kError:
            return !header.part && header.status != Status::kOk && header.status <= kStatusMax && header.descriptors == 0 &&
                   header.payload_bytes <= kTextBytesMax;
    }
    return false;
}

}  // namespace

Code code_of(Status status) noexcept {
    switch (status) {
        case Status::kOk: return Code::kOk;
        case Status::kStale: return Code::kStale;
        case Status::kRefused: return Code::kRefused;
        case Status::kNotRegistered: return Code::kNotRegistered;
        case Status::kCorrupt: return Code::kCorrupt;
        case Status::kNoSpace: return Code::kUnavailable;  // full now, perhaps not later
        case Status::kNotSupported: return Code::kNotSupported;
        case Status::kDeviceFailed: return Code::kInvalidArgument;
    }
    return Code::kCorrupt;
}

std::vector<std::byte> encode(const Hello& hello) {
    const bool named = hello.version == kVersion;
    const std::span<const SessionId> ended = std::span(hello.ended).first(std::min(hello.ended.size(), kEndedMax));
    std::vector<std::byte> out(named ? kEndedAt + ended.size_bytes() : kHelloBytes);
    put(out.data(), kMagic);
    put(out.data() + 8, hello.version);
    put(out.data() + 10, hello.lane);
    put(out.data() + 12, hello.features);
    put(out.data() + 16, hello.initiator.value);
    put(out.data() + 24, hello.target.value);
    if (!named) {
        put(out.data() + 32, hello.number);
        return out;
    }
    put(out.data() + 32, hello.session);
    put(out.data() + kEndedCountAt, static_cast<uint16_t>(ended.size()));
    if (!ended.empty()) std::memcpy(out.data() + kEndedAt, ended.data(), ended.size_bytes());
    return out;
}

size_t hello_bytes(std::span<const std::byte> in) noexcept {
    if (in.size() < kHelloBytes) return 0;
    if (get<uint16_t>(in.data() + 8) != kVersion) return kHelloBytes;
    if (in.size() < kEndedAt) return 0;
    // One that names too many is no hello, and need not be waited for.
    return kEndedAt + std::min<size_t>(get<uint16_t>(in.data() + kEndedCountAt), kEndedMax) * sizeof(SessionId);
}

Result<Hello> decode_hello(std::span<const std::byte> in) {
    if (in.size() < kHelloBytes || in.size() != hello_bytes(in) || get<uint64_t>(in.data()) != kMagic)
        return fail(Code::kCorrupt, "not a hello");
    Hello hello{.version = get<uint16_t>(in.data() + 8),
                .lane = get<uint16_t>(in.data() + 10),
                .features = get<uint32_t>(in.data() + 12),
                .initiator = {get<uint64_t>(in.data() + 16)},
                .target = {get<uint64_t>(in.data() + 24)}};
    if (hello.version != kVersion) {
        hello.number = get<uint64_t>(in.data() + 32);
        return hello;
    }
    hello.session = get<SessionId>(in.data() + 32);
    const size_t ended = get<uint16_t>(in.data() + kEndedCountAt);
    if (ended > kEndedMax) return fail(Code::kCorrupt, "a hello that ends {} sessions", ended);
    hello.ended.resize(ended);
    if (ended > 0) std::memcpy(hello.ended.data(), in.data() + kEndedAt, ended * sizeof(SessionId));
    return hello;
}

bool may_be_hello(std::span<const std::byte> in) noexcept {
    return in.empty() || std::memcmp(in.data(), &kMagic, std::min(in.size(), sizeof kMagic)) == 0;
}

std::vector<std::byte> encode(const HelloReply& reply) {
    const size_t text_bytes = std::min(reply.text.size(), kTextBytesMax);
    std::vector<std::byte> out(kHelloReplyBytes + text_bytes);
    put(out.data(), kMagic);
    put(out.data() + 8, reply.version);
    put(out.data() + 10, static_cast<uint16_t>(reply.status));
    put(out.data() + 12, reply.features);
    put(out.data() + 16, static_cast<uint32_t>(text_bytes));
    std::memcpy(out.data() + kHelloReplyBytes, reply.text.data(), text_bytes);
    return out;
}

Result<HelloReply> decode_hello_reply(std::span<const std::byte, kHelloReplyBytes> in, size_t& text_bytes) {
    if (get<uint64_t>(in.data()) != kMagic) return fail(Code::kCorrupt, "the answer is not from a mooncake tcp transport");
    const auto status = get<uint16_t>(in.data() + 10);
    text_bytes = get<uint32_t>(in.data() + 16);
    if (status > static_cast<uint16_t>(kStatusMax) || text_bytes > kTextBytesMax) return fail(Code::kCorrupt, "the answer makes no sense");
    return HelloReply{.version = get<uint16_t>(in.data() + 8),
                      .status = static_cast<Status>(status),
                      .features = get<uint32_t>(in.data() + 12),
                      .text = {}};
}

void append_head(const Header& header, std::span<const AddressRange> descriptors, bool checked, std::vector<std::byte>& out) {
    const size_t start = out.size();
    out.resize(start + kHeaderBytes + descriptors.size_bytes());
    std::byte* const at = out.data() + start;
    put(at, static_cast<uint8_t>(header.kind));
    put(at + 1, static_cast<uint8_t>(header.status));
    put(at + 2, static_cast<uint16_t>(descriptors.size()));
    put(at + 4, header.payload_bytes);
    put(at + 8, header.id);
    put<uint32_t>(at + kHeadCheckAt, 0);
    put(at + kFlagsAt, header.part ? kFlagPart : 0);
    if (!descriptors.empty()) std::memcpy(at + kHeaderBytes, descriptors.data(), descriptors.size_bytes());
    if (checked) put(at + kHeadCheckAt, check_of_head({at, kHeaderBytes + descriptors.size_bytes()}));
}

Result<Header> decode_header(std::span<const std::byte, kHeaderBytes> in) {
    const Header header{.kind = static_cast<Kind>(get<uint8_t>(in.data())),
                        .status = static_cast<Status>(get<uint8_t>(in.data() + 1)),
                        .descriptors = get<uint16_t>(in.data() + 2),
                        .payload_bytes = get<uint32_t>(in.data() + 4),
                        .id = get<uint64_t>(in.data() + 8),
                        .part = get<uint32_t>(in.data() + kFlagsAt) == kFlagPart};
    if (!fields_allowed(header) || get<uint32_t>(in.data() + kFlagsAt) > kFlagPart)
        return fail(Code::kCorrupt, "header of kind {} with {} descriptors and {} bytes makes no sense", static_cast<int>(header.kind),
                    header.descriptors, header.payload_bytes);
    return header;
}

bool head_intact(std::span<const std::byte> head) noexcept { return get<uint32_t>(head.data() + kHeadCheckAt) == check_of_head(head); }

Result<> decode_descriptors(const Header& header, std::span<const std::byte> head, bool checked, std::vector<AddressRange>& out) {
    if (head.size() != head_bytes(header)) return fail(Code::kCorrupt, "descriptors are cut off");
    if (checked && !head_intact(head)) return fail(Code::kCorrupt, "checksum of a message head is wrong");
    out.resize(header.descriptors);
    std::memcpy(out.data(), head.data() + kHeaderBytes, head.size() - kHeaderBytes);
    uint64_t left = header.payload_bytes;
    for (const AddressRange& range : std::span(out).subspan(header.part ? 1 : 0)) {
        if (range.length == 0 || range.length > left)
            return fail(Code::kCorrupt, "descriptor of {} bytes at {:#x} makes no sense", range.length, range.address);
        left -= range.length;
    }
    if (left != 0) return fail(Code::kCorrupt, "descriptors are {} bytes shorter than the header says", left);
    return {};
}

}  // namespace mooncake::tcp
