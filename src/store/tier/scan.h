// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "store/tier/log_file.h"
#include "store/tier/record.h"

/// Reads what files hold: at start, and before a file is emptied. Everything waits for the disk.
namespace mooncake::store::log {

/// One record that can be trusted; of a value only the header was looked at, unless it might be torn.
struct FoundRecord {
    uint32_t block = 0;
    std::vector<std::byte> header;
    std::vector<std::byte> removals;

    /// Texts point into `header`.
    RecordHeader parse(uint64_t salt) const;
};

struct ScannedFile {
    std::vector<FoundRecord> records;
    bool has_directory = false;
    uint32_t end_block = kFirstRecordBlock;  // behind the last record
    uint64_t dropped = 0;                    // places with something that is no record, or none that can be trusted
    uint64_t unreadable = 0;                 // blocks
};

/// kCorrupt: no such file of ours. kNotSupported: of another version. kUnavailable: the disk does not give it.
Result<FileHeader> read_file_header(DiskFile& file);
/// By the directory, or header by header where it has none that is whole.
ScannedFile scan_file(DiskFile& file, uint64_t salt);
/// Reads a value in its stored form and verifies it; `payload` gets it all. kCorrupt.
Result<> read_value(DiskFile& file, uint32_t block, const RecordHeader& header, std::span<std::byte> payload);

}  // namespace mooncake::store::log
