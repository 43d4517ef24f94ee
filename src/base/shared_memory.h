// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"

namespace mooncake {

/// An mmap()ed range; unmapped on destruction. Not thread-safe.
class Mapping {
public:
    Mapping() noexcept = default;
    Mapping(void* address, uint64_t length) noexcept : address_(static_cast<std::byte*>(address)), length_(length) {}
    Mapping(Mapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        std::swap(address_, other.address_);
        std::swap(length_, other.length_);
        return *this;
    }
    ~Mapping();

    std::byte* address() const noexcept { return address_; }
    uint64_t length() const noexcept { return length_; }
    explicit operator bool() const noexcept { return address_ != nullptr; }

private:
    std::byte* address_ = nullptr;
    uint64_t length_ = 0;
};

/// A memfd, or a file on a tmpfs: closed on destruction and in a forked child.
class MemoryFile {
public:
    MemoryFile() noexcept = default;
    /// Takes over a descriptor.
    explicit MemoryFile(int fd) noexcept;
    MemoryFile(MemoryFile&&) noexcept = default;
    MemoryFile& operator=(MemoryFile&& other) noexcept;
    ~MemoryFile() { reset(); }

    /// A new one of this size that can neither shrink nor grow, so nobody who maps it can be hit by SIGBUS. kNoSpace.
    static Result<MemoryFile> create(const std::string& name, uint64_t length);

    int fd() const noexcept { return fd_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    void reset() noexcept;

    /// Whether nobody can make a file shorter under those who map it, or only who could end them anyway: it has a name, on a tmpfs, and belongs to the user we run as.
    static bool keeps_length(int fd) noexcept;
    /// Maps all of it. kRefused when it could shrink under us, or is smaller than `length_min`.
    Result<Mapping> map(bool writable, uint64_t length_min) const;
    /// From now on only the mappings that exist may write.
    void forbid_new_writers() noexcept;

private:
    UniqueFd fd_;
};

/// Memory that other processes of this host can map; given back on destruction. Not thread-safe.
class SharedMemory {
public:
    SharedMemory() noexcept = default;
    SharedMemory(Mapping mapping, MemoryFile file) noexcept : mapping_(std::move(mapping)), file_(std::move(file)) {}

    std::byte* address() const noexcept { return mapping_.address(); }
    uint64_t length() const noexcept { return mapping_.length(); }
    int fd() const noexcept { return file_.fd(); }

private:
    Mapping mapping_;
    MemoryFile file_;
};

enum class HugePages : uint8_t { kDefault, kAdvise };

/// Page-aligned, zeroed, rounded up to whole pages; has no name in any file system. kInvalidArgument, kNoSpace.
Result<SharedMemory> allocate_shared_memory(uint64_t length, HugePages huge_pages = HugePages::kDefault);

}  // namespace mooncake
