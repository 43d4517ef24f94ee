// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/fork.h"
#include "base/pages.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace mooncake {

Mapping::~Mapping() {
    if (address_ != nullptr) ::munmap(address_, length_);
}

MemoryFile::MemoryFile(int fd) noexcept : fd_(fd) { close_in_child(fd); }

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
    if (this == &other) return *this;
    reset();
    fd_ = std::move(other.fd_);
    return *this;
}

void MemoryFile::reset() noexcept {
    if (fd_) keep_in_child(fd_.get());
    fd_.reset();
}

Result<MemoryFile> MemoryFile::create(const std::string& name, uint64_t length) {
    MemoryFile file(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file) return fail_errno(Code::kNoSpace, errno, "cannot create shared memory");
    if (length > static_cast<uint64_t>(INT64_MAX) || ::ftruncate(file.fd(), static_cast<off_t>(length)) != 0)
        return fail_errno(Code::kNoSpace, errno, "cannot size shared memory to {} bytes", length);
    if (::fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return fail_errno(Code::kNotSupported, errno, "cannot seal shared memory");
    return file;
}

bool MemoryFile::keeps_length(int fd) noexcept {
    const int seals = ::fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) return true;
    struct stat status {};
    struct statfs system {};
    return ::fstat(fd, &status) == 0 && ::fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC && S_ISREG(status.st_mode) &&
           status.st_nlink != 0 && status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

Result<Mapping> MemoryFile::map(bool writable, uint64_t length_min) const {
    if (!keeps_length(fd_.get())) return fail(Code::kRefused, "shared memory that may shrink is not mapped");
    struct stat status {};
    struct statfs system {};
    if (::fstat(fd_.get(), &status) != 0 || ::fstatfs(fd_.get(), &system) != 0)
        return fail_errno(Code::kInternal, errno, "cannot examine shared memory");
    // Where somebody punches a hole a new page is made, but of huge pages there may be none left.
    if (system.f_type == HUGETLBFS_MAGIC) return fail(Code::kRefused, "shared memory of reserved huge pages is not mapped");
    const auto length = static_cast<uint64_t>(status.st_size);
    if (length == 0 || length < length_min)
        return fail(Code::kRefused, "shared memory of {} bytes where {} are needed", length, length_min);
    void* const address = ::mmap(nullptr, length, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd_.get(), 0);
    if (address == MAP_FAILED) return fail_errno(Code::kNoSpace, errno, "cannot map {} bytes of shared memory", length);
    return Mapping(address, length);
}

void MemoryFile::forbid_new_writers() noexcept {
    // Kernels before 5.1 do not know it; then only good manners protect the memory.
    ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

Result<SharedMemory> allocate_shared_memory(uint64_t length, HugePages huge_pages) {
    const uint64_t page = page_bytes();
    if (length == 0 || length > static_cast<uint64_t>(INT64_MAX) - page)
        return fail(Code::kInvalidArgument, "cannot allocate {} bytes", length);
    length = (length + page - 1) / page * page;
    MC_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::create("mooncake", length));
    MC_ASSIGN_OR_RETURN(Mapping mapping, file.map(true, length));
    if (huge_pages == HugePages::kAdvise) ::madvise(mapping.address(), length, MADV_HUGEPAGE);
    return SharedMemory(std::move(mapping), std::move(file));
}

}  // namespace mooncake
