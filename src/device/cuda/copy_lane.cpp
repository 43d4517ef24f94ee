// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/copy_lane.h"

#include <algorithm>
#include <cstring>

namespace mooncake::cuda {

namespace {

constexpr size_t kBatchCopiesMin = 8;          // fewer go faster one by one
constexpr uint64_t kBatchLengthMax = 1 << 20;  // as do longer ones

std::byte* as_bytes(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

CopyLane::~CopyLane() {
    for (const abi::Event event : under_way_) lanes_.put_event(event);
}

Result<> CopyLane::add(const Copy& copy) {
    if (!gathered_.empty()) {
        Copy& last = gathered_.back();
        const bool neighbours = last.to + last.length == copy.to && last.from + last.length == copy.from &&
                                last.to_offset == copy.to_offset && last.from_offset == copy.from_offset;
        if (neighbours && last.length + copy.length <= kUnitBytes && gathered_bytes_ + copy.length <= kUnitBytes) {
            last.length += copy.length;
            gathered_bytes_ += copy.length;
            return {};
        }
    }
    Copy rest = copy;
    while (rest.length > 0) {
        if (gathered_bytes_ == kUnitBytes || gathered_.size() == kUnitCopies) MC_RETURN_IF_ERROR(flush());
        Copy unit = rest;
        unit.length = std::min(rest.length, kUnitBytes - gathered_bytes_);
        gathered_.push_back(unit);
        gathered_bytes_ += unit.length;
        rest.to += unit.length;
        rest.from += unit.length;
        rest.length -= unit.length;
    }
    return {};
}

Result<bool> CopyLane::issue_batch() {
    const bool fits = std::all_of(gathered_.begin(), gathered_.end(), [](const Copy& copy) { return copy.batched; });
    if ((scope_->copy_batch == nullptr && scope_->copy_batch_old == nullptr) || !fits || !lanes_.batches() ||
        gathered_.size() < kBatchCopiesMin || gathered_bytes_ / gathered_.size() > kBatchLengthMax)
        return false;
    std::vector<abi::DevicePointer> to, from;
    std::vector<size_t> lengths;
    to.reserve(gathered_.size());
    from.reserve(gathered_.size());
    lengths.reserve(gathered_.size());
    for (const Copy& copy : gathered_) {
        to.push_back(copy.to + static_cast<uint64_t>(copy.to_offset));
        from.push_back(copy.from + static_cast<uint64_t>(copy.from_offset));
        lengths.push_back(copy.length);
    }
    abi::CopyAttributes attributes{.source_order = abi::kSourceOrderStream};
    size_t first = 0, failed = 0;
    unmarked_ = true;
    const abi::Status status = scope_->copy_batch != nullptr
                                   ? scope_->copy_batch(to.data(), from.data(), lengths.data(), to.size(), &attributes, &first, 1, stream_)
                                   : scope_->copy_batch_old(to.data(), from.data(), lengths.data(), to.size(), &attributes, &first, 1,
                                                            &failed, stream_);
    if (status == abi::kSuccess) return true;
    if (status != abi::kNotSupported && status != abi::kInvalidValue)
        return Unexpected(driver_.failure(lanes_.device(), "cuMemcpyBatchAsync", status));
    lanes_.stop_batches();  // one by one tells whether the addresses or the call itself was wrong
    return false;
}

Result<> CopyLane::issue() {
    MC_ASSIGN_OR_RETURN(const bool issued, issue_batch());
    if (issued) return {};
    unmarked_ = true;
    for (const Copy& copy : gathered_)
        MC_RETURN_IF_ERROR(driver_.check(lanes_.device(), "cuMemcpyAsync", scope_->copy_async(copy.to, copy.from, copy.length, stream_)));
    return {};
}

Result<abi::Event> CopyLane::mark() {
    MC_RETURN_IF_ERROR(issue());
    gathered_.clear();
    gathered_bytes_ = 0;
    MC_ASSIGN_OR_RETURN(const abi::Event event, lanes_.take_event(scope_));
    if (const abi::Status status = scope_->event_record(event, stream_); status != abi::kSuccess) {
        lanes_.put_event(event);
        return Unexpected(driver_.failure(lanes_.device(), "cuEventRecord", status));
    }
    unmarked_ = false;
    return event;
}

Result<> CopyLane::flush() {
    if (gathered_.empty()) return {};
    MC_ASSIGN_OR_RETURN(const abi::Event event, mark());
    under_way_.push_back(event);
    while (under_way_.size() > 1) MC_RETURN_IF_ERROR(wait_oldest());
    return {};
}

Result<> CopyLane::wait_oldest() {
    MC_RETURN_IF_ERROR(lanes_.wait(scope_, under_way_.front()));
    lanes_.put_event(under_way_.front());
    under_way_.pop_front();
    return {};
}

Result<> CopyLane::end(Result<> done) {
    if (done) done = flush();
    if (!done) gathered_.clear();
    if (unmarked_ && !driver_.dead(lanes_.device()) && !driver_.silent()) {
        // After an error: what is on the stream still moves bytes.
        if (auto event = mark(); event) under_way_.push_back(*event);
        else driver_.bury(lanes_.device(), abi::kNotReady);
    }
    while (!under_way_.empty()) {
        if (auto waited = lanes_.settle(scope_, under_way_.front()); !waited && done) done = std::move(waited);
        lanes_.put_event(under_way_.front());
        under_way_.pop_front();
    }
    return done;
}

Result<> StagedCopy::begin() {
    MC_ASSIGN_OR_RETURN(pair_, lanes_.take_pair(scope_));
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i].memory = pair_.slots[i];
    return {};
}

Result<> StagedCopy::add(uint64_t to, uint64_t from, uint64_t length, bool batched) {
    for (uint64_t done = 0; done < length;) {
        Slot* slot = &slots_[now_];
        if (slot->used == Lanes::kSlotBytes) {
            MC_RETURN_IF_ERROR(turn());
            slot = &slots_[now_];
        }
        const uint64_t now = std::min(length - done, Lanes::kSlotBytes - slot->used);
        const auto staging = reinterpret_cast<uint64_t>(slot->memory + slot->used);
        if (to_host_) {
            slot->parts.push_back({.host = as_bytes(to + done), .offset = slot->used, .length = now});
            MC_RETURN_IF_ERROR(lane_.add({.to = staging, .from = from + done, .length = now, .batched = batched}));
        } else {
            std::memcpy(slot->memory + slot->used, as_bytes(from + done), now);
            MC_RETURN_IF_ERROR(lane_.add({.to = to + done, .from = staging, .length = now, .batched = batched}));
        }
        slot->used += now;
        done += now;
    }
    return {};
}

Result<> StagedCopy::turn() {
    MC_ASSIGN_OR_RETURN(slots_[now_].event, lane_.mark());
    now_ ^= 1;
    return finish(slots_[now_]);
}

Result<> StagedCopy::finish(Slot& slot) {
    if (slot.event == nullptr) return {};
    MC_RETURN_IF_ERROR(lanes_.wait(scope_, slot.event));
    lanes_.put_event(slot.event);
    slot.event = nullptr;
    for (const HostPart& part : slot.parts) std::memcpy(part.host, slot.memory + part.offset, part.length);
    slot.parts.clear();
    slot.used = 0;
    return {};
}

Result<> StagedCopy::flush() {
    if (slots_[now_].used > 0) MC_RETURN_IF_ERROR(turn());
    MC_RETURN_IF_ERROR(finish(slots_[now_]));
    return finish(slots_[now_ ^ 1]);
}

Result<> StagedCopy::end(Result<> done) {
    done = lane_.end(std::move(done));
    for (Slot& slot : slots_) {
        if (slot.event == nullptr) continue;
        // After an error: the GPU still has this slot.
        if (auto waited = lanes_.settle(scope_, slot.event); !waited && done) done = std::move(waited);
        lanes_.put_event(slot.event);
    }
    if (driver_.dead(lanes_.device()) || driver_.silent()) lanes_.lose_pair();
    else lanes_.put_pair(pair_);
    return done;
}

}  // namespace mooncake::cuda
