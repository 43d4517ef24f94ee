// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/heap.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/holdings.h"
#include "store/node/held_ranges.h"
#include "store/node/name_table.h"
#include "store/protocol/events.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// What the segments of this process hold, as the master's event stream tells it. When a master is lost, its successor learns it from here.
/// Thread-safe. About 70 bytes per entry, and its key; when most of very many have gone, the system gets their memory back.
///
/// A stream that begins anew does not make it forget at once: until that stream is complete, what it has not told yet stays, so that a
/// master lost in the middle takes nothing with it.
class Catalogue final : public Holdings {
public:
    bool add_segment(const SegmentSpec& segment) override;
    void remove_segment(const SegmentId& segment) override;
    /// The events of one update count in this order: planned, filled, dropped. A range planned without a key is only in quarantine: its drop follows.
    void apply(const EventView& update, Time now) override;
    void apply(const EventUpdate& update, Time now) { apply(EventView(update), now); }
    void stream_ended(bool orderly) override;
    void begin_missed() override;
    void end_missed() override { stream_ended(/*orderly=*/true); }
    bool report(size_t entries_max, Time now, const std::function<bool(const HeldSegment&)>& part) const override;
    bool lends() const override;

    /// Hands out what lies in a segment, as updates that would tell all of it after a reset. Nothing may be applied meanwhile, and no event stream be in the middle of
    /// its beginning. Returns whether nothing else can be in use.
    bool save(const SegmentId& segment, Time now, const std::function<void(const EventView&)>& part) const;
    /// An event stream began, and has not told all yet.
    bool streaming() const;
    /// Values, without writes that have not ended.
    size_t objects() const;
    size_t memory_bytes() const;

private:
    static constexpr size_t kValuesWorthReturning = 200'000;  // some ten megabytes

    struct Lent {
        SegmentSpec spec;
        HeldRanges ranges;
    };
    class Reporter;

    Lent* find(const SegmentId& segment) MC_REQUIRES(mutex_);
    void begin_stream() MC_REQUIRES(mutex_);
    /// From now on what is told is told from what was known before.
    void begin_round() MC_REQUIRES(mutex_);
    void apply_locked(const EventView& update, Time now) MC_REQUIRES(mutex_);
    size_t count_values() const MC_REQUIRES(mutex_);
    bool report_segment(const SegmentId& id, size_t entries_max, Time now, const std::function<bool(const HeldSegment&)>& part) const;

    mutable Mutex mutex_;
    std::unordered_map<SegmentId, std::unique_ptr<Lent>> segments_ MC_GUARDED_BY(mutex_);
    NameTable groups_ MC_GUARDED_BY(mutex_), origins_ MC_GUARDED_BY(mutex_);
    bool exact_ MC_GUARDED_BY(mutex_) = true;       // nothing but what is written here can be in use
    bool streaming_ MC_GUARDED_BY(mutex_) = false;  // a stream began and is not complete yet
    bool round_ MC_GUARDED_BY(mutex_) = false;      // flips with each stream; tells its events from earlier ones
    ShrinkWatch values_ MC_GUARDED_BY(mutex_){kValuesWorthReturning};
};

}  // namespace mooncake::store
