// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "store/tier/append_stream.h"
#include "store/tier/index.h"
#include "store/tier/log_file.h"
#include "store/tier/record.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store::log {

/// The end of the log: files, records, groups. What was staged counts after commit(): then it is on the disk and in the index, all of it or nothing. A group
/// never goes beyond a file, and holds a key at most once; its owner sees to both. The log thread's.
class Appender {
public:
    Appender(Disk& disk, FileTable& files, Index& index, uint64_t file_bytes);
    Result<> start();

    /// The number of the next file; after recovery.
    void set_next_number(uint32_t number) noexcept { next_number_ = number; }
    LogFile* current() const noexcept { return current_.get(); }

    /// Whether a record of this size has room in the current file.
    bool fits(uint64_t record_bytes) const noexcept;
    /// What a record takes that does not fit: a file of this size.
    uint64_t new_file_bytes(uint64_t record_bytes) const noexcept;
    /// Records of this size get a file of their own.
    bool is_alone(uint64_t record_bytes) const noexcept { return record_bytes > file_bytes_ / 4; }
    /// The file to go on with; the one before gets its directory.
    Result<> roll(uint64_t bytes);
    /// No file to go on with.
    void close_current();

    /// The header it will have, for sizes.
    static RecordHeader header_of(const TierObject& object) noexcept;
    /// Texts and value stay until commit(). kCorrupt: not the bytes of that checksum.
    Result<> stage(RecordHeader header, std::span<const std::byte> value);
    void stage(const Removal& removal);
    bool has_staged() const noexcept { return !values_.empty() || !removals_.empty() || !spoiled_.empty(); }
    uint64_t staged_bytes() const noexcept { return staged_bytes_; }
    /// Writes the group for good. On failure no value of it counts, removed ones cannot be read, and there is no current file.
    Result<> commit();

    /// One value in a file of its own, with its commit; nothing may be staged. The current file stays what it is.
    Result<> write_alone(const RecordHeader& header, std::span<const std::byte> value);

    /// Gives a file its directory, or not: it only makes the next start faster.
    void seal(LogFile& file);

private:
    struct Staged {
        uint32_t block = 0;
        RecordHeader header;
    };

    Place place(uint32_t block) const noexcept { return {current_->salt, block}; }
    Result<std::shared_ptr<LogFile>> create_file(uint64_t bytes);
    Result<> stage_small(RecordHeader& header, std::span<const std::byte> value);
    Result<> stage_large(RecordHeader& header, std::span<const std::byte> value);
    void stage_removals();
    void fill(std::span<const std::byte> bytes);
    void fill_to_block();
    Result<> write_out();
    void apply();
    void undo(uint32_t begin_block);

    Disk& disk_;
    FileTable& files_;
    Index& index_;
    const uint64_t file_bytes_;
    AppendStream stream_;
    std::mt19937_64 random_;
    uint32_t next_number_ = 1;
    std::shared_ptr<LogFile> current_;

    // the group
    std::vector<Staged> values_;
    std::vector<Staged> removal_records_;
    std::vector<std::vector<std::byte>> removal_payloads_;  // of those
    std::vector<Removal> removals_;
    std::vector<Staged> spoiled_;  // written, but not what their checksum says
    std::vector<std::byte> pending_removals_;
    uint64_t staged_bytes_ = 0;
    std::vector<uint64_t> table_;
};

}  // namespace mooncake::store::log
