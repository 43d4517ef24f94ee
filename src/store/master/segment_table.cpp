// SPDX-License-Identifier: Apache-2.0
#include "store/master/segment_table.h"

#include <algorithm>

#include "store/master/walk_counter.h"

namespace mooncake::store {

namespace {

/// Of a list in which numbers rise. Those that came last mostly go first.
void erase_number(std::vector<SegmentNumber>& numbers, SegmentNumber number) {
    numbers.erase(std::lower_bound(numbers.begin(), numbers.end(), number));
}

}  // namespace

std::span<const SegmentNumber> SegmentTable::find_name(std::string_view name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return {};
    return found->second;
}

std::vector<SegmentNumber> SegmentTable::find_memory(std::string_view name) const {
    std::vector<SegmentNumber> found;
    for (const SegmentNumber number : find_name(name))
        if (!is_disk(number)) found.push_back(number);
    return found;
}

SegmentNumber SegmentTable::insert(SegmentSpec spec, ClientNumber client, uint64_t alignment) {
    const auto number = static_cast<SegmentNumber>(segments_.size());
    numbers_.push_back(number);
    by_id_.emplace(spec.id, number);
    std::vector<SegmentNumber>& same = by_name_[spec.name];
    constexpr uint32_t kUnranked = 1U << 31;  // until the view is made: like no other name
    const uint32_t name_number = same.empty() ? kUnranked + number : segments_[same.front()]->name_number;
    same.push_back(number);
    segments_.push_back(std::make_unique<Segment>(std::move(spec), client, alignment));
    segments_[number]->name_number = name_number;
    Totals& totals = totals_of(*segments_[number]);
    totals.capacity += segments_[number]->allocator.capacity();
    ++totals.segments;
    return number;
}

void SegmentTable::erase(SegmentNumber number) {
    const Segment& segment = *segments_[number];
    Totals& totals = totals_of(segment);
    totals.capacity -= segment.allocator.capacity();
    totals.used -= segment.allocator.used_bytes();
    --totals.segments;
    by_id_.erase(segment.spec.id);
    const auto name = by_name_.find(segment.spec.name);
    erase_number(name->second, number);
    if (name->second.empty()) by_name_.erase(name);
    segments_[number].reset();
    erase_number(numbers_, number);
}

RangeAllocator::Block SegmentTable::take(SegmentNumber number, uint64_t offset, uint64_t length, uint64_t owner) {
    Segment& segment = *segments_[number];
    const RangeAllocator::Block block = segment.allocator.take(offset, length, owner);
    if (block == 0) return 0;
    totals_of(segment).used += segment.allocator.length(block);
    if (segment.view_position != UINT32_MAX) view_[segment.view_position].free = segment.allocator.free_bytes();
    return block;
}

void SegmentTable::free(SegmentNumber number, RangeAllocator::Block block) {
    Segment& segment = *segments_[number];
    totals_of(segment).used -= segment.allocator.length(block);
    segment.allocator.free(block);
    if (segment.view_position != UINT32_MAX) view_[segment.view_position].free = segment.allocator.free_bytes();
}

uint32_t SegmentTable::host_number(std::string_view host) const {
    const auto found = std::lower_bound(hosts_.begin(), hosts_.end(), host);
    return found == hosts_.end() || *found != host ? UINT32_MAX : static_cast<uint32_t>(found - hosts_.begin());
}

bool SegmentTable::is_well(SegmentNumber number, Time now) const {
    const Segment& segment = *segments_[number];
    return !segment.stream_down && segment.suspect_until <= now && segment.heard_until > now;
}

void SegmentTable::heard(SegmentNumber number, Time until) {
    Segment& segment = *segments_[number];
    segment.heard_until = until;
    if (segment.silent) next_silence_ = Time{};  // the end of one
}

void SegmentTable::note_silence(std::span<const std::pair<std::string_view, SegmentNumber>> open, Time now) {
    size_t silent = 0;
    for (const auto& [host, number] : open) {
        Segment& segment = *segments_[number];
        segment.silent = segment.heard_until <= now;
        silent += segment.silent ? 1 : 0;
        if (!segment.silent) next_silence_ = std::min(next_silence_, segment.heard_until);
    }
    for (const auto& [host, number] : open) {
        const Segment& segment = *segments_[number];
        view_[segment.view_position].suspect |= segment.silent && silent * 2 <= open.size();
    }
}

void SegmentTable::suspect(SegmentNumber number, Time now, Duration duration) {
    Segment& segment = *segments_[number];
    segment.suspect_until = now + duration;
    segment.suspect_for = duration;
    segment.trusted &= duration <= Duration::zero();
    next_opening_ = std::min(next_opening_, segment.suspect_until);
    if (segment.view_position != UINT32_MAX) view_[segment.view_position].suspect |= duration > Duration::zero();
}

void SegmentTable::rebuild_view(Time now) {
    steps_walked() += numbers_.size();
    view_.clear();
    capacity_sums_.clear();
    hosts_.clear();
    next_opening_ = next_silence_ = Time::max();
    uint32_t name_number = 0;
    std::vector<std::pair<std::string_view, SegmentNumber>> open;  // by host; by_name_ gives the order within
    for (const auto& [name, numbers] : by_name_) {
        ++name_number;
        for (const SegmentNumber number : numbers) {
            Segment& segment = *segments_[number];
            segment.name_number = name_number;
            segment.view_position = UINT32_MAX;
            if (segment.closed_until > now) next_opening_ = std::min(next_opening_, segment.closed_until);
            if (segment.suspect_until > now) next_opening_ = std::min(next_opening_, segment.suspect_until);
            segment.writable = !segment.leaving && segment.status == SegmentStatus::kOk && !segment.reporting &&
                               segment.closed_until <= now && segment.allocator.capacity() != 0;
            if (segment.writable && !segment.is_disk()) open.emplace_back(host_of(name), number);
        }
    }
    std::stable_sort(open.begin(), open.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    uint64_t sum = 0;
    largest_writable_ = 0;
    for (const auto& [host, number] : open) {
        Segment& segment = *segments_[number];
        if (hosts_.empty() || hosts_.back() != host) hosts_.emplace_back(host);
        segment.view_position = static_cast<uint32_t>(view_.size());
        view_.push_back({.segment = number,
                         .name = segment.name_number,
                         .host = static_cast<uint32_t>(hosts_.size() - 1),
                         .suspect = segment.stream_down || segment.suspect_until > now,
                         .capacity = segment.allocator.capacity(),
                         .free = segment.allocator.free_bytes()});
        capacity_sums_.push_back(sum += segment.allocator.capacity());
        largest_writable_ = std::max(largest_writable_, segment.allocator.capacity());
    }
    note_silence(open, now);
    for (const SegmentNumber number : numbers_) {
        const bool trusted = is_trusted(number, now);
        openings_ += trusted && !segments_[number]->trusted ? 1 : 0;
        segments_[number]->trusted = trusted;
    }
}

}  // namespace mooncake::store
