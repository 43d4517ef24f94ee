// SPDX-License-Identifier: Apache-2.0
#include "store/node/warm_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/incarnation.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/read_file.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

constexpr const char* kSegmentName = "segment";
constexpr const char* kJournalName = "journal";
constexpr const char* kNewJournalName = "journal.new";
constexpr mode_t kMode = 0600;  // values are nobody else's business

/// 0: the system does not say.
uint64_t this_boot() {
    const auto text = read_file("/proc/sys/kernel/random/boot_id", 256);
    return text ? hash_bytes(std::as_bytes(std::span(text->data(), text->size()))) : 0;
}

uint64_t whole_pages(uint64_t bytes) {
    const uint64_t page = page_bytes();
    return (bytes + page - 1) / page * page;
}

Result<> check_folder(const std::string& path, int folder) {
    struct stat status {};
    struct statfs system {};
    if (::fstat(folder, &status) != 0 || ::fstatfs(folder, &system) != 0)
        return fail_errno(Code::kInvalidArgument, errno, "cannot examine {}", path);
    if (system.f_type != TMPFS_MAGIC)
        return fail(Code::kInvalidArgument, "{} is not on a tmpfs: what lies elsewhere may be older than what memory held", path);
    if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return fail(Code::kInvalidArgument, "{} belongs to another user, or others may write to it", path);
    return {};
}

Result<UniqueFd> open_folder(const std::string& path, bool make) {
    if (path.empty() || path.find('\0') != std::string::npos)
        return fail(Code::kInvalidArgument, "'{}' is not the name of a directory", path);
    if (make && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        return fail_errno(Code::kInvalidArgument, errno, "cannot make the directory {}", path);
    UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!folder) return fail_errno(errno == ENOENT ? Code::kNotFound : Code::kInvalidArgument, errno, "cannot open the directory {}", path);
    return folder;
}

/// Of the open directory, which ends with the process, and with our descriptor: nothing to clean up.
Result<> lock_folder(const std::string& path, int folder) {
    if (::flock(folder, LOCK_EX | LOCK_NB) == 0) return {};
    if (errno == EWOULDBLOCK)
        return fail(Code::kBusy, "{} is used by another process that is alive; each node needs a directory of its own", path);
    return fail_errno(Code::kInvalidArgument, errno, "cannot lock {}", path);
}

}  // namespace

Result<std::unique_ptr<WarmMemory>> WarmMemory::open(const std::string& directory, uint64_t segment_bytes) {
    MC_ASSIGN_OR_RETURN(UniqueFd folder, open_folder(directory, /*make=*/true));
    MC_RETURN_IF_ERROR(check_folder(directory, folder.get()));
    MC_RETURN_IF_ERROR(lock_folder(directory, folder.get()));
    std::unique_ptr<WarmMemory> memory(new WarmMemory(directory, std::move(folder)));
    const uint64_t bytes = whole_pages(segment_bytes);
    const auto found = memory->find(bytes);
    if (found) return memory;
    if (found.error().code() != Code::kNotFound)
        MC_LOG_WARNING("{}: what an earlier process left is given up: {}", directory, found.error().to_string());
    MC_RETURN_IF_ERROR(memory->make(bytes));
    return memory;
}

WarmMemory::~WarmMemory() {
    keep_in_child(folder_.get());
    // A child that was forked has the lock, too.
    ::flock(folder_.get(), LOCK_UN);
}

Result<UniqueFd> WarmMemory::open_file(const char* name, int flags) const {
    UniqueFd file(::openat(folder_.get(), name, flags | O_CLOEXEC | O_NOFOLLOW, kMode));
    if (!file) return fail_errno(errno == ENOENT ? Code::kNotFound : Code::kUnavailable, errno, "cannot open {}/{}", path_, name);
    return file;
}

Result<> WarmMemory::find(uint64_t segment_bytes) {
    ::unlinkat(folder_.get(), kNewJournalName, 0);
    MC_ASSIGN_OR_RETURN(UniqueFd journal, open_file(kJournalName, O_RDWR));
    struct stat status {};
    if (::fstat(journal.get(), &status) != 0) return fail_errno(Code::kUnavailable, errno, "cannot examine the journal");
    const auto length = static_cast<uint64_t>(status.st_size);
    if (length < warm::kHeaderBytes) return fail(Code::kCorrupt, "a journal of {} bytes", length);
    void* const address = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, journal.get(), 0);
    if (address == MAP_FAILED) return fail_errno(Code::kUnavailable, errno, "cannot map the journal");
    journal_bytes_ = Mapping(address, length);
    MC_ASSIGN_OR_RETURN(header_, warm::parse_header({journal_bytes_.address(), length}));
    if (header_.boot != this_boot()) return fail(Code::kStale, "it was left before the machine was started");
    if (header_.segment_bytes != segment_bytes)
        return fail(Code::kInvalidArgument, "it has {} bytes, and the segment shall have {}", header_.segment_bytes, segment_bytes);
    MC_ASSIGN_OR_RETURN(segment_, open_file(kSegmentName, O_RDWR));
    if (::fstat(segment_.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != segment_bytes ||
        status.st_ino != header_.segment_inode)
        return fail(Code::kCorrupt, "the journal is not one of this segment");
    old_journal_ = std::move(journal);
    found_ = true;
    return {};
}

