// SPDX-License-Identifier: Apache-2.0
#include "store/node/lent_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <utility>

#include "base/log.h"
#include "base/pages.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "base/unique_fd.h"

namespace mooncake::store {

namespace {

/// Addresses of memory that was lent. As long as the engine lives, a writer that has not heard of it may write there, and neither the engine nor a master of a
/// later life could tell. So nothing else is to lie there for a while; of memory they take none. Thread-safe.
class HeldAddresses {
public:
    /// Nothing is mapped there now.
    void hold(void* base, size_t bytes) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        void* const address = ::mmap(base, bytes, PROT_NONE, flags, -1, 0);
        if (address == MAP_FAILED) return;  // somebody was faster, or there are no addresses left
        Mapping mapping(address, bytes);
        if (address != base) return;  // an old kernel takes the address for a wish
        const Time now = Clock::now();
        Lock lock(mutex_);
        held_.push_back({std::move(mapping), bytes, now});
        bytes_ += bytes;
        while (held_.size() > kCountMax || bytes_ > kBytesMax || now - held_.front().since > kTime) {
            bytes_ -= held_.front().bytes;
            held_.pop_front();
        }
    }

private:
    static constexpr Duration kTime = 10min;  // as long as a write may be under way
    static constexpr size_t kCountMax = 1024, kBytesMax = size_t{16} << 40;
    struct Held {
        Mapping mapping;
        size_t bytes = 0;
        Time since{};
    };
    Mutex mutex_;
    std::deque<Held> held_ MC_GUARDED_BY(mutex_);
    size_t bytes_ MC_GUARDED_BY(mutex_) = 0;
};

HeldAddresses& held_addresses() {
    static auto* const held = new HeldAddresses;  // also for who ends with the process
    return *held;
}

/// A page that a file system has no room for is not missed before it is touched, and then by a signal that ends the process. So all of them must exist. What
/// cannot be filled has no holes that could be (devices), or keeps its own promise (huge pages are set aside by mmap()).
Result<> fill_holes(int file, const struct stat& status, void* address, uint64_t offset, uint64_t size) {
    if (!S_ISREG(status.st_mode)) return {};
    int outcome = 0;
    do outcome = ::fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(size));
    while (outcome != 0 && errno == EINTR);
    if (outcome == 0) return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
        return fail_errno(Code::kNoSpace, errno, "its file system has no room for {} bytes", size);
    // This file system cannot be asked. A file without holes needs nothing.
    const bool holes = static_cast<uint64_t>(status.st_blocks) * 512 < static_cast<uint64_t>(status.st_size);
    if (!holes || populate_pages(address, size)) return {};
    if (errno != EINVAL) return fail_errno(Code::kNoSpace, errno, "its file system has no room for {} bytes", size);
    MC_LOG_WARNING("nobody can say whether its file system has room for all {} bytes of a file with holes that is lent", size);
    return {};
}

}  // namespace

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
    return of_engine(std::move(engine), address, size, pages);
}

Result<std::shared_ptr<LentMemory>> LentMemory::adopt(std::shared_ptr<Engine> engine, SharedMemory memory, Pages pages) {
    const uint64_t size = memory.length();
    MC_ASSIGN_OR_RETURN(void* const address, engine->adopt_memory(std::move(memory)));
    return of_engine(std::move(engine), address, size, pages);
}

std::shared_ptr<LentMemory> LentMemory::of_engine(std::shared_ptr<Engine> engine, void* address, uint64_t size, Pages pages) {
    if (pages.huge && ::madvise(address, size, MADV_HUGEPAGE) != 0)
        MC_LOG_WARNING("the system gives no huge pages for shared memory; the segment gets ordinary ones");
    std::shared_ptr<LentMemory> memory(new LentMemory(std::move(engine), static_cast<std::byte*>(address), size, Mapping()));
    if (pages.early) memory->warmer_.emplace(memory->base_, size);
    memory->offer_ = HostOffer(memory->engine_->devices(), memory->base_, size);
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
    if (auto filled = fill_holes(file.get(), status, address, offset, size); !filled)
        return Unexpected(std::move(filled).error().with_context(path));
    auto lock = FileRangeLock::take(std::move(file), offset, size);
    if (!lock) return fail(Code::kInvalidArgument, "of {} bytes of {} from {} on, some are lent already", size, path, offset);
    MC_RETURN_IF_ERROR(engine->register_memory(address, size, location.empty() ? "*" : location));
    return std::shared_ptr<LentMemory>(
        new LentMemory(std::move(engine), static_cast<std::byte*>(address), size, std::move(mapping), std::move(*lock)));
}

LentMemory::~LentMemory() {
    warmer_.reset();
    // A fence: returns when no peer touches it any more. A closed engine has done that for all its memory.
    auto given_back = engine_->unregister_memory(base_);
    if (!given_back && given_back.error().code() == Code::kNotRegistered) given_back = {};
    if (given_back || given_back.error().code() == Code::kUnavailable) offer_.take_back();
    if (given_back && !file_) given_back = engine_->free_memory(base_);
    if (given_back) {
        file_ = Mapping();
        held_addresses().hold(base_, size_);
        return;
    }
    if (given_back.error().code() == Code::kUnavailable) return;
    MC_LOG_WARNING("memory of a segment is not given back: {}", given_back.error().to_string());
    // Some process may still be about to touch it: better lost than given to somebody else.
    [[maybe_unused]] const auto* const kept_for_ever = new std::pair(std::move(file_), std::move(offer_));
}

}  // namespace mooncake::store
