// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/completion.h"
#include "base/error.h"
#include "store/tier/disk_io.h"

namespace mooncake::store {

class Transfer;

class TransferHook {
public:
    /// Once; as DiskOpHook::on_done(). `error`: 0, or an errno.
    virtual void on_transferred(Transfer& transfer, int error) noexcept = 0;

protected:
    ~TransferHook() = default;
};

/// Carries one op to its end: goes on after short reads and writes and after interruptions, so that those above see all of it or an errno. A read that
/// meets the end of the file fails with ENODATA. Kept by its owner until the hook was told, then usable again. Not thread-safe.
class Transfer final : private DiskOpHook {
public:
    void start(DiskFile& file, DiskOp::Kind kind, uint64_t offset, std::byte* memory, uint64_t length, TransferHook& hook);

private:
    static constexpr int kTriesMax = 8;  // without a block of progress

    void on_done(DiskOp& op) noexcept override;

    DiskFile* file_ = nullptr;
    TransferHook* hook_ = nullptr;
    int tries_ = 0;
    DiskOp op_;
};

/// The same for a caller who waits; errors as disk_code() says.
Result<> read_and_wait(DiskFile& file, uint64_t offset, std::span<std::byte> into);
Result<> write_and_wait(DiskFile& file, uint64_t offset, std::span<std::byte> from);
Result<> sync_and_wait(DiskFile& file);

}  // namespace mooncake::store
