// SPDX-License-Identifier: Apache-2.0
#include "store/node/lent_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/log.h"
#include "base/unique_fd.h"

namespace mooncake::store {

Result<FileRangeLock> FileRangeLock::take(UniqueFd file, uint64_t offset, uint64_t size) {
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<off_t>(offset);
    range.l_len = static_cast<off_t>(size);
    // Of the open file, not of the process: that also tells two stores of one process apart.
    if (::fcntl(file.get(), F_OFD_SETLK, &range) == 0) return FileRangeLock(std::move(file));
    if (errno == EAGAIN || errno == EACCES) return fail(Code::kAlreadyExists, "bytes of this range are taken");
    return FileRangeLock();
}

FileRangeLock::~FileRangeLock() {
    if (!file_) return;
    // Closing is not enough where a child of ours has inherited the open file.
    struct flock all {};
    all.l_type = F_UNLCK;
    all.l_whence = SEEK_SET;
    (void)::fcntl(file_.get(), F_OFD_SETLK, &all);
}

Result<std::shared_ptr<LentMemory>> LentMemory::allocate(std::shared_ptr<Engine> engine, uint64_t size, const std::string& location,
                                                         Pages pages) {
    MC_ASSIGN_OR_RETURN(void* const address, engine->allocate_memory(size, location.empty() ? "*" : location));
    if (pages.huge && ::madvise(address, size, MADV_HUGEPAGE) != 0)
        MC_LOG_WARNING("the system gives no huge pages for shared memory; the segment gets ordinary ones");
    std::shared_ptr<LentMemory> memory(new LentMemory(std::move(engine), static_cast<std::byte*>(address), size, Mapping()));
    if (pages.early) memory->warmer_.emplace(memory->base_, size);
    return memory;
}

Result<std::shared_ptr<LentMemory>> LentMemory::map_file(std::shared_ptr<Engine> engine, const std::string& path, uint64_t offset,
                                                         uint64_t size, const std::string& location) {
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    if (size == 0 || offset % page != 0) return fail(Code::kInvalidArgument, "{}: no bytes, or an offset inside a page", path);
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file) return fail_errno(Code::kInvalidArgument, errno, "cannot open {}", path);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return fail_errno(Code::kInvalidArgument, errno, "cannot examine {}", path);
    // Devices have no size of their own: mmap() refuses what they do not have.
    const auto file_bytes = static_cast<uint64_t>(status.st_size);
    if (S_ISREG(status.st_mode) && (offset > file_bytes || size > file_bytes - offset))
        return fail(Code::kInvalidArgument, "{} has {} bytes, not {} from {} on", path, file_bytes, size, offset);
    void* const address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), static_cast<off_t>(offset));
    if (address == MAP_FAILED) return fail_errno(Code::kInvalidArgument, errno, "cannot map {} bytes of {}", size, path);
    Mapping mapping(address, size);
    auto lock = FileRangeLock::take(std::move(file), offset, size);
    if (!lock) return fail(Code::kInvalidArgument, "of {} bytes of {} from {} on, some are lent already", size, path, offset);
    MC_RETURN_IF_ERROR(engine->register_memory(address, size, location.empty() ? "*" : location));
    return std::shared_ptr<LentMemory>(
        new LentMemory(std::move(engine), static_cast<std::byte*>(address), size, std::move(mapping), std::move(*lock)));
}

LentMemory::~LentMemory() {
    warmer_.reset();
    // A fence: returns when no peer touches it any more. A closed engine has done that for all its memory.
    const auto given_back = file_ ? engine_->unregister_memory(base_) : engine_->free_memory(base_);
    if (given_back || given_back.error().code() == Code::kUnavailable) return;
    MC_LOG_WARNING("memory of a segment is not given back: {}", given_back.error().to_string());
    // Some process may still be about to touch it: better lost than given to somebody else.
    [[maybe_unused]] const auto* const kept_for_ever = new Mapping(std::move(file_));
}

}  // namespace mooncake::store
