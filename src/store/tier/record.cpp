// SPDX-License-Identifier: Apache-2.0
#include "store/tier/record.h"

#include <bit>
#include <charconv>
#include <cstring>

namespace mooncake::store::log {

namespace {

constexpr uint64_t kFileMagic = 0x474f4c5245495443;  // "CTIERLOG"
constexpr uint32_t kRecordMagic = 0x4452434d;        // "MCRD"
constexpr uint32_t kTrailerMagic = 0x5254434d;       // "MCTR"
constexpr uint8_t kHardPin = 1;

static_assert(std::endian::native == std::endian::little, "structures are stored as they lie in memory");

struct DiskFileHeader {
    uint64_t magic;
    uint64_t hash;  // of what follows
    uint32_t version, readable_from;
    uint64_t number;
    uint64_t salt;
    uint64_t created_ms;
};
static_assert(sizeof(DiskFileHeader) == 48);

struct DiskRecord {
    uint32_t magic;
    uint32_t header_bytes;
    uint64_t hash;  // of what follows, texts too, and of the place
    uint8_t kind, data_type, flags, reserved;
    uint32_t payload_at, blocks, synced_blocks;
    uint64_t length, generation, checksum;
    uint64_t writer_high, writer_low;
    uint64_t soft_pin_end_ms;
    uint32_t key_bytes;
    uint16_t tenant_bytes, group_bytes;
};
static_assert(sizeof(DiskRecord) == kFixedHeaderBytes);
constexpr size_t kRecordHashed = offsetof(DiskRecord, kind);

struct DiskTrailer {
    uint32_t magic;
    uint32_t directory_block;
    uint64_t hash;  // of directory_block and of the place
};

struct DiskRemoval {
    uint64_t generation;
    uint32_t key_bytes;
    uint16_t tenant_bytes, reserved;
};
static_assert(sizeof(DiskRemoval) == 16);

struct DiskListed {
    uint32_t block;
    uint32_t removals_bytes;
};

uint64_t mix(Place place) noexcept {
    uint64_t mixed = (place.salt ^ place.block) * 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 32)) * 0xff51afd7ed558ccd;
    return mixed ^ (mixed >> 29);
}

template <typename T>
T load(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <typename T>
void store(std::byte* to, const T& value) noexcept {
    std::memcpy(to, &value, sizeof value);
}

std::string_view text(const std::byte* from, size_t bytes) noexcept { return {reinterpret_cast<const char*>(from), bytes}; }

void append_bytes(std::vector<std::byte>& to, const void* from, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    to.insert(to.end(), begin, begin + bytes);
}

/// Whether the sizes a header names agree with each other.
bool is_consistent(const DiskRecord& disk) noexcept {
    if (disk.header_bytes < kFixedHeaderBytes || disk.header_bytes > kHeaderBytesMax) return false;
    if (kFixedHeaderBytes + uint64_t{disk.tenant_bytes} + disk.group_bytes + disk.key_bytes != disk.header_bytes) return false;
    return disk.length <= kTierValueBytesMax && disk.payload_at >= disk.header_bytes && disk.blocks != 0;
}

}  // namespace

void encode_file_header(const FileHeader& header, std::span<std::byte> block) {
    std::memset(block.data(), 0, block.size());
    DiskFileHeader disk{kFileMagic, 0, header.version, header.readable_from, header.number, header.salt, header.created_ms};
    store(block.data(), disk);
    disk.hash = hash_bytes(block.subspan(offsetof(DiskFileHeader, version), sizeof disk - offsetof(DiskFileHeader, version)));
    store(block.data(), disk);
}

Result<FileHeader> parse_file_header(std::span<const std::byte> block) {
    if (block.size() < sizeof(DiskFileHeader)) return fail(Code::kCorrupt, "no header");
    const auto disk = load<DiskFileHeader>(block.data());
    if (disk.magic != kFileMagic) return fail(Code::kCorrupt, "not a file of a tier");
    const auto hashed = block.subspan(offsetof(DiskFileHeader, version), sizeof disk - offsetof(DiskFileHeader, version));
    if (hash_bytes(hashed) != disk.hash) return fail(Code::kCorrupt, "damaged header");
    if (disk.number == 0 || disk.number > UINT32_MAX) return fail(Code::kCorrupt, "no such file number");
    if (disk.version < kOldestVersion || disk.readable_from > kVersion) {
        return fail(Code::kNotSupported, "of version {}, readable from version {} on", disk.version, disk.readable_from);
    }
    return FileHeader{.version = disk.version,
                      .readable_from = disk.readable_from,
                      .number = static_cast<uint32_t>(disk.number),
                      .salt = disk.salt,
                      .created_ms = disk.created_ms};
}

