// SPDX-License-Identifier: Apache-2.0
#include "rpc/call_table.h"

#include <utility>

namespace mooncake::rpc {

namespace {

constexpr size_t kSlotsMin = 16;
constexpr uint64_t kSequenceMask = (uint64_t{1} << CallTable::kSequenceBits) - 1;

}  // namespace

void PendingCall::finish(Result<Bytes> result) {
    if (waiter == nullptr) return callback(std::move(result));
    waiter->result = std::move(result);
    waiter->done.succeed(0);
}

CallTable::CallTable(uint64_t number) : number_(number), slots_(kSlotsMin) { MC_CHECK(number <= kNumberMax); }

uint64_t CallTable::insert(PendingCall call) {
    if (size_ * 2 >= slots_.size()) grow();
    PendingCall* slot = nullptr;
    do {
        sequence_ = (sequence_ + 1) & kSequenceMask;
        slot = &slots_[sequence_ & (slots_.size() - 1)];
    } while (slot->id != 0 || sequence_ == 0);
    call.id = number_ << kSequenceBits | sequence_;
    *slot = std::move(call);
    ++size_;
    return slot->id;
}

std::optional<PendingCall> CallTable::take(uint64_t id) {
    PendingCall& slot = slots_[id & (slots_.size() - 1)];
    if (slot.id != id || id == 0) return std::nullopt;
    return remove(slot);
}

std::shared_ptr<const PartCallback> CallTable::on_part(uint64_t id) const {
    const PendingCall& slot = slots_[id & (slots_.size() - 1)];
    return slot.id == id && id != 0 ? slot.on_part : nullptr;
}

PendingCall CallTable::remove(PendingCall& slot) {
    --size_;
    return std::exchange(slot, PendingCall());
}

std::vector<PendingCall> CallTable::take_all() {
    std::vector<PendingCall> calls;
    calls.reserve(size_);
    for (PendingCall& slot : slots_)
        if (slot.id != 0) calls.push_back(remove(slot));
    return calls;
}

std::vector<PendingCall> CallTable::take_expired(Time now) {
    std::vector<PendingCall> calls;
    for (PendingCall& slot : slots_)
        if (slot.id != 0 && slot.waiter == nullptr && slot.deadline.at() <= now) calls.push_back(remove(slot));
    return calls;
}

Deadline CallTable::next_deadline() const {
    Deadline next = Deadline::never();
    for (const PendingCall& slot : slots_)
        if (slot.id != 0 && slot.waiter == nullptr) next = next.earlier(slot.deadline);
    return next;
}

void CallTable::grow() {
    // Ids that differ in their lower n bits also differ in their lower n + 1: nothing can collide.
    std::vector<PendingCall> larger(slots_.size() * 2);
    for (PendingCall& slot : slots_)
        if (slot.id != 0) larger[slot.id & (larger.size() - 1)] = std::move(slot);
    slots_ = std::move(larger);
}

}  // namespace mooncake::rpc
