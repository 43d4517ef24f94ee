// SPDX-License-Identifier: Apache-2.0
#include "store/tier/append_stream.h"

namespace mooncake::store::log {

Result<> AppendStream::start() {
    MC_ASSIGN_OR_RETURN(pages_, Pages::create(kBuffers * kBufferBytes));
    for (size_t i = 0; i < kBuffers; ++i) slots_[i].memory = pages_.data() + i * kBufferBytes;
    return {};
}

AppendStream::~AppendStream() {
    for (Slot& slot : slots_) wait_for(slot);
}

void AppendStream::begin(DiskFile& file, uint64_t offset) noexcept {
    file_ = &file;
    offset_ = offset;
    filled_ = 0;
    error_ = 0;
}

void AppendStream::Slot::on_transferred(Transfer&, int why) noexcept {
    error = why;
    done.succeed(0);  // releases `error` to who waits
}

void AppendStream::wait_for(Slot& slot) {
    slot.done.wait(Deadline::never());
    if (slot.error != 0 && error_ == 0) error_ = slot.error;
    slot.error = 0;
}

std::byte* AppendStream::room(uint64_t bytes) {
    MC_CHECK(bytes <= kBufferBytes);
    if (filled_ + bytes > kBufferBytes) flush();
    Slot& slot = slots_[current_];
    if (filled_ == 0) wait_for(slot);
    return slot.memory + filled_;
}

std::span<std::byte> AppendStream::rest() {
    std::byte* const at = room(1);
    return {at, kBufferBytes - filled_};
}

void AppendStream::flush() {
    if (filled_ == 0) return;
    MC_CHECK(filled_ % kBlockBytes == 0);
    Slot& slot = slots_[current_];
    if (error_ == 0) {
        slot.done.reset();
        slot.done.add(1);
        slot.transfer.start(*file_, DiskOp::Kind::kWrite, offset_, slot.memory, filled_, slot);
    }
    offset_ += filled_;
    filled_ = 0;
    current_ = (current_ + 1) % kBuffers;
}

Result<> AppendStream::finish() {
    flush();
    for (Slot& slot : slots_) wait_for(slot);
    if (error_ == 0) return {};
    return fail_errno(disk_code(error_), error_, "cannot write");
}

}  // namespace mooncake::store::log
