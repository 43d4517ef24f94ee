// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/tier/disk_io.h"

namespace mooncake::store::log {

struct Entry;

constexpr uint32_t kFirstRecordBlock = 2;  // behind the header, which is there twice

/// One file of the log. Whoever reads from it holds it; it is closed when nobody does. Counters are anybody's, lists and what is marked so the log
/// thread's alone.
class LogFile : public std::enable_shared_from_this<LogFile> {
public:
    LogFile(uint32_t file_number, uint64_t file_salt, std::unique_ptr<DiskFile> disk_file)
        : number(file_number), salt(file_salt), disk(std::move(disk_file)) {}

    const uint32_t number;
    const uint64_t salt;
    const std::unique_ptr<DiskFile> disk;

    std::atomic<uint64_t> bytes{0};       // that it takes of the disk
    std::atomic<uint64_t> live_bytes{0};  // records of values that count
    std::atomic<uint32_t> values{0};      // that count
    std::atomic<uint32_t> pinned{0};      // of them
    std::atomic<bool> closed{false};      // not appended to any more
    std::atomic<bool> damaged{false};     // could not be read completely, or in doubt: to be emptied first

    // the log thread's
    Entry* first_value = nullptr;
    Entry* first_removal = nullptr;
    bool ordered = true;               // what was made later lies behind, here or in a file of a higher number (version 2)
    std::vector<std::byte> directory;  // of a file that is appended to
    uint32_t end_block = 0;            // where the next record goes
    uint32_t synced_block = 0;         // what lies before is on the disk for good
    bool name_synced = true;
    Time retire_not_before{};  // the disk refused to delete it
};

/// All files there are, by number. Thread-safe.
class FileTable {
public:
    using Files = std::vector<std::shared_ptr<LogFile>>;

    void add(std::shared_ptr<LogFile> file);
    void remove(uint32_t number);
    /// A file that nobody can read now, and that may be readable after the next start.
    void add_unreadable(uint32_t number);
    /// In the order of their numbers.
    Files all() const;
    size_t size() const;
    /// What all of them take of the disk.
    uint64_t bytes() const;
    /// Whether there is any from `low` to `high` but for `own`.
    bool any_other(uint32_t low, uint32_t high, uint32_t own) const;
    /// The first of those; 0: none.
    uint32_t first_other(uint32_t low, uint32_t high, uint32_t own) const;

private:
    mutable Mutex mutex_;
    std::map<uint32_t, std::shared_ptr<LogFile>> files_ MC_GUARDED_BY(mutex_);
    std::set<uint32_t> unreadable_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store::log
