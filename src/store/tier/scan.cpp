// SPDX-License-Identifier: Apache-2.0
#include "store/tier/scan.h"

#include <algorithm>
#include <utility>

#include "store/tier/arena.h"
#include "store/tier/transfer.h"

namespace mooncake::store::log {

namespace {

constexpr uint64_t kWindowBytes = 64 << 10;
constexpr uint64_t kBounceBytes = 1 << 20;
constexpr uint64_t kUnreadableMax = 256;  // blocks of one file, before the rest is given up

bool is_zero(std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

/// Reads any bytes of a file through an aligned buffer.
Result<std::vector<std::byte>> read_bytes(DiskFile& file, uint64_t offset, uint64_t bytes, std::span<std::byte> bounce) {
    std::vector<std::byte> result;
    result.reserve(bytes);
    while (bytes != 0) {
        const uint64_t begin = offset / kBlockBytes * kBlockBytes;
        const uint64_t part = std::min(bytes, bounce.size() - (offset - begin));
        MC_RETURN_IF_ERROR(read_and_wait(file, begin, bounce.first(round_to_blocks(offset - begin + part))));
        const auto wanted = bounce.subspan(offset - begin, part);
        result.insert(result.end(), wanted.begin(), wanted.end());
        offset += part;
        bytes -= part;
    }
    return result;
}

/// Goes through a file header by header.
class Walk {
public:
    Walk(DiskFile& file, uint64_t salt, std::span<std::byte> bounce, ScannedFile& result)
        : file_(file), salt_(salt), bounce_(bounce), result_(result), end_(static_cast<uint32_t>(file.size() / kBlockBytes)) {}

    void run() {
        uint32_t block = kFirstRecordBlock;
        bool in_hole = false;
        while (block < end_ && result_.unreadable <= kUnreadableMax) {
            if (!provide(block, kBlockBytes)) {
                ++result_.unreadable;
                ++block;
                continue;
            }
            RecordHeader header;
            Parsed parsed = parse_record(at(block), {salt_, block}, header);
            if (parsed == Parsed::kMore && provide(block, header.header_bytes)) parsed = parse_record(at(block), {salt_, block}, header);
            if (parsed == Parsed::kRecord && header.blocks <= end_ - block) {
                in_hole = false;
                if (header.kind == RecordKind::kDirectory) return;  // nothing follows it
                take(block, header);
                block += header.blocks;
                continue;
            }
            if (!in_hole && !is_zero(at(block).first(kBlockBytes))) {
                in_hole = true;
                ++result_.dropped;
            }
            ++block;
        }
        if (block < end_) result_.unreadable += end_ - block;
    }
    uint32_t synced_block() const noexcept { return synced_; }

private:
    std::span<const std::byte> at(uint32_t block) const {
        return std::span<const std::byte>(bounce_).subspan(block * kBlockBytes - begin_, filled_ - (block * kBlockBytes - begin_));
    }

    /// Makes at(block) hold so many bytes.
    bool provide(uint32_t block, uint64_t bytes) {
        const uint64_t from = block * kBlockBytes, size = end_ * kBlockBytes;
        if (from >= begin_ && from + bytes <= begin_ + filled_) return true;
        bytes = round_to_blocks(bytes);
        if (from + bytes > size) return false;
        // Far ahead, or, where something in there cannot be read, no further than needed.
        for (const uint64_t wanted : {std::max(std::min(kWindowBytes, size - from), bytes), bytes}) {
            filled_ = 0;
            if (!read_and_wait(file_, from, bounce_.first(wanted))) continue;
            begin_ = from;
            filled_ = wanted;
            return true;
        }
        return false;
    }

    void take(uint32_t block, const RecordHeader& header) {
        FoundRecord found{block, copy_of(at(block).first(header.header_bytes)), {}};
        synced_ = std::max(synced_, header.synced_blocks);
        result_.end_block = block + header.blocks;
        if (header.kind == RecordKind::kRemovals) {
            filled_ = 0;  // the same buffer
            auto payload = read_bytes(file_, block * kBlockBytes + header.payload_at, header.length, bounce_);
            if (!payload || hash_bytes(*payload) != header.checksum) {
                ++result_.dropped;
                if (!payload) result_.unreadable += header.blocks;
                return;
            }
            found.removals = std::move(*payload);
        }
        result_.records.push_back(std::move(found));
    }

    DiskFile& file_;
    const uint64_t salt_;
    const std::span<std::byte> bounce_;
    ScannedFile& result_;
    const uint32_t end_;
    uint64_t begin_ = 0, filled_ = 0;  // what the buffer holds
    uint32_t synced_ = kFirstRecordBlock;
};

bool read_directory(DiskFile& file, uint64_t salt, std::span<std::byte> bounce, ScannedFile& result) {
    const uint64_t size = file.size();
    if (size % kBlockBytes != 0 || size < (kFirstRecordBlock + 2) * kBlockBytes) return false;
    const auto trailer_block = static_cast<uint32_t>(size / kBlockBytes - 1);
    if (!read_and_wait(file, trailer_block * kBlockBytes, bounce.first(kBlockBytes))) return false;
    const auto directory_block = parse_trailer(bounce.first(kBlockBytes), {salt, trailer_block});
    if (!directory_block || *directory_block < kFirstRecordBlock) return false;
    if (!read_and_wait(file, *directory_block * kBlockBytes, bounce.first(kBlockBytes))) return false;
    RecordHeader header;
    if (parse_record(bounce.first(kBlockBytes), {salt, *directory_block}, header) != Parsed::kRecord) return false;
    if (header.kind != RecordKind::kDirectory || *directory_block + header.blocks != trailer_block) return false;
    const auto payload = read_bytes(file, *directory_block * kBlockBytes + header.payload_at, header.length, bounce);
    if (!payload || hash_bytes(*payload) != header.checksum) return false;
    const bool whole = for_each_in_directory(
        *payload, salt, [&](uint32_t block, const RecordHeader& listed, std::span<const std::byte> removals) {
            std::vector<std::byte> encoded(listed.header_bytes);
            encode_record(listed, {salt, block}, encoded.data());
            if (block < kFirstRecordBlock || block >= *directory_block || listed.blocks > *directory_block - block) return;
            result.records.push_back({block, std::move(encoded), copy_of(removals)});
        });
    result.end_block = *directory_block;
    if (!whole) result = {};
    return whole;
}

}  // namespace

RecordHeader FoundRecord::parse(uint64_t salt) const {
    RecordHeader parsed;
    MC_CHECK(parse_record(header, {salt, block}, parsed) == Parsed::kRecord);
    return parsed;
}

Result<FileHeader> read_file_header(DiskFile& file) {
    MC_ASSIGN_OR_RETURN(const Pages pages, Pages::create(kBlockBytes));
    Result<FileHeader> header = fail(Code::kCorrupt, "no header");
    for (uint32_t copy = 0; copy < kFirstRecordBlock; ++copy) {
        if ((copy + 1) * kBlockBytes > file.size()) break;
        auto read = read_and_wait(file, copy * kBlockBytes, pages.bytes());
        if (read) {
            header = parse_file_header(pages.bytes());
            if (header || header.error().code() == Code::kNotSupported) return header;
        } else if (header.error().code() == Code::kCorrupt) {
            header = Unexpected(std::move(read).error());
        }
    }
    return header;
}

ScannedFile scan_file(DiskFile& file, uint64_t salt) {
    ScannedFile result;
    const auto pages = Pages::create(kBounceBytes);
    if (!pages) {
        result.unreadable = file.size() / kBlockBytes;
        return result;
    }
    result.has_directory = read_directory(file, salt, pages->bytes(), result);
    if (result.has_directory) return result;
    Walk walk(file, salt, pages->bytes(), result);
    walk.run();
    // What was written after the last known sync may be torn.
    std::erase_if(result.records, [&](const FoundRecord& found) {
        const RecordHeader header = found.parse(salt);
        if (header.kind != RecordKind::kValue || found.block < walk.synced_block()) return false;
        auto payload = Pages::create(round_to_blocks(header.payload_bytes()) + kBlockBytes);
        const bool torn = !payload || !read_value(file, found.block, header, payload->bytes().first(header.payload_bytes()));
        result.dropped += torn ? 1 : 0;
        return torn;
    });
    return result;
}

Result<> read_value(DiskFile& file, uint32_t block, const RecordHeader& header, std::span<std::byte> payload) {
    MC_ASSIGN_OR_RETURN(const Pages pages, Pages::create(kBounceBytes));
    uint64_t offset = block * kBlockBytes + header.payload_at;
    for (uint64_t done = 0; done < payload.size();) {
        const uint64_t begin = offset / kBlockBytes * kBlockBytes;
        const uint64_t part = std::min(payload.size() - done, pages.size() - (offset - begin));
        MC_RETURN_IF_ERROR(read_and_wait(file, begin, pages.bytes().first(round_to_blocks(offset - begin + part))));
        std::copy_n(pages.data() + (offset - begin), part, payload.data() + done);
        offset += part;
        done += part;
    }
    const std::span<const std::byte> value = payload.first(header.length);
    std::vector<uint64_t> table;
    if (hash_value(std::span(&value, 1), table) != header.checksum) return fail(Code::kCorrupt, "a value fails its check");
    return {};
}

}  // namespace mooncake::store::log
