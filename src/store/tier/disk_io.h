// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

/// The seam between the tier and the system: the files of one directory. RingDisk (io_uring) and ThreadDisk (pread, pwrite) are the real ones,
/// testing/sim_disk.h is one that fails and crashes on demand.
namespace mooncake::store {

/// Offsets, lengths and addresses of all I/O are multiples of it.
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t round_to_blocks(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

struct DiskOp;

class DiskOpHook {
public:
    /// Once, by a thread of the disk or by the one that submitted. Must not wait for other I/O. The op is its owner's again.
    virtual void on_done(DiskOp& op) noexcept = 0;

protected:
    ~DiskOpHook() = default;
};

/// One read, write or sync. Its owner keeps it, and the memory, until the hook was told.
struct DiskOp {
    enum class Kind : uint8_t { kRead, kWrite, kSync };

    Kind kind = Kind::kRead;
    std::byte* memory = nullptr;
    uint32_t length = 0;
    uint64_t offset = 0;
    DiskOpHook* hook = nullptr;
    int64_t result = 0;      // bytes, may be fewer than asked for; or a negative errno
    int fd = -1;             // set by the file
    DiskOp* next = nullptr;  // for the disk's own lists
};

/// Thread-safe. Closed when destroyed; no op may be under way then.
class DiskFile {
public:
    virtual ~DiskFile() = default;
    /// Never waits for the disk.
    virtual void submit(DiskOp& op) = 0;
    virtual uint64_t size() const = 0;
    /// Cuts it. May wait.
    virtual Result<> truncate(uint64_t bytes) = 0;
};

struct DiskEntry {
    std::string name;
    uint64_t bytes = 0;
};

/// Thread-safe. All calls here may wait for the disk. Must outlive its files.
class Disk {
public:
    virtual ~Disk() = default;

    /// For reading and writing, with this much room reserved where the file system can. Its name lasts after sync_names().
    virtual Result<std::unique_ptr<DiskFile>> create(const std::string& name, uint64_t bytes) = 0;
    /// kNotFound. Also for writing where that is permitted.
    virtual Result<std::unique_ptr<DiskFile>> open(const std::string& name) = 0;
    /// Lasts after sync_names(). Who has it open keeps it. kNotFound.
    virtual Result<> remove(const std::string& name) = 0;
    virtual Result<> sync_names() = 0;
    virtual Result<std::vector<DiskEntry>> list() = 0;
    /// Nobody else may use this directory while we live. kBusy.
    virtual Result<> lock() = 0;
    /// What carries it: "io_uring", "threads".
    virtual std::string_view kind() const = 0;
};

/// What a failed system call means for the tier.
Code disk_code(int system_errno) noexcept;

enum class DiskKind : uint8_t { kAny, kRing, kThreads };
struct DiskOptions {
    std::string path;  // an existing directory; no symbolic link
    DiskKind kind = DiskKind::kAny;
    bool direct = true;  // O_DIRECT, where the file system can
};
/// kAny: io_uring, or threads where that is forbidden; the log says so once.
Result<std::unique_ptr<Disk>> open_disk(const DiskOptions& options);

}  // namespace mooncake::store
