// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/copy_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error_copy.h"

namespace mooncake::cuda {

namespace {

/// When one call for several copies is faster than one for each.
struct Worth {
    size_t copies_min = 0;
    uint64_t length_max = 0;  // on average
};
// By direction: to the host, to the GPU, within it. A batch of copies within a GPU costs as much as its copies.
constexpr std::array<Worth, 3> kBatch{Worth{8, 1 << 20}, Worth{8, 1 << 20}, Worth{8, 0}};
constexpr Worth kKernel{16, 256 << 10};  // in all directions

std::byte* as_bytes(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

CopyLane::~CopyLane() {
    if (unmarked_ || units_ > 0) (void)end(Unexpected(out_of_memory()));
    if (list_ != nullptr) lanes_.put_list(list_);
    if (event_ != nullptr) lanes_.put_event(event_);
}

Result<> CopyLane::take_event() {
    if (event_ != nullptr) return {};
    MC_ASSIGN_OR_RETURN(event_, lanes_.take_event(scope_));
    return {};
}

void CopyLane::push(const Unit& unit) noexcept {
    MC_CHECK(units_ < kUnitsMax);
    under_way_[units_++] = unit;
}

void CopyLane::pop() noexcept {
    release(under_way_.front());
    std::move(under_way_.begin() + 1, under_way_.begin() + static_cast<ptrdiff_t>(units_), under_way_.begin());
    under_way_[--units_] = {};
}

void CopyLane::release(Unit& unit) noexcept {
    if (unit.event != nullptr) lanes_.put_event(unit.event);
    if (unit.list != nullptr) lanes_.put_list(unit.list);
    unit = {};
}

Result<> CopyLane::add(const Copy& copy) {
    if (!gathered_.empty()) {
        Copy& last = gathered_.back();
        const bool neighbours = last.to + last.length == copy.to && last.from + last.length == copy.from &&
                                last.to_offset == copy.to_offset && last.from_offset == copy.from_offset &&
                                last.to_memory == copy.to_memory && last.from_memory == copy.from_memory;
        if (neighbours && copy.length <= limits_.bytes - gathered_bytes_) {
            last.length += copy.length;
            gathered_bytes_ += copy.length;
            return {};
        }
    }
    Copy rest = copy;
    while (rest.length > 0) {
        if (gathered_bytes_ == limits_.bytes || gathered_.size() == limits_.copies) MC_RETURN_IF_ERROR(flush());
        Copy unit = rest;
        unit.length = std::min(rest.length, limits_.bytes - gathered_bytes_);
        gathered_.push_back(unit);
        gathered_bytes_ += unit.length;
        rest.to += unit.length;
        rest.from += unit.length;
        rest.length -= unit.length;
    }
    return {};
}

Result<bool> CopyLane::issue_kernel() {
    const auto fits = [](const Copy& copy) { return copy.by_kernel; };
    if (!worth_a_kernel(gathered_.size(), gathered_bytes_) || !std::all_of(gathered_.begin(), gathered_.end(), fits) ||
        !lanes_.kernel().ready(scope_))
        return false;
    // So long that no list needs more room than there is.
    const uint64_t most = std::max(CopyKernel::kPieceBytes, gathered_bytes_ / (CopyKernel::kPiecesMax / 2) / 16 * 16 + 16);
    static_assert(kAcross.copies + CopyKernel::kPiecesMax / 2 <= CopyKernel::kPiecesMax && kInside.copies == kAcross.copies);
    auto list = lanes_.take_list(scope_);
    if (!list && (driver_.dead(lanes_.device()) || driver_.silent())) return Unexpected(std::move(list).error());
    if (!list) return false;
    list_ = *list;
    size_t count = 0;
    for (const Copy& copy : gathered_)
        for (uint64_t at = 0; at < copy.length; at += most)
            list_[count++] = {.from = copy.from + static_cast<uint64_t>(copy.from_offset) + at,
                              .to = copy.to + static_cast<uint64_t>(copy.to_offset) + at,
                              .length = std::min(most, copy.length - at)};
    unmarked_ = true;
    return launch(count);
}

bool CopyLane::worth_a_kernel(size_t copies, uint64_t bytes) noexcept {
    return copies >= kKernel.copies_min && bytes / copies <= kKernel.length_max;
}

Result<bool> CopyLane::launch(size_t count) {
    return lanes_.kernel().launch(scope_, stream_, std::span(list_, count),
                                  direction_ == Direction::kWithin ? CopyKernel::kBlocksInside : CopyKernel::kBlocksAcross);
}

Result<> CopyLane::add_pieces(std::span<const CopyPart> parts, int64_t to_offset, int64_t from_offset) {
    constexpr size_t kUnitPieces = 2048;  // the CPU writes the next list meanwhile
    static_assert(kUnitPieces <= CopyKernel::kPiecesMax);
    size_t count = 0;
    uint64_t bytes = 0;
    for (const CopyPart& part : parts) {
        const uint64_t from = reinterpret_cast<uint64_t>(part.from) + static_cast<uint64_t>(from_offset);
        const uint64_t to = reinterpret_cast<uint64_t>(part.to) + static_cast<uint64_t>(to_offset);
        for (uint64_t at = 0; at < part.length;) {
            if (list_ == nullptr) {
                MC_ASSIGN_OR_RETURN(list_, lanes_.take_list(scope_));
            }
            const uint64_t length = std::min(CopyKernel::kPieceBytes, part.length - at);
            list_[count++] = {.from = from + at, .to = to + at, .length = length};
            bytes += length;
            at += length;
            if (count < kUnitPieces && bytes < limits_.bytes) continue;
            MC_RETURN_IF_ERROR(flush_list(count));
            count = bytes = 0;
        }
    }
    return count == 0 ? Result<>() : flush_list(count);
}

Result<> CopyLane::flush_list(size_t count) {
    MC_RETURN_IF_ERROR(take_event());
    unmarked_ = true;
    MC_ASSIGN_OR_RETURN(const bool launched, launch(count));
    for (size_t i = 0; i < count && !launched; ++i)
        MC_RETURN_IF_ERROR(
            driver_.check(lanes_.device(), "cuMemcpyAsync", scope_->copy_async(list_[i].to, list_[i].from, list_[i].length, stream_)));
    MC_ASSIGN_OR_RETURN(const Unit unit, mark());
    push(unit);
    while (units_ > 1) MC_RETURN_IF_ERROR(wait_oldest());
    return {};
}

Result<bool> CopyLane::issue_batch() {
    const Worth& worth = kBatch[static_cast<size_t>(direction_)];
    const bool fits = std::all_of(gathered_.begin(), gathered_.end(), [](const Copy& copy) { return copy.batched; });
    if ((scope_->copy_batch == nullptr && scope_->copy_batch_old == nullptr) || !fits || !lanes_.batches() ||
        gathered_.size() < worth.copies_min || gathered_bytes_ / gathered_.size() > worth.length_max)
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
    MC_ASSIGN_OR_RETURN(bool issued, issue_kernel());
    if (issued) return {};
    MC_ASSIGN_OR_RETURN(issued, issue_batch());
    if (issued) return {};
    unmarked_ = true;
    for (const Copy& copy : gathered_)
        MC_RETURN_IF_ERROR(driver_.check(lanes_.device(), "cuMemcpyAsync", scope_->copy_async(copy.to, copy.from, copy.length, stream_)));
    return {};
}

Result<CopyLane::Unit> CopyLane::mark() {
    MC_RETURN_IF_ERROR(take_event());
    MC_RETURN_IF_ERROR(issue());
    gathered_.clear();
    gathered_bytes_ = 0;
    MC_RETURN_IF_ERROR(driver_.check(lanes_.device(), "cuEventRecord", scope_->event_record(event_, stream_)));
    unmarked_ = false;
    return Unit{.event = std::exchange(event_, nullptr), .list = std::exchange(list_, nullptr)};
}

Result<> CopyLane::flush() {
    if (gathered_.empty()) return {};
    MC_ASSIGN_OR_RETURN(const Unit unit, mark());
    push(unit);
    while (units_ > 1) MC_RETURN_IF_ERROR(wait_oldest());
    return {};
}

Result<> CopyLane::wait_oldest() {
    MC_RETURN_IF_ERROR(lanes_.wait(scope_, under_way_.front().event));
    pop();
    return {};
}

Result<> CopyLane::end(Result<> done) noexcept {
    if (done) done = contained([this] { return flush(); });
    if (!done) gathered_.clear();
    if (unmarked_ && !driver_.dead(lanes_.device()) && !driver_.silent()) {
        // After an error: what is on the stream still moves bytes.
        if (auto unit = contained([this] { return mark(); }); unit) push(*unit);
        else driver_.bury(lanes_.device(), abi::kNotReady);
    }
    unmarked_ = false;
    while (units_ > 0) {
        if (auto waited = lanes_.settle(scope_, under_way_.front().event); !waited && done) done = std::move(waited);
        pop();
    }
    // Of a kernel on a GPU that was lost: it may still be read, but no more than that.
    if (list_ != nullptr) lanes_.put_list(std::exchange(list_, nullptr));
    return done;
}

StagedCopy::~StagedCopy() {
    if (ring_.memory != nullptr) (void)end(Unexpected(out_of_memory()));
}

Result<> StagedCopy::begin() {
    MC_ASSIGN_OR_RETURN(ring_, lanes_.take_ring(scope_));
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i].memory = ring_.slot(i);
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
        CopyLane::Copy copy{.length = now, .batched = batched, .by_kernel = batched};
        if (to_host_) {
            slot->parts.push_back({.host = as_bytes(to + done), .offset = slot->used, .length = now});
            copy.to = staging;
            copy.from = from + done;
        } else {
            std::memcpy(slot->memory + slot->used, as_bytes(from + done), now);
            copy.to = to + done;
            copy.from = staging;
        }
        MC_RETURN_IF_ERROR(lane_.add(copy));
        slot->used += now;
        done += now;
    }
    return {};
}

Result<> StagedCopy::turn() {
    MC_ASSIGN_OR_RETURN(slots_[now_].unit, lane_.mark());
    now_ = (now_ + 1) % slots_.size();
    return finish(slots_[now_]);
}

Result<> StagedCopy::finish(Slot& slot) {
    if (slot.unit.event == nullptr) return {};
    MC_RETURN_IF_ERROR(lanes_.wait(scope_, slot.unit.event));
    lane_.release(slot.unit);
    for (const HostPart& part : slot.parts) std::memcpy(part.host, slot.memory + part.offset, part.length);
    slot.parts.clear();
    slot.used = 0;
    return {};
}

Result<> StagedCopy::flush() {
    if (slots_[now_].used > 0) MC_RETURN_IF_ERROR(turn());
    for (size_t i = 0; i < slots_.size(); ++i) MC_RETURN_IF_ERROR(finish(slots_[(now_ + i) % slots_.size()]));
    return {};
}

Result<> StagedCopy::end(Result<> done) noexcept {
    done = lane_.end(std::move(done));
    for (Slot& slot : slots_) {
        if (slot.unit.event == nullptr) continue;
        // After an error: the GPU still has this slot.
        if (auto waited = lanes_.settle(scope_, slot.unit.event); !waited && done) done = std::move(waited);
        lane_.release(slot.unit);
    }
    if (driver_.dead(lanes_.device()) || driver_.silent()) lanes_.lose_ring();
    else lanes_.put_ring(ring_);
    ring_ = {};
    return done;
}

}  // namespace mooncake::cuda
