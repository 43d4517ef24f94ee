// SPDX-License-Identifier: Apache-2.0
#include "store/tier/posix_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/fork.h"
#include "base/log.h"

namespace mooncake::store {

namespace {

constexpr mode_t kMode = 0600;  // values are nobody else's business
constexpr const char* kLockName = "lock";

class PosixFile final : public DiskFile {
public:
    PosixFile(PosixDisk& disk, UniqueFd fd) : disk_(disk), fd_(std::move(fd)) { close_in_child(fd_.get()); }
    ~PosixFile() override { keep_in_child(fd_.get()); }

    void submit(DiskOp& op) override {
        op.fd = fd_.get();
        disk_.submit(op);
    }
    uint64_t size() const override {
        struct stat status {};
        return ::fstat(fd_.get(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
    }
    Result<> truncate(uint64_t bytes) override {
        if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0) return {};
        return fail_errno(disk_code(errno), errno, "cannot cut a file to {} bytes", bytes);
    }

private:
    PosixDisk& disk_;
    const UniqueFd fd_;
};

}  // namespace

Code disk_code(int system_errno) noexcept {
    switch (system_errno) {
        case 0: return Code::kOk;
        case ENOSPC:
        case EDQUOT:
        case EFBIG: return Code::kNoSpace;
        case ENOENT: return Code::kNotFound;
        case ENODATA: return Code::kCorrupt;  // a file that is shorter than it was
        default: return Code::kUnavailable;
    }
}

int64_t carry_out(const DiskOp& op) noexcept {
    int64_t result = 0;
    switch (op.kind) {
        case DiskOp::Kind::kRead: result = ::pread(op.fd, op.memory, op.length, static_cast<off_t>(op.offset)); break;
        case DiskOp::Kind::kWrite: result = ::pwrite(op.fd, op.memory, op.length, static_cast<off_t>(op.offset)); break;
        case DiskOp::Kind::kSync: result = ::fdatasync(op.fd); break;
    }
    return result < 0 ? -errno : result;
}

PosixDisk::PosixDisk(std::string path, UniqueFd folder, bool direct) : path_(std::move(path)), folder_(std::move(folder)), direct_(direct) {
    close_in_child(folder_.get());
}

PosixDisk::~PosixDisk() {
    keep_in_child(folder_.get());
    if (lock_) keep_in_child(lock_.get());
}

Result<UniqueFd> PosixDisk::open_at(const std::string& name, int flags) {
    flags |= O_CLOEXEC | O_NOFOLLOW;
    UniqueFd fd(::openat(folder_.get(), name.c_str(), flags | (direct_ ? O_DIRECT : 0), kMode));
    if (!fd && direct_ && errno == EINVAL) fd.reset(::openat(folder_.get(), name.c_str(), flags & ~O_EXCL, kMode));  // made, but not opened
    if (!fd) return fail_errno(disk_code(errno), errno, "cannot open {}/{}", path_, name);
    return fd;
}

Result<std::unique_ptr<DiskFile>> PosixDisk::create(const std::string& name, uint64_t bytes) {
    MC_ASSIGN_OR_RETURN(UniqueFd fd, open_at(name, O_RDWR | O_CREAT | O_EXCL));
    if (bytes != 0 && ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        const int why = errno;
        ::unlinkat(folder_.get(), name.c_str(), 0);
        return fail_errno(disk_code(why), why, "no room for {} bytes in {}", bytes, path_);
    }
    return std::make_unique<PosixFile>(*this, std::move(fd));
}

Result<std::unique_ptr<DiskFile>> PosixDisk::open(const std::string& name) {
    auto fd = open_at(name, O_RDWR);
    if (!fd && (fd.error().system_errno() == EROFS || fd.error().system_errno() == EACCES)) fd = open_at(name, O_RDONLY);
    if (!fd) return Unexpected(std::move(fd).error());
    return std::make_unique<PosixFile>(*this, std::move(*fd));
}

Result<> PosixDisk::remove(const std::string& name) {
    if (::unlinkat(folder_.get(), name.c_str(), 0) == 0) return {};
    return fail_errno(disk_code(errno), errno, "cannot delete {}/{}", path_, name);
}

Result<> PosixDisk::sync_names() {
    if (::fsync(folder_.get()) == 0) return {};
    return fail_errno(disk_code(errno), errno, "cannot sync {}", path_);
}

Result<std::vector<DiskEntry>> PosixDisk::list() {
    // A descriptor of its own: reading moves its place, and closedir() closes it.
    UniqueFd fd(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    DIR* folder = fd ? ::fdopendir(fd.get()) : nullptr;
    if (folder == nullptr) return fail_errno(disk_code(errno), errno, "cannot list {}", path_);
    (void)fd.release();
    std::vector<DiskEntry> entries;
    errno = 0;
    for (const dirent* entry = ::readdir(folder); entry != nullptr; entry = ::readdir(folder)) {
        struct stat status {};
        if (::fstatat(folder_.get(), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode)) {
            entries.push_back({entry->d_name, static_cast<uint64_t>(status.st_size)});
        }
        errno = 0;
    }
    const int why = errno;
    ::closedir(folder);
    if (why != 0) return fail_errno(disk_code(why), why, "cannot list {}", path_);
    return entries;
}

Result<> PosixDisk::lock() {
    UniqueFd fd(::openat(folder_.get(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode));
    // What is read only is read all the same, by whoever comes.
    if (!fd && errno == EROFS) fd.reset(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return fail_errno(disk_code(errno), errno, "cannot lock {}", path_);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return fail(Code::kBusy, "{} is used by another process", path_);
        return fail_errno(Code::kUnavailable, errno, "cannot lock {}", path_);
    }
    close_in_child(fd.get());
    lock_ = std::move(fd);
    return {};
}

Result<std::unique_ptr<Disk>> open_disk(const DiskOptions& options) {
    if (options.path.empty() || options.path.front() != '/') return fail(Code::kInvalidArgument, "'{}' is no absolute path", options.path);
    if ((options.path + "/").find("/../") != std::string::npos) return fail(Code::kInvalidArgument, "'{}' has .. in it", options.path);
    UniqueFd folder(::open(options.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!folder) return fail_errno(Code::kInvalidArgument, errno, "'{}' is not a directory that can be used", options.path);
    if (options.kind == DiskKind::kThreads) return make_thread_disk(options.path, std::move(folder), options.direct);
    UniqueFd again(::fcntl(folder.get(), F_DUPFD_CLOEXEC, 0));
    auto ring = make_ring_disk(options.path, std::move(folder), options.direct);
    if (ring || options.kind == DiskKind::kRing) return ring;
    static constinit LogLimit once(std::chrono::hours(24 * 365));
    if (once.allow()) MC_LOG_WARNING("no io_uring for {}, reading and writing with threads: {}", options.path, ring.error().to_string());
    return make_thread_disk(options.path, std::move(again), options.direct);
}

}  // namespace mooncake::store
