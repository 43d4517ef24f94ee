// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "store/tier/disk_io.h"

namespace mooncake::store {

/// What the disks of this system have in common: names, room, locks. Those that inherit say how ops are carried out. Thread-safe.
class PosixDisk : public Disk {
public:
    PosixDisk(std::string path, UniqueFd folder, bool direct);
    ~PosixDisk() override;

    Result<std::unique_ptr<DiskFile>> create(const std::string& name, uint64_t bytes) override;
    Result<std::unique_ptr<DiskFile>> open(const std::string& name) override;
    Result<> remove(const std::string& name) override;
    Result<> sync_names() override;
    Result<std::vector<DiskEntry>> list() override;
    Result<> lock() override;

    virtual void submit(DiskOp& op) = 0;

private:
    Result<UniqueFd> open_at(const std::string& name, int flags);

    const std::string path_;  // for people
    const UniqueFd folder_;
    const bool direct_;
    UniqueFd lock_;
};

/// One call of the kernel that may wait: what `op` asks for, by pread, pwrite or fdatasync.
int64_t carry_out(const DiskOp& op) noexcept;

/// kNotSupported: the kernel has no io_uring for us.
Result<std::unique_ptr<Disk>> make_ring_disk(std::string path, UniqueFd folder, bool direct);
Result<std::unique_ptr<Disk>> make_thread_disk(std::string path, UniqueFd folder, bool direct);

}  // namespace mooncake::store
