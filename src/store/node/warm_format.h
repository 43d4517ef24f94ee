// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "store/protocol/ids.h"

/// The bytes of a node's journal (docs/wire/warm.md). Pure.
namespace mooncake::store::warm {

constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 96;
constexpr size_t kRecordHeadBytes = 16;
constexpr size_t kPayloadBytesMax = 64 << 20;  // an update has about 1 MiB

/// Whose journal it is, and of which memory.
struct Header {
    uint32_t version = kVersion, readable_from = kVersion;
    uint64_t salt = 0;  // binds records to this file
    ClientId client;
    SegmentId segment;
    uint64_t segment_bytes = 0, segment_inode = 0;
    uint64_t boot = 0;  // of the machine, which the bytes do not outlive

    bool operator==(const Header&) const = default;
};
void encode_header(const Header& header, std::span<std::byte, kHeaderBytes> into);
/// kCorrupt; kNotSupported: of a version that this one does not read.
Result<Header> parse_header(std::span<const std::byte> file);

enum class RecordKind : uint32_t { kUpdate = 1, kStanding = 2, kEnd = 3, kMissed = 4 };

/// `position`: where the record begins in its file. What is appended has a multiple of 8 bytes.
void append_record(std::vector<std::byte>& to, uint64_t salt, uint64_t position, RecordKind kind, std::span<const std::byte> payload);
/// Visits the records behind the header, those of unknown kinds, too, until the visitor says false or one is damaged. Returns how many bytes of the file, with the
/// header, were whole.
uint64_t for_each_record(std::span<const std::byte> file, uint64_t salt,
                         const std::function<bool(RecordKind kind, std::span<const std::byte> payload)>& visit);

}  // namespace mooncake::store::warm
