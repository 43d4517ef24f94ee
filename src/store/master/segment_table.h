// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/time.h"
#include "store/allocation/placement.h"
#include "store/allocation/range_allocator.h"
#include "store/master/object.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// Memory that somebody may still look at or write to, although nothing of ours is there.
struct BusyMemory {
    uint64_t offset = 0, bytes = 0;
    Time until{};
    ClientId writer{};  // as in RangeBusy
};

struct Segment {
    Segment(SegmentSpec segment_spec, ClientNumber client_number, uint64_t alignment)
        : spec(std::move(segment_spec)), client(client_number),
          allocator(spec.size, alignment, is_disk() ? RangeAllocator::Places::kNames : RangeAllocator::Places::kRanges) {}

    bool is_disk() const noexcept { return spec.kind == SegmentKind::kDisk; }

    SegmentSpec spec;
    ClientNumber client;
    SegmentStatus status = SegmentStatus::kOk;
    Time status_end{};      // of kGracefullyUnmounting
    Time closed_until{};    // no new ranges before: earlier leases on this memory may run
    bool reporting = true;  // its node is still telling what it holds: no new ranges
    bool adopting = true;   // and what we do not know is news to us
    Time suspect_until{};   // its data path was reported failing
    Duration suspect_for{0};
    bool leaving = false;            // its owner has gone: no new ranges
    bool stream_down = false;        // its owner is not told of new ranges now
    Time heard_until = Time::max();  // its owner is silent from then on
    bool silent = false;             // when the view was made
    bool trusted = false;            // likewise
    bool writable = false;           // likewise: it takes new values, for all that its owner and we have decided
    uint32_t name_number = 0;
    uint32_t view_position = UINT32_MAX;  // UINT32_MAX: not in the view
    uint64_t quarantined_bytes = 0;
    std::unordered_set<uint64_t> dropped;  // while reporting: generations that went again, which its node may tell once more
    std::vector<BusyMemory> busy;          // while reporting: what of it is free in the end goes into quarantine
    RangeAllocator allocator;
};

/// The mounted segments by id, name and number, and the view of the memory that may be written to: disks are in none, and have totals of their own. Numbers are never used again: clients
/// remember them. All taking and freeing of ranges goes through it, so that its totals and the view stay exact. Not thread-safe.
class SegmentTable {
public:
    SegmentNumber find(const SegmentId& id) const {
        const auto found = by_id_.find(id);
        return found == by_id_.end() ? 0 : found->second;
    }
    /// All segments of that name.
    std::span<const SegmentNumber> find_name(std::string_view name) const;
    /// Those of them that are memory.
    std::vector<SegmentNumber> find_memory(std::string_view name) const;

    SegmentNumber insert(SegmentSpec spec, ClientNumber client, uint64_t alignment);
    void erase(SegmentNumber number);

    RangeAllocator::Block take(SegmentNumber number, uint64_t offset, uint64_t length, uint64_t owner);
    void free(SegmentNumber number, RangeAllocator::Block block);

    /// Its owner was heard.
    void heard(SegmentNumber number, Time until);
    /// After a segment came, went, or changed what it is good for.
    void rebuild_view(Time now);
    /// Its data path is failing from now on, for a while.
    void suspect(SegmentNumber number, Time now, Duration duration);
    PlacementView view() const { return {view_, capacity_sums_}; }
    uint32_t host_number(std::string_view host) const;  // in the view; UINT32_MAX: none
    /// The capacity of the largest segment in the view.
    uint64_t largest_writable() const noexcept { return largest_writable_; }
    /// When the view will change by itself; Time::max(): never.
    Time next_change() const noexcept { return std::min(next_opening_, next_silence_); }
    /// Of that, when a segment becomes good for more.
    Time next_opening() const noexcept { return next_opening_; }
    /// How often so far a segment could be trusted that could not before.
    uint64_t openings() const noexcept { return openings_; }

    /// What lies there can be read, as far as we know: its owner was heard lately and follows, its data path was not reported failing.
    bool is_well(SegmentNumber number, Time now) const;
    /// The same, and its owner has told us what it holds.
    bool answers(SegmentNumber number, Time now) const { return !segments_[number]->reporting && is_well(number, now); }
    /// It answers, and what lies there stays: a replica there is reason enough to give up another one. In doubt it is not, even where
    /// placement would go on with a doubtful segment for want of a better one.
    bool is_trusted(SegmentNumber number, Time now) const { return segments_[number]->writable && answers(number, now); }
    bool is_disk(SegmentNumber number) const { return segments_[number]->is_disk(); }
    /// What lies there stays there, as far as anybody has decided; whether its node is well is another question.
    bool stays(SegmentNumber number) const { return segments_[number]->status == SegmentStatus::kOk && !segments_[number]->leaving; }

    Segment& operator[](SegmentNumber number) { return *segments_[number]; }
    const Segment& operator[](SegmentNumber number) const { return *segments_[number]; }
    bool exists(SegmentNumber number) const { return number < segments_.size() && segments_[number] != nullptr; }
    /// Those that are mounted, oldest first.
    std::span<const SegmentNumber> numbers() const noexcept { return numbers_; }
    uint64_t capacity() const noexcept { return memory_.capacity; }
    uint64_t used_bytes() const noexcept { return memory_.used; }  // with what is in quarantine
    uint64_t disk_capacity() const noexcept { return disk_.capacity; }
    uint64_t disk_used_bytes() const noexcept { return disk_.used; }
    size_t disks() const noexcept { return disk_.segments; }
    size_t size() const noexcept { return numbers_.size(); }

private:
    struct Totals {
        uint64_t capacity = 0, used = 0;
        size_t segments = 0;
    };
    Totals& totals_of(const Segment& segment) { return segment.is_disk() ? disk_ : memory_; }
    /// Who is silent is avoided; but if it is most of them, the fault is ours.
    void note_silence(std::span<const std::pair<std::string_view, SegmentNumber>> open, Time now);

    std::vector<std::unique_ptr<Segment>> segments_ = std::vector<std::unique_ptr<Segment>>(1);
    std::vector<SegmentNumber> numbers_;
    std::unordered_map<SegmentId, SegmentNumber> by_id_;
    std::map<std::string, std::vector<SegmentNumber>, std::less<>> by_name_;
    std::vector<SegmentView> view_;
    std::vector<uint64_t> capacity_sums_;
    std::vector<std::string> hosts_;  // in the view, sorted: a host's number is its place
    Time next_opening_ = Time::max(), next_silence_ = Time::max();
    Totals memory_, disk_;
    uint64_t largest_writable_ = 0;
    uint64_t openings_ = 0;
};

}  // namespace mooncake::store