std::string file_name(uint32_t number) { return format_text("{:08x}.log", number); }

std::optional<uint32_t> parse_file_name(std::string_view name) {
    constexpr std::string_view kEnding = ".log";
    if (name.size() != 8 + kEnding.size() || !name.ends_with(kEnding)) return std::nullopt;
    uint32_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + 8, number, 16);
    if (error != std::errc() || end != name.data() + 8 || number == 0 || file_name(number) != name) return std::nullopt;
    return number;
}

void lay_out(RecordHeader& header) noexcept {
    header.header_bytes = static_cast<uint32_t>(kFixedHeaderBytes + header.tenant.size() + header.group.size() + header.key.size());
    const uint64_t payload = header.payload_bytes();
    header.payload_at = payload <= kPackedBytesMax ? header.header_bytes : static_cast<uint32_t>(round_to_blocks(header.header_bytes));
    header.blocks = static_cast<uint32_t>(round_to_blocks(header.payload_at + payload) / kBlockBytes);
}

void encode_record(const RecordHeader& header, Place place, std::byte* to) noexcept {
    DiskRecord disk{.magic = kRecordMagic,
                    .header_bytes = header.header_bytes,
                    .hash = 0,
                    .kind = static_cast<uint8_t>(header.kind),
                    .data_type = static_cast<uint8_t>(header.data_type),
                    .flags = header.hard_pin ? kHardPin : uint8_t{0},
                    .reserved = 0,
                    .payload_at = header.payload_at,
                    .blocks = header.blocks,
                    .synced_blocks = header.synced_blocks,
                    .length = header.length,
                    .generation = header.generation,
                    .checksum = header.checksum,
                    .writer_high = header.writer.high,
                    .writer_low = header.writer.low,
                    .soft_pin_end_ms = header.soft_pin_end_ms,
                    .key_bytes = static_cast<uint32_t>(header.key.size()),
                    .tenant_bytes = static_cast<uint16_t>(header.tenant.size()),
                    .group_bytes = static_cast<uint16_t>(header.group.size())};
    store(to, disk);
    std::byte* at = to + sizeof disk;
    for (const std::string_view part : {header.tenant, header.group, header.key}) {
        if (!part.empty()) std::memcpy(at, part.data(), part.size());
        at += part.size();
    }
    disk.hash = hash_bytes({to + kRecordHashed, header.header_bytes - kRecordHashed}) ^ mix(place);
    store(to, disk);
}

Parsed parse_record(std::span<const std::byte> bytes, Place place, RecordHeader& header) noexcept {
    if (bytes.size() < sizeof(DiskRecord)) return Parsed::kNothing;
    const auto disk = load<DiskRecord>(bytes.data());
    if (disk.magic != kRecordMagic || !is_consistent(disk)) return Parsed::kNothing;
    header.header_bytes = disk.header_bytes;
    if (bytes.size() < disk.header_bytes) return Parsed::kMore;
    if ((hash_bytes({bytes.data() + kRecordHashed, disk.header_bytes - kRecordHashed}) ^ mix(place)) != disk.hash) return Parsed::kNothing;
    header.kind = static_cast<RecordKind>(disk.kind);
    header.payload_at = disk.payload_at;
    header.blocks = disk.blocks;
    header.synced_blocks = disk.synced_blocks;
    header.length = disk.length;
    header.generation = disk.generation;
    header.checksum = disk.checksum;
    header.data_type = disk.data_type <= static_cast<uint8_t>(ObjectDataType::kGeneral) ? static_cast<ObjectDataType>(disk.data_type)
                                                                                        : ObjectDataType::kUnknown;
    header.hard_pin = (disk.flags & kHardPin) != 0;
    header.writer = {disk.writer_high, disk.writer_low};
    header.soft_pin_end_ms = disk.soft_pin_end_ms;
    const std::byte* at = bytes.data() + sizeof disk;
    header.tenant = text(at, disk.tenant_bytes);
    header.group = text(at + disk.tenant_bytes, disk.group_bytes);
    header.key = text(at + disk.tenant_bytes + disk.group_bytes, disk.key_bytes);
    if (header.known_kind() && header.payload_at + header.payload_bytes() > header.bytes()) return Parsed::kNothing;
    if (header.kind == RecordKind::kValue && header.key.empty()) return Parsed::kNothing;
    return Parsed::kRecord;
}

