// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/completion.h"
#include "base/error.h"
#include "store/tier/arena.h"
#include "store/tier/disk_io.h"
#include "store/tier/transfer.h"

namespace mooncake::store::log {

/// Writes to the end of a file through aligned buffers, several of which are with the disk at a time. After an error the rest is not written, and
/// finish() tells. Not thread-safe.
class AppendStream {
public:
    static constexpr uint64_t kBufferBytes = 1 << 20;
    static constexpr size_t kBuffers = 8;

    Result<> start();
    ~AppendStream();

    /// The next bytes go here. Only after finish().
    void begin(DiskFile& file, uint64_t offset) noexcept;
    /// Room for so many bytes in one piece, at most a buffer. May wait for the disk. They count from commit() on.
    std::byte* room(uint64_t bytes);
    /// What is left of the current buffer, or a fresh one: at least a byte. May wait for the disk.
    std::span<std::byte> rest();
    void commit(uint64_t bytes) noexcept { filled_ += bytes; }
    /// Hands over what is there, which must be whole blocks: the next room() begins a buffer.
    void flush();
    /// Hands over everything and waits. Errors are told once.
    Result<> finish();

private:
    struct Slot final : TransferHook {
        void on_transferred(Transfer&, int error) noexcept override;
        std::byte* memory = nullptr;
        Completion done;
        Transfer transfer;
        int error = 0;
    };

    void wait_for(Slot& slot);

    Pages pages_;
    std::array<Slot, kBuffers> slots_;
    size_t current_ = 0;
    uint64_t filled_ = 0;  // of the current buffer
    DiskFile* file_ = nullptr;
    uint64_t offset_ = 0;  // where the current buffer goes
    int error_ = 0;
};

}  // namespace mooncake::store::log
