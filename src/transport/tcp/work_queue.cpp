// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/work_queue.h"

#include <algorithm>
#include <new>

#include "base/error_copy.h"
#include "transport/tcp/policy.h"

namespace mooncake::tcp {

Finished& FinishedList::add() { return count_ < first_.size() ? first_[count_++] : more_.emplace_back(); }

void FinishedList::succeed(Completion* completion, uint32_t operations, uint64_t bytes) {
    if (Finished* const before = last(); before != nullptr && before->completion == completion && !before->failed) {
        before->operations += operations;
        before->bytes += bytes;
        return;
    }
    add() = {.completion = completion, .operations = operations, .bytes = bytes};
}

void FinishedList::fail(Completion* completion, uint32_t operations, const Error& error) {
    if (!try_fail(completion, operations, error)) throw std::bad_alloc();
}

bool FinishedList::try_fail(Completion* completion, uint32_t operations, const Error& error) noexcept {
    if (Finished* const before = last(); before != nullptr && before->completion == completion && before->failed) {
        before->operations += operations;
        return true;
    }
    try {
        add() = {.completion = completion, .operations = operations, .error = copy_error(error), .failed = true};
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

void FinishedList::deliver() noexcept {
    const auto tell = [](Finished& item) {
        if (item.failed) item.completion->fail(std::move(item.error), item.operations);
        else item.completion->succeed(item.bytes, item.operations);
    };
    for (size_t i = 0; i < count_; ++i) tell(first_[i]);
    for (Finished& item : more_) tell(item);
    count_ = 0;
    more_.clear();
}

bool WorkQueue::push(Direction direction, std::span<const Slice> slices) {
    Lock lock(mutex_);
    if (closed_) return false;
    if (slices.empty()) return true;
    entries_.push_back({.direction = direction, .slices = slices});
    count_.store(entries_.size(), std::memory_order_seq_cst);
    return true;
}

void Flight::begin(bool checked) {
    out.start(checked && direction == Direction::kWrite);
    local.clear();
    remote.clear();
    unseen.clear();
    mapped = true;
}

void Flight::append(const Slice& slice, uint64_t from, uint64_t length) {
    Pieces& places = direction == Direction::kWrite ? out.payload() : local;
    places.append(slice.local + from, length);
    if (slice.copier != nullptr && !shown) unseen.push_back({slice.copier, slice.local + from, length});
    mapped = mapped && slice.region != nullptr;
    // The peer judges the slice, not the part: it refuses all of it or nothing.
    const Slice& whole = slice.whole != nullptr ? *slice.whole : slice;
    if (part) remote = {{.address = whole.remote, .length = whole.length}, {.address = slice.remote + from, .length = length}};
    else if (!remote.empty() && remote.back().address + remote.back().length == slice.remote) remote.back().length += length;
    else remote.push_back({.address = slice.remote, .length = length});
}

void Flight::build(bool checked) {
    begin(checked);
    if (part) return append(source.front(), offset, bytes);
    for (const Slice& slice : source) append(slice, 0, slice.length);
}

void WorkQueue::take_whole_slices(Entry& entry, Flight& flight) {
    size_t taken = 0;
    for (; taken < entry.slices.size() && taken < kDescriptorsMax; ++taken) {
        const Slice& slice = entry.slices[taken];
        if (slice.completion != flight.completion || slice.length > kMessageBytes - flight.bytes || slice.whole != nullptr) break;
        flight.append(slice, 0, slice.length);
        flight.bytes += static_cast<uint32_t>(slice.length);
    }
    flight.operations = static_cast<uint32_t>(taken);
    flight.source = entry.slices.first(taken);
    entry.slices = entry.slices.subspan(taken);
}

void WorkQueue::take_part(Entry& entry, Flight& flight) {
    // Parts of about the same size, on page borders: a short one at the end would cost as much as a long one.
    const Slice& slice = entry.slices.front();
    const uint64_t left = slice.length - entry.offset;
    const uint64_t parts = (left + kMessageBytes - 1) / kMessageBytes;
    const uint64_t even = ((left + parts - 1) / parts + kPageBytes - 1) / kPageBytes * kPageBytes;
    const auto taken = static_cast<uint32_t>(std::min({left, even, uint64_t{kMessageBytes}}));
    flight.part = true;
    flight.append(slice, entry.offset, taken);
    flight.source = entry.slices.first(1);
    flight.offset = entry.offset;
    flight.bytes = taken;
    flight.operations = 1;
    if (taken < left) {
        // The part becomes an operation of its own; the slice itself still stands for the rest.
        slice.completion->add(1);
        entry.offset += taken;
    } else {
        entry.slices = entry.slices.subspan(1);
        entry.offset = 0;
    }
}

/// Ends what is left of the first slice if a part of it was cut and its completion has failed since: there may be no end of refusals, since the
/// whole was judged with the part. True when it did.
bool WorkQueue::drop_first(FinishedList& finished) {
    Entry& entry = entries_.front();
    const Slice& slice = entry.slices.front();
    if (entry.offset == 0 || !slice.completion->failed()) return false;
    finished.fail(slice.completion, 1, error(Code::kCancelled, "tcp: a part of it failed"));  // never seen: the first error stands
    entry.slices = entry.slices.subspan(1);
    entry.offset = 0;
    if (entry.slices.empty()) entries_.pop_front();
    count_.store(entries_.size(), std::memory_order_seq_cst);
    return true;
}

bool WorkQueue::pull(Flight& flight, bool checked, FinishedList& finished) {
    if (empty()) return false;
    Lock lock(mutex_);
    while (!entries_.empty() && drop_first(finished)) continue;
    if (entries_.empty() || closed_) return false;
    // Its turn is over with this. First, as there may be no memory for any of it: then nothing was taken.
    if (entries_.size() > 1) {
        entries_.push_back(entries_.front());
        entries_.pop_front();
    }
    Entry& entry = entries_.back();
    flight.direction = entry.direction;
    flight.completion = entry.slices.front().completion;
    flight.bytes = 0;
    flight.part = false;
    flight.shown = false;
    flight.begin(checked);
    if (entry.slices.front().length > kMessageBytes || entry.slices.front().whole != nullptr) take_part(entry, flight);
    else take_whole_slices(entry, flight);
    if (entry.slices.empty()) {
        entries_.pop_back();
        count_.store(entries_.size(), std::memory_order_seq_cst);
    }
    return true;
}

void WorkQueue::remove(const Completion& completion, const Error& reason, FinishedList& finished) {
    const auto is_mine = [&](const Slice& slice) { return slice.completion->is_part_of(completion); };
    Lock lock(mutex_);
    std::deque<Entry> kept;
    for (const Entry& entry : entries_) {
        // Most submissions belong to one completion as a whole; the others fall apart into runs.
        for (size_t begin = 0; begin < entry.slices.size();) {
            const bool mine = is_mine(entry.slices[begin]);
            size_t end = begin;
            for (; end < entry.slices.size() && is_mine(entry.slices[end]) == mine; ++end)
                if (mine) finished.fail(entry.slices[end].completion, 1, reason);
            if (!mine)
                kept.push_back({.direction = entry.direction,
                                .slices = entry.slices.subspan(begin, end - begin),
                                .offset = begin == 0 ? entry.offset : 0});
            begin = end;
        }
    }
    entries_ = std::move(kept);
    count_.store(entries_.size(), std::memory_order_seq_cst);
}

void WorkQueue::close() noexcept {
    Lock lock(mutex_);
    closed_ = true;
}

bool WorkQueue::fail_all(const Verdict& verdict, FinishedList& finished) noexcept {
    Lock lock(mutex_);
    for (; !entries_.empty(); entries_.pop_front()) {
        for (auto& slices = entries_.front().slices; !slices.empty(); slices = slices.subspan(1)) {
            Completion* const completion = slices.front().completion;
            if (!finished.try_fail(completion, 1, verdict.on(completion))) return false;
        }
    }
    count_.store(0, std::memory_order_seq_cst);
    return true;
}

}  // namespace mooncake::tcp
