// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/stored_form.h"
#include "store/tier/disk_io.h"
#include "store/tier/storage_tier.h"

/// What lies in the files of a tier (docs/wire/disk.md). Pure functions: whatever is read may be anything, and is checked here.
namespace mooncake::store::log {

constexpr uint32_t kVersion = 2;
constexpr uint32_t kOldestVersion = 1;   // that this code reads
constexpr uint32_t kOrderedVersion = 2;  // from here on, what was written later lies later

/// What makes a header belong to its place: a random number of the file and the block it lies in.
struct Place {
    uint64_t salt = 0;
    uint32_t block = 0;
};

// the file ---------------------------------------------------------------------------------------------------------------

struct FileHeader {
    uint32_t version = kVersion;
    uint32_t readable_from = kVersion;  // a reader of this version or a later one understands the file
    uint32_t number = 0;
    uint64_t salt = 0;
    uint64_t created_ms = 0;
};
/// Fills one block.
void encode_file_header(const FileHeader& header, std::span<std::byte> block);
/// kCorrupt; kNotSupported: of another version, to be left alone.
Result<FileHeader> parse_file_header(std::span<const std::byte> block);

/// "0000002a.log"
std::string file_name(uint32_t number);
std::optional<uint32_t> parse_file_name(std::string_view name);

// records ----------------------------------------------------------------------------------------------------------------

enum class RecordKind : uint8_t { kValue = 1, kRemovals = 2, kDirectory = 3 };

struct RecordHeader {
    RecordKind kind = RecordKind::kValue;
    uint32_t header_bytes = 0;   // with texts
    uint32_t payload_at = 0;     // from the beginning of the record
    uint32_t blocks = 0;         // the whole record takes
    uint32_t synced_blocks = 0;  // of the file, when this was written: what lies before is not torn
    uint64_t length = 0;         // of the value, or of the payload of other kinds
    uint64_t generation = 0;
    uint64_t checksum = 0;  // of the value as in stored_form.h, or hash_bytes() of the payload
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    ClientId writer;
    uint64_t soft_pin_end_ms = 0;  // by the wall clock; 0: none
    std::string_view tenant, group, key;

    bool known_kind() const noexcept { return kind >= RecordKind::kValue && kind <= RecordKind::kDirectory; }
    uint64_t payload_bytes() const noexcept { return kind == RecordKind::kValue ? stored_bytes(length) : length; }
    uint64_t bytes() const noexcept { return blocks * kBlockBytes; }
};

constexpr size_t kFixedHeaderBytes = 88;
constexpr size_t kHeaderBytesMax = kFixedHeaderBytes + 2 * kTierNameBytesMax + kTierKeyBytesMax;
constexpr uint64_t kPackedBytesMax = 32 << 10;  // values up to here begin right behind their header
constexpr uint64_t kRemovalsBytesMax = 512 << 10;

/// Sets header_bytes, payload_at and blocks from the other fields.
void lay_out(RecordHeader& header) noexcept;
/// Writes header_bytes bytes.
void encode_record(const RecordHeader& header, Place place, std::byte* to) noexcept;

enum class Parsed : uint8_t { kRecord, kNothing, kMore };  // kMore: header_bytes are needed
/// Of what begins at `bytes`. Texts point into it. A kind that is not known is a record all the same: it says how long it is.
Parsed parse_record(std::span<const std::byte> bytes, Place place, RecordHeader& header) noexcept;

// what removals and directories hold --------------------------------------------------------------------------------------

struct Removal {
    std::string_view tenant, key;
    uint64_t generation = 0;
};
uint64_t removal_bytes(const Removal& removal) noexcept;
void append_removal(std::vector<std::byte>& payload, const Removal& removal);
/// False where the payload makes no sense; what came before that was told.
bool for_each_removal(std::span<const std::byte> payload, const std::function<void(const Removal&)>& visit);

/// A directory repeats the headers of a file and the payloads of its removals.
void append_to_directory(std::vector<std::byte>& payload, uint32_t block, std::span<const std::byte> header,
                         std::span<const std::byte> removals = {});
using DirectoryVisit = std::function<void(uint32_t block, const RecordHeader& header, std::span<const std::byte> removals)>;
/// Each entry is checked by itself. False where it makes no sense.
bool for_each_in_directory(std::span<const std::byte> payload, uint64_t salt, const DirectoryVisit& visit);

/// The last block of a file that has a directory.
void encode_trailer(uint32_t directory_block, Place place, std::span<std::byte> block);
/// Where the directory is.
std::optional<uint32_t> parse_trailer(std::span<const std::byte> block, Place place);

}  // namespace mooncake::store::log
