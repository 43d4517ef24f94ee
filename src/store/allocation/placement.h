// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "store/allocation/random.h"

namespace mooncake::store {

/// Where a write goes, among the segments that may be written to: pure functions of a view, a wish and a seeded generator.
enum class PlacementStrategy : uint8_t {
    kRandom,          // two drawn by capacity, the emptier one
    kFreeRatioFirst,  // six drawn by capacity, the emptiest one
    kLocalFirst,      // the writer's host, then the following hosts
};

struct SegmentView {
    uint32_t segment = 0;  // what the owner of the view calls it
    uint32_t name = 0;     // replicas of one object go to different names
    uint32_t host = 0;
    bool suspect = false;  // its data path was reported failing
    uint64_t capacity = 0, free = 0;
};

/// In the order of host, then name; `capacity_sums[i]` is the capacity of segments[0..i].
struct PlacementView {
    std::span<const SegmentView> segments;
    std::span<const uint64_t> capacity_sums;
};

struct PlacementWish {
    PlacementStrategy strategy = PlacementStrategy::kRandom;
    uint64_t length = 0;
    std::span<const uint32_t> preferred;      // positions in the view, tried in this order before anything else
    std::span<const uint32_t> names_in_use;   // by the other replicas of the object
    std::span<const uint32_t> unreachable{};  // segments that are as good as suspect, for this writer
    uint32_t host = UINT32_MAX;               // of the writer, if known
    uint64_t key_hash = 0;
    bool suspects = false;  // only suspects, instead of only others
};

/// In general, or to a writer who could not reach these segments.
inline bool is_suspect(const SegmentView& segment, std::span<const uint32_t> unreachable) {
    return segment.suspect || std::find(unreachable.begin(), unreachable.end(), segment.segment) != unreachable.end();
}

namespace placement_detail {

inline bool emptier(const SegmentView& a, const SegmentView& b) {
    return static_cast<double>(a.free) * static_cast<double>(b.capacity) > static_cast<double>(b.free) * static_cast<double>(a.capacity);
}

/// Each byte of capacity is as likely as any other.
inline uint32_t draw(const PlacementView& view, Random& random) {
    const uint64_t byte = random.below(view.capacity_sums.back());
    return static_cast<uint32_t>(std::upper_bound(view.capacity_sums.begin(), view.capacity_sums.end(), byte) - view.capacity_sums.begin());
}

/// Positions from `begin` up to `end`, beginning anywhere in between.
template <typename Visit>
std::optional<uint32_t> walk(uint32_t begin, uint32_t end, uint64_t start, Visit&& accepts) {
    const uint32_t count = end - begin;
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t position = begin + static_cast<uint32_t>((start + i) % count);
        if (accepts(position)) return position;
    }
    return std::nullopt;
}

/// One host after the other in lexical order, from the writer's on, round the end; within a host rotated by the key.
template <typename Visit>
std::optional<uint32_t> walk_hosts(const PlacementView& view, const PlacementWish& wish, Visit&& accepts) {
    const auto count = static_cast<uint32_t>(view.segments.size());
    const auto first = std::lower_bound(view.segments.begin(), view.segments.end(), wish.host,
                                        [](const SegmentView& s, uint32_t host) { return s.host < host; });
    uint32_t begin = first == view.segments.end() ? 0 : static_cast<uint32_t>(first - view.segments.begin());
    for (uint32_t seen = 0; seen < count;) {
        uint32_t end = begin;
        while (end < count && view.segments[end].host == view.segments[begin].host) ++end;
        if (const auto found = walk(begin, end, wish.key_hash % count, accepts)) return found;
        seen += end - begin;
        begin = end == count ? 0 : end;
    }
    return std::nullopt;
}

}  // namespace placement_detail

/// The position of a segment for one more replica, or nothing. `fits(view)` tells whether the segment has room; it is asked only for
/// segments with enough free bytes. Preferred segments come first, then the strategy's, then any. Suspects are taken only on demand: who
/// writes to one probably waits for nothing.
///
/// Share of an empty newcomer among N equal, full-ish segments: a draw of two meets it with probability below 2/N, so it gets at most
/// twice its fair share of the writes however empty it is, and fills up faster than the others all the same.
template <typename Fits>
std::optional<uint32_t> choose_segment(const PlacementView& view, const PlacementWish& wish, Random& random, Fits&& fits) {
    using namespace placement_detail;
    const auto count = static_cast<uint32_t>(view.segments.size());
    if (count == 0) return std::nullopt;
    const auto accepts = [&](uint32_t position) {
        const SegmentView& segment = view.segments[position];
        if (segment.free < wish.length || is_suspect(segment, wish.unreachable) != wish.suspects) return false;
        if (std::find(wish.names_in_use.begin(), wish.names_in_use.end(), segment.name) != wish.names_in_use.end()) return false;
        return static_cast<bool>(fits(segment));
    };

    for (const uint32_t position : wish.preferred)
        if (accepts(position)) return position;
    if (wish.strategy == PlacementStrategy::kLocalFirst && wish.host != UINT32_MAX) return walk_hosts(view, wish, accepts);
    std::array<uint32_t, 6> drawn{};
    const size_t draws = wish.strategy == PlacementStrategy::kFreeRatioFirst ? drawn.size() : 2;
    for (size_t i = 0; i < draws; ++i) drawn[i] = draw(view, random);
    std::sort(drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(draws),
              [&](uint32_t a, uint32_t b) { return emptier(view.segments[a], view.segments[b]); });
    for (size_t i = 0; i < draws; ++i)
        if (accepts(drawn[i])) return drawn[i];
    return walk(0, count, random.below(count), accepts);
}

/// "10.0.0.1:12345" -> "10.0.0.1", "[::1]:5" -> "[::1]"; the whole text if it has no port.
std::string_view host_of(std::string_view segment_name) noexcept;

}  // namespace mooncake::store