Result<> WarmMemory::make(uint64_t segment_bytes) {
    remove();
    found_ = false;
    old_journal_.reset();
    journal_bytes_ = Mapping();
    struct statvfs room {};
    if (::fstatvfs(folder_.get(), &room) == 0 && room.f_blocks != 0) {  // one without a size has no limit
        const uint64_t free = static_cast<uint64_t>(room.f_bavail) * room.f_frsize;
        if (free < segment_bytes)
            return fail(Code::kNoSpace, "{} has room for {} bytes, a segment of {} does not fit (mount -o remount,size=...)", path_, free,
                        segment_bytes);
    }
    MC_ASSIGN_OR_RETURN(segment_, open_file(kSegmentName, O_RDWR | O_CREAT | O_EXCL));
    // All of it now: a page that the file system has no room for would be missed when it is touched, by a signal.
    int outcome = 0;
    do outcome = ::fallocate(segment_.get(), 0, 0, static_cast<off_t>(segment_bytes));
    while (outcome != 0 && errno == EINTR);
    struct stat status {};
    if (outcome != 0 || ::fstat(segment_.get(), &status) != 0) {
        const int why = errno;
        remove();
        return fail_errno(Code::kNoSpace, why, "{} has no room for a segment of {} bytes", path_, segment_bytes);
    }
    header_ = {.client = {.high = random_u64(), .low = random_u64() | 1},
               .segment = {.high = random_u64(), .low = random_u64() | 1},
               .segment_bytes = segment_bytes,
               .segment_inode = status.st_ino,
               .boot = this_boot()};
    return {};
}

Result<> WarmMemory::forget() { return make(header_.segment_bytes); }

const Standing& WarmMemory::standing() {
    if (found_ && !std::exchange(standing_read_, true))
        standing_ = replay_journal({journal_bytes_.address(), journal_bytes_.length()}, header_, nullptr, Time::max()).remembered.standing;
    return standing_;
}

Result<SharedMemory> WarmMemory::map() const {
    MemoryFile file(::fcntl(segment_.get(), F_DUPFD_CLOEXEC, 0));
    if (!file) return fail_errno(Code::kNoSpace, errno, "no descriptor for {}", path_);
    MC_ASSIGN_OR_RETURN(Mapping mapping, file.map(/*writable=*/true, header_.segment_bytes));
    return SharedMemory(std::move(mapping), std::move(file));
}

Result<std::optional<FormerLife>> WarmMemory::restore(Catalogue& catalogue, Time now) {
    WarmReplay replay;
    std::optional<FormerLife> restarted;
    if (found_) {
        replay = replay_journal({journal_bytes_.address(), journal_bytes_.length()}, header_, &catalogue, now);
        if (!replay.whole) MC_LOG_WARNING("{}: of the journal's {} bytes the first {} count", path_, journal_bytes_.length(), replay.bytes);
        journal_bytes_ = Mapping();
        if (::ftruncate(old_journal_.get(), static_cast<off_t>(replay.bytes)) != 0)
            return fail_errno(Code::kUnavailable, errno, "cannot cut the journal of {}", path_);
        file_ = std::move(old_journal_);
        end_ = replay.bytes;
        const auto& behind = replay.remembered.behind.all();
        restarted = {.standing = replay.remembered.standing, .behind = {behind.begin(), behind.end()}, .exact = replay.exact};
    }
    journal_ = std::make_unique<WarmJournal>(WarmJournal::Setup{.file = *this, .catalogue = catalogue, .header = header_},
                                             std::move(replay.remembered), replay.bytes);
    if (!found_) MC_RETURN_IF_ERROR(journal_->start_anew(now));
    return restarted;
}

void WarmMemory::remove() noexcept {
    // The journal first: without it the segment is nothing.
    for (const char* const name : {kJournalName, kNewJournalName, kSegmentName}) ::unlinkat(folder_.get(), name, 0);
}

Result<> WarmMemory::append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(end_));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return fail_errno(Code::kNoSpace, errno, "cannot write to the journal of {}", path_);
        end_ += static_cast<uint64_t>(written);
        bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
}

Result<> WarmMemory::begin_anew() {
    MC_ASSIGN_OR_RETURN(file_, open_file(kNewJournalName, O_RDWR | O_CREAT | O_TRUNC));
    end_ = 0;
    return {};
}

Result<> WarmMemory::commit() {
    if (::renameat(folder_.get(), kNewJournalName, folder_.get(), kJournalName) == 0) return {};
    return fail_errno(Code::kUnavailable, errno, "cannot rename the journal of {}", path_);
}

Result<WarmMemory::Cleaned> WarmMemory::clean(const std::string& directory) {
    MC_ASSIGN_OR_RETURN(const UniqueFd folder, open_folder(directory, /*make=*/false));
    MC_RETURN_IF_ERROR(check_folder(directory, folder.get()));
    MC_RETURN_IF_ERROR(lock_folder(directory, folder.get()));
    Cleaned cleaned;
    for (const char* const name : {kJournalName, kNewJournalName, kSegmentName}) {
        struct stat status {};
        if (::fstatat(folder.get(), name, &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (::unlinkat(folder.get(), name, 0) == 0) cleaned.bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    }
    return cleaned;
}

}  // namespace mooncake::store
