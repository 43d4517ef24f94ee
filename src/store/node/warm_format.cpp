// SPDX-License-Identifier: Apache-2.0
#include "store/node/warm_format.h"

#include <bit>
#include <cstring>

#include "store/protocol/stored_form.h"

namespace mooncake::store::warm {

namespace {

constexpr uint64_t kMagic = 0x4c4e4a4d5241574d;  // "MWARMJNL"

static_assert(std::endian::native == std::endian::little, "structures are stored as they lie in memory");

struct FileHeader {
    uint64_t magic;
    uint64_t hash;  // of what follows
    uint32_t version, readable_from;
    uint64_t salt;
    uint64_t client_high, client_low, segment_high, segment_low;
    uint64_t segment_bytes, segment_inode, boot;
    uint64_t reserved;
};
static_assert(sizeof(FileHeader) == kHeaderBytes);

struct RecordHead {
    uint32_t bytes;  // of the payload
    uint32_t kind;
    uint64_t hash;  // of the payload, of these two and of the place
};
static_assert(sizeof(RecordHead) == kRecordHeadBytes);

uint64_t mix(uint64_t a, uint64_t b) noexcept {
    uint64_t mixed = (a ^ b) * 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 32)) * 0xff51afd7ed558ccd;
    return mixed ^ (mixed >> 29);
}

uint64_t hash_record(uint64_t salt, uint64_t position, const RecordHead& head, std::span<const std::byte> payload) {
    return hash_bytes(payload) ^ mix(mix(salt, position), uint64_t{head.kind} << 32 | head.bytes);
}

constexpr uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

void encode_header(const Header& header, std::span<std::byte, kHeaderBytes> into) {
    FileHeader file{.magic = kMagic,
                    .hash = 0,
                    .version = header.version,
                    .readable_from = header.readable_from,
                    .salt = header.salt,
                    .client_high = header.client.high,
                    .client_low = header.client.low,
                    .segment_high = header.segment.high,
                    .segment_low = header.segment.low,
                    .segment_bytes = header.segment_bytes,
                    .segment_inode = header.segment_inode,
                    .boot = header.boot,
                    .reserved = 0};
    std::memset(into.data(), 0, into.size());
    std::memcpy(into.data(), &file, sizeof file);
    file.hash = hash_bytes(into.subspan(offsetof(FileHeader, version)));
    std::memcpy(into.data(), &file, sizeof file);
}

Result<Header> parse_header(std::span<const std::byte> file) {
    if (file.size() < kHeaderBytes) return fail(Code::kCorrupt, "{} bytes are no journal", file.size());
    FileHeader found{};
    std::memcpy(&found, file.data(), sizeof found);
    if (found.magic != kMagic) return fail(Code::kCorrupt, "it is not the journal of a node");
    if (hash_bytes(file.first(kHeaderBytes).subspan(offsetof(FileHeader, version))) != found.hash)
        return fail(Code::kCorrupt, "the beginning of the journal is damaged");
    if (found.readable_from > kVersion || found.version + 1 < kVersion)
        return fail(Code::kNotSupported, "the journal is one of version {}, this is {}", found.version, kVersion);
    return Header{.version = found.version,
                  .readable_from = found.readable_from,
                  .salt = found.salt,
                  .client = {found.client_high, found.client_low},
                  .segment = {found.segment_high, found.segment_low},
                  .segment_bytes = found.segment_bytes,
                  .segment_inode = found.segment_inode,
                  .boot = found.boot};
}

void append_record(std::vector<std::byte>& to, uint64_t salt, uint64_t position, RecordKind kind, std::span<const std::byte> payload) {
    RecordHead head{.bytes = static_cast<uint32_t>(payload.size()), .kind = static_cast<uint32_t>(kind), .hash = 0};
    head.hash = hash_record(salt, position, head, payload);
    const size_t at = to.size();
    to.resize(at + sizeof head + padded(payload.size()));
    std::memcpy(to.data() + at, &head, sizeof head);
    if (!payload.empty()) std::memcpy(to.data() + at + sizeof head, payload.data(), payload.size());
}

uint64_t for_each_record(std::span<const std::byte> file, uint64_t salt,
                         const std::function<bool(RecordKind kind, std::span<const std::byte> payload)>& visit) {
    uint64_t at = kHeaderBytes;
    while (at < file.size() && file.size() - at >= kRecordHeadBytes) {
        RecordHead head{};
        std::memcpy(&head, file.data() + at, sizeof head);
        if (head.bytes > kPayloadBytesMax || padded(head.bytes) > file.size() - at - kRecordHeadBytes) break;
        const auto payload = file.subspan(at + kRecordHeadBytes, head.bytes);
        if (hash_record(salt, at, head, payload) != head.hash || !visit(static_cast<RecordKind>(head.kind), payload)) break;
        at += kRecordHeadBytes + padded(head.bytes);
    }
    return at;
}

}  // namespace mooncake::store::warm
