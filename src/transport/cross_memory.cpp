// SPDX-License-Identifier: Apache-2.0
#include "transport/cross_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace mooncake {

namespace {

/// One side of the copy. Neighbours are joined whatever the other side looks like: to the kernel both are streams of bytes.
class Vector {
public:
    void add(uint64_t address, uint64_t length) noexcept {
        if (count_ > 0 && end_ == address) {
            entries_[count_ - 1].iov_len += length;
        } else {
            entries_[count_++] = {.iov_base = reinterpret_cast<void*>(address), .iov_len = length};
        }
        end_ = address + length;
    }
    const iovec* data() const noexcept { return entries_.data(); }
    unsigned long count() const noexcept { return count_; }

private:
    std::array<iovec, kCrossPiecesMax> entries_;  // only the first count_ are set
    size_t count_ = 0;
    uint64_t end_ = 0;
};

uint64_t address_of(const std::byte* pointer) noexcept { return reinterpret_cast<uint64_t>(pointer); }

/// Copies what is left from `offset` in the first piece on. Bytes, or -1 with errno.
ssize_t copy_once(pid_t pid, Direction direction, std::span<const CrossPiece> pieces, uint64_t offset) noexcept {
    Vector local, remote;
    for (const CrossPiece& piece : pieces) {
        local.add(address_of(piece.local) + offset, piece.length - offset);
        remote.add(piece.remote + offset, piece.length - offset);
        offset = 0;
    }
    return direction == Direction::kRead ? ::process_vm_readv(pid, local.data(), local.count(), remote.data(), remote.count(), 0)
                                         : ::process_vm_writev(pid, local.data(), local.count(), remote.data(), remote.count(), 0);
}

/// True when the source of the byte that could not be copied can be read, so that the fault is at the destination.
bool readable(pid_t pid, uint64_t address) noexcept {
    std::byte byte{};
    const iovec here{.iov_base = &byte, .iov_len = 1};
    const iovec there{.iov_base = reinterpret_cast<void*>(address), .iov_len = 1};
    return ::process_vm_readv(pid, &here, 1, &there, 1, 0) == 1;
}

CrossResult::Fault side_at_fault(pid_t pid, Direction direction, const CrossPiece& piece, uint64_t offset) noexcept {
    using Fault = CrossResult::Fault;
    if (direction == Direction::kRead) return readable(pid, piece.remote + offset) ? Fault::kLocal : Fault::kRemote;
    return readable(::getpid(), address_of(piece.local) + offset) ? Fault::kRemote : Fault::kLocal;
}

}  // namespace

CrossResult cross_copy(pid_t pid, Direction direction, std::span<const CrossPiece> pieces) noexcept {
    MC_CHECK(pieces.size() <= kCrossPiecesMax);
    size_t piece = 0;
    uint64_t offset = 0;
    while (piece < pieces.size()) {
        const ssize_t copied = copy_once(pid, direction, pieces.subspan(piece), offset);
        if (copied <= 0) {
            const int error = copied < 0 ? errno : EFAULT;
            if (error != EFAULT) return {.piece = piece, .fault = CrossResult::Fault::kSystem, .error = error};
            return {.piece = piece, .fault = side_at_fault(pid, direction, pieces[piece], offset), .error = EFAULT};
        }
        // A short count ends exactly at the first byte that could not be copied.
        for (uint64_t rest = static_cast<uint64_t>(copied); rest > 0;) {
            const uint64_t left = pieces[piece].length - offset;
            if (rest < left) {
                offset += rest;
                break;
            }
            rest -= left;
            offset = 0;
            ++piece;
        }
    }
    return {.piece = pieces.size()};
}

}  // namespace mooncake
