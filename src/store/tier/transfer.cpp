// SPDX-License-Identifier: Apache-2.0
#include "store/tier/transfer.h"

#include <cerrno>

namespace mooncake::store {

namespace {

class Waiting final : public TransferHook {
public:
    void on_transferred(Transfer&, int error) noexcept override {
        error_ = error;
        completion_.succeed(0);  // releases error_ to who waits
    }
    Result<> run(DiskFile& file, DiskOp::Kind kind, uint64_t offset, std::byte* memory, uint64_t length) {
        completion_.add(1);
        transfer_.start(file, kind, offset, memory, length, *this);
        completion_.wait(Deadline::never());
        if (error_ == 0) return {};
        const std::string_view what = kind == DiskOp::Kind::kRead ? "read" : kind == DiskOp::Kind::kWrite ? "write" : "sync";
        return fail_errno(disk_code(error_), error_, "cannot {} {} bytes at {}", what, length, offset);
    }

private:
    Completion completion_;
    Transfer transfer_;
    int error_ = 0;
};

}  // namespace

void Transfer::start(DiskFile& file, DiskOp::Kind kind, uint64_t offset, std::byte* memory, uint64_t length, TransferHook& hook) {
    MC_CHECK(length <= UINT32_MAX / 2);
    file_ = &file;
    hook_ = &hook;
    tries_ = 0;
    op_ = DiskOp{.kind = kind, .memory = memory, .length = static_cast<uint32_t>(length), .offset = offset, .hook = this};
    file.submit(op_);
}

void Transfer::on_done(DiskOp& op) noexcept {
    if (op.kind == DiskOp::Kind::kSync ? op.result >= 0 : op.result == op.length) return hook_->on_transferred(*this, 0);
    const bool interrupted = op.result == -EINTR || op.result == -EAGAIN;
    if (op.result < 0 && !interrupted) return hook_->on_transferred(*this, static_cast<int>(-op.result));
    // Direct I/O goes on at a block: what was moved of the last one is moved again.
    const auto moved = interrupted
                           ? 0u
                           : static_cast<uint32_t>(op.result / static_cast<int64_t>(kBlockBytes) * static_cast<int64_t>(kBlockBytes));
    if (moved != 0) tries_ = 0;
    if (++tries_ > kTriesMax) return hook_->on_transferred(*this, op.kind == DiskOp::Kind::kRead && !interrupted ? ENODATA : EIO);
    op.memory += moved;
    op.offset += moved;
    op.length -= moved;
    file_->submit(op);
}

Result<> read_and_wait(DiskFile& file, uint64_t offset, std::span<std::byte> into) {
    return Waiting().run(file, DiskOp::Kind::kRead, offset, into.data(), into.size());
}
Result<> write_and_wait(DiskFile& file, uint64_t offset, std::span<std::byte> from) {
    return Waiting().run(file, DiskOp::Kind::kWrite, offset, from.data(), from.size());
}
Result<> sync_and_wait(DiskFile& file) { return Waiting().run(file, DiskOp::Kind::kSync, 0, nullptr, 0); }

}  // namespace mooncake::store