uint64_t removal_bytes(const Removal& removal) noexcept { return sizeof(DiskRemoval) + removal.tenant.size() + removal.key.size(); }

void append_removal(std::vector<std::byte>& payload, const Removal& removal) {
    const DiskRemoval disk{removal.generation, static_cast<uint32_t>(removal.key.size()), static_cast<uint16_t>(removal.tenant.size()), 0};
    append_bytes(payload, &disk, sizeof disk);
    append_bytes(payload, removal.tenant.data(), removal.tenant.size());
    append_bytes(payload, removal.key.data(), removal.key.size());
}

bool for_each_removal(std::span<const std::byte> payload, const std::function<void(const Removal&)>& visit) {
    while (!payload.empty()) {
        if (payload.size() < sizeof(DiskRemoval)) return false;
        const auto disk = load<DiskRemoval>(payload.data());
        const uint64_t bytes = sizeof disk + uint64_t{disk.tenant_bytes} + disk.key_bytes;
        if (bytes > payload.size() || disk.key_bytes == 0) return false;
        const std::byte* at = payload.data() + sizeof disk;
        visit({text(at, disk.tenant_bytes), text(at + disk.tenant_bytes, disk.key_bytes), disk.generation});
        payload = payload.subspan(bytes);
    }
    return true;
}

void append_to_directory(std::vector<std::byte>& payload, uint32_t block, std::span<const std::byte> header,
                         std::span<const std::byte> removals) {
    const DiskListed listed{block, static_cast<uint32_t>(removals.size())};
    append_bytes(payload, &listed, sizeof listed);
    append_bytes(payload, header.data(), header.size());
    append_bytes(payload, removals.data(), removals.size());
}

bool for_each_in_directory(std::span<const std::byte> payload, uint64_t salt, const DirectoryVisit& visit) {
    while (!payload.empty()) {
        if (payload.size() < sizeof(DiskListed)) return false;
        const auto listed = load<DiskListed>(payload.data());
        payload = payload.subspan(sizeof listed);
        RecordHeader header;
        if (parse_record(payload, {salt, listed.block}, header) != Parsed::kRecord) return false;
        if (payload.size() - header.header_bytes < listed.removals_bytes) return false;
        const auto removals = payload.subspan(header.header_bytes, listed.removals_bytes);
        if (header.kind == RecordKind::kRemovals && hash_bytes(removals) != header.checksum) return false;
        visit(listed.block, header, removals);
        payload = payload.subspan(header.header_bytes + listed.removals_bytes);
    }
    return true;
}

void encode_trailer(uint32_t directory_block, Place place, std::span<std::byte> block) {
    std::memset(block.data(), 0, block.size());
    const uint64_t hash = hash_bytes(std::as_bytes(std::span(&directory_block, 1))) ^ mix(place);
    store(block.data(), DiskTrailer{kTrailerMagic, directory_block, hash});
}

std::optional<uint32_t> parse_trailer(std::span<const std::byte> block, Place place) {
    if (block.size() < sizeof(DiskTrailer)) return std::nullopt;
    const auto disk = load<DiskTrailer>(block.data());
    if (disk.magic != kTrailerMagic || disk.directory_block >= place.block) return std::nullopt;
    if ((hash_bytes(std::as_bytes(std::span(&disk.directory_block, 1))) ^ mix(place)) != disk.hash) return std::nullopt;
    return disk.directory_block;
}

}  // namespace mooncake::store::log
