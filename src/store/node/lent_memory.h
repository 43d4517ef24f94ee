// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "device/device.h"
#include "engine/engine.h"
#include "store/node/page_warmer.h"

namespace mooncake::store {

/// Keeps others, in this process and in others, from taking the same bytes of the same file, whatever its name; until destruction. Not
/// thread-safe.
class FileRangeLock {
public:
    FileRangeLock() = default;
    FileRangeLock(FileRangeLock&&) = default;
    FileRangeLock& operator=(FileRangeLock&&) = default;
    ~FileRangeLock();
    /// kAlreadyExists: somebody has them. On file systems without locks nobody is kept from anything.
    static Result<FileRangeLock> take(UniqueFd file, uint64_t offset, uint64_t size);

private:
    explicit FileRangeLock(UniqueFd file) : file_(std::move(file)) {}
    UniqueFd file_;
};

/// Memory of this process that is lent to the pool, registered with the engine. Gives it back on destruction, after waiting for our own
/// copies and then for those of all peers. Thread-safe.
class LentMemory {
public:
    struct Pages {
        bool huge = false;  // as far as the system has them
        bool early = true;  // they are made to exist in the background; otherwise each when it is first used
    };
    /// Shared memory that peers on this host map.
    static Result<std::shared_ptr<LentMemory>> allocate(std::shared_ptr<Engine> engine, uint64_t size, const std::string& location,
                                                        Pages pages);
    /// The same of memory that exists, and outlives the process.
    static Result<std::shared_ptr<LentMemory>> adopt(std::shared_ptr<Engine> engine, SharedMemory memory, Pages pages);
    /// Pages of a file, which nobody else may lend meanwhile. kInvalidArgument: offset not page-aligned, the range not inside the file, or lent
    /// already, by whatever process. kNoSpace: it has holes that its file system has no room for; otherwise it has none afterwards.
    static Result<std::shared_ptr<LentMemory>> map_file(std::shared_ptr<Engine> engine, const std::string& path, uint64_t offset,
                                                        uint64_t size, const std::string& location);
    ~LentMemory();
    LentMemory(const LentMemory&) = delete;
    LentMemory& operator=(const LentMemory&) = delete;

    std::byte* base() const noexcept { return base_; }
    uint64_t size() const noexcept { return size_; }
    bool of_file() const noexcept { return static_cast<bool>(file_); }

private:
    static std::shared_ptr<LentMemory> of_engine(std::shared_ptr<Engine> engine, void* address, uint64_t size, Pages pages);
    LentMemory(std::shared_ptr<Engine> engine, std::byte* base, uint64_t size, Mapping file, FileRangeLock lock = {})
        : engine_(std::move(engine)), base_(base), size_(size), file_(std::move(file)), lock_(std::move(lock)) {}

    const std::shared_ptr<Engine> engine_;
    std::byte* const base_;
    const uint64_t size_;
    Mapping file_;  // empty: the engine's own allocation
    const FileRangeLock lock_;
    std::optional<PageWarmer> warmer_;
    HostOffer offer_;  // GPUs may pin what is the engine's own; pages of files are left alone
};

}  // namespace mooncake::store
