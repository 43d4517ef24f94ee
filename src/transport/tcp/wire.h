// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/incarnation.h"
#include "transport/access.h"

// The bytes on the wire, described in docs/wire/tcp.md. Pure functions: nothing here does I/O. All numbers are little endian.
namespace mooncake::tcp {

inline constexpr uint64_t kMagic = 0x31504354434b434d;  // "MCKCTCP1"
inline constexpr uint16_t kVersion = 2;
inline constexpr uint16_t kNumberedSessions = 1;  // the version before: as this one, except for sessions
inline constexpr uint32_t kFeatureChecksum = 1;
inline constexpr uint32_t kFeatureKinds = 2;    // the initiator knows Status::kNotSupported
inline constexpr uint32_t kFeatureDevices = 4;  // and Status::kDeviceFailed
inline constexpr uint32_t kFeaturesKnown = kFeatureChecksum | kFeatureKinds | kFeatureDevices;

// Limits. Who exceeds them speaks another protocol.
inline constexpr size_t kDescriptorsMax = 1000;
inline constexpr uint32_t kPayloadBytesMax = 4 << 20;
inline constexpr size_t kTextBytesMax = 1000;
inline constexpr size_t kEndedMax = 64;

enum class Status : uint8_t {
    kOk = 0,
    kStale = 1,
    kRefused = 2,
    kNotRegistered = 3,
    kCorrupt = 4,
    kNoSpace = 5,
    kNotSupported = 6,
    kDeviceFailed = 7
};
inline constexpr Status kStatusMax = Status::kDeviceFailed;
Code code_of(Status status) noexcept;

/// Names a session. Random, so that who names one knows of it from its initiator, and nobody ends those of others.
struct SessionId {
    uint64_t high = 0;
    uint64_t low = 0;

    static SessionId random() noexcept { return {.high = random_u64(), .low = random_u64()}; }
    friend bool operator==(const SessionId&, const SessionId&) = default;
    struct Hash {
        size_t operator()(const SessionId& id) const noexcept { return static_cast<size_t>(id.high ^ id.low); }
    };
};

/// The first bytes of a connection, from who opened it.
struct Hello {
    uint16_t version = kVersion;
    uint16_t lane = 0;
    uint32_t features = 0;
    Incarnation initiator;
    Incarnation target;
    uint64_t number = 0;           // of the session, in version kNumberedSessions
    SessionId session;             // since version 2, as is
    std::vector<SessionId> ended;  // sessions of which no byte may be applied any more once this is welcome; at most kEndedMax

    friend bool operator==(const Hello&, const Hello&) = default;
};
inline constexpr size_t kHelloBytes = 40;  // of version 1, and enough to be refused
std::vector<std::byte> encode(const Hello& hello);
/// How long the hello is that begins with these bytes; 0 while that cannot be told.
size_t hello_bytes(std::span<const std::byte> in) noexcept;
/// From exactly hello_bytes(). kCorrupt when it is no hello at all. A hello of another version decodes: only the meaning of the rest is
/// unknown then.
Result<Hello> decode_hello(std::span<const std::byte> in);
/// False when these first bytes of a connection, however few, cannot become a hello.
bool may_be_hello(std::span<const std::byte> in) noexcept;

/// The answer; `text` says why not.
struct HelloReply {
    uint16_t version = kVersion;
    Status status = Status::kOk;
    uint32_t features = 0;
    std::string text;

    friend bool operator==(const HelloReply&, const HelloReply&) = default;
};
inline constexpr size_t kHelloReplyBytes = 20;  // then the text
std::vector<std::byte> encode(const HelloReply& reply);
/// Everything but the text; `text_bytes` says how much of it follows.
Result<HelloReply> decode_hello_reply(std::span<const std::byte, kHelloReplyBytes> in, size_t& text_bytes);

enum class Kind : uint8_t {
    kWrite = 1,    // descriptors, then the payload to put there
    kRead = 2,     // descriptors
    kWritten = 3,  // every byte of a kWrite is in place
    kData = 4,     // the payload a kRead asked for
    kError = 5,    // a kWrite or kRead was not done; the payload is a text
};

/// What every message starts with; `descriptors` descriptors follow, then (not for kRead) `payload_bytes` of payload. Where
/// kFeatureChecksum was agreed, head and descriptors carry a checksum of themselves, and the payload of kWrite and kData is
/// followed by its own: a trailer, so that no byte has to wait until the last one was hashed.
struct Header {
    Kind kind = Kind::kWritten;
    Status status = Status::kOk;
    uint16_t descriptors = 0;
    uint32_t payload_bytes = 0;  // of a kRead: what it asks for
    uint64_t id = 0;             // chosen by the initiator, repeated in the answer
    bool part = false;           // of something larger: the first of two descriptors is the whole, the second what is moved here

    friend bool operator==(const Header&, const Header&) = default;
};
inline constexpr size_t kHeaderBytes = 24;
inline constexpr size_t kDescriptorBytes = 16;
inline constexpr size_t kTrailerBytes = 8;
inline constexpr size_t kHeadBytesMax = kHeaderBytes + kDescriptorsMax * kDescriptorBytes;

inline size_t head_bytes(const Header& header) noexcept { return kHeaderBytes + header.descriptors * kDescriptorBytes; }
/// Appends header and descriptors. With `checked` they carry a checksum of themselves.
void append_head(const Header& header, std::span<const AddressRange> descriptors, bool checked, std::vector<std::byte>& out);

/// kCorrupt when a field breaks the rules of its kind.
Result<Header> decode_header(std::span<const std::byte, kHeaderBytes> in);
/// `head` is header and descriptors. Checks that none is empty and that together they are as long as the header says; where they
/// lie is for the AccessTable to judge.
Result<> decode_descriptors(const Header& header, std::span<const std::byte> head, bool checked, std::vector<AddressRange>& out);
/// True when header and descriptors carry the checksum of themselves.
bool head_intact(std::span<const std::byte> head) noexcept;

}  // namespace mooncake::tcp
