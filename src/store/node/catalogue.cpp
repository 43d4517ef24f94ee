// SPDX-License-Identifier: Apache-2.0
#include "store/node/catalogue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory_resource>
#include <optional>

#include "base/heap.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

/// What is in quarantine in one segment, without what is in use again. The master's clock ends a quarantine a moment before ours does: what it planned there
/// since then is the truth.
class QuarantinedList {
public:
    explicit QuarantinedList(std::vector<HeldRanges::Quarantined> quarantined) : quarantined_(std::move(quarantined)) {
        std::sort(quarantined_.begin(), quarantined_.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
        uint64_t furthest = 0;
        for (const auto& quarantine : quarantined_)
            furthest_.push_back(furthest = std::max(furthest, quarantine.offset + quarantine.length));
        over_.resize(quarantined_.size());
    }

    void in_use(uint64_t offset, uint64_t length) {
        const auto behind = std::lower_bound(
            quarantined_.begin(), quarantined_.end(), offset + length,
            [](const HeldRanges::Quarantined& quarantine, uint64_t end) { return quarantine.offset < end; });
        for (auto i = static_cast<size_t>(behind - quarantined_.begin()); i-- > 0 && furthest_[i] > offset;)
            if (quarantined_[i].offset + quarantined_[i].length > offset) over_[i] = true;
    }

    template <typename Visit>
    void for_each(Visit&& visit) const {
        for (size_t i = 0; i < quarantined_.size(); ++i)
            if (!over_[i]) visit(quarantined_[i]);
    }

private:
    std::vector<HeldRanges::Quarantined> quarantined_;
    std::vector<uint64_t> furthest_;  // end of anything up to here
    std::vector<bool> over_;
};

}  // namespace

/// Builds the parts for one segment; texts are copied, so that no lock is held while a part is handed out.
class Catalogue::Reporter {
public:
    using HandOut = std::function<bool(const HeldSegment&)>;
    Reporter(const Lent& lent, bool exact, Time now, size_t entries_max, const HandOut& hand_out)
        : spec_(lent.spec), exact_(exact), now_(now), entries_max_(std::max<size_t>(entries_max, 1)), hand_out_(hand_out),
          in_quarantine_(lent.ranges.quarantined(now)) {
        for (const HeldRanges::Announced& range : lent.ranges.announced())
            writes_.push_back({.offset = range.offset, .length = range.length});
    }

    /// Takes records until the part is full. True: those were the last ones.
    bool collect(const HeldRanges& ranges, const NameTable& origins, const NameTable& groups) {
        return ranges.for_each(told_, [&](uint64_t generation, HeldRanges::Found found) {
            if (full()) return false;
            const HeldRanges::Record& record = *found.record;
            in_quarantine_.in_use(record.offset, stored_bytes(record.length));
            add(generation, record, found.key(), origins[record.origin], groups[record.group]);
            told_ = generation;
            return true;
        });
    }
    bool hand_over(bool more) {
        const bool go_on = hand_out_(
            {.segment = spec_, .objects = objects_, .writes = writes_, .quarantined = quarantined_, .exact = exact_, .more = more});
        objects_.clear();
        writes_.clear();
        quarantined_.clear();
        texts_.release();
        text_bytes_ = 0;
        tenant_ = {};
        return go_on;
    }
    /// After the last record: what is in quarantine, and the end.
    bool finish() {
        bool go_on = true;
        in_quarantine_.for_each([&](const HeldRanges::Quarantined& quarantine) {
            if (go_on && full()) go_on = hand_over(/*more=*/true);
            if (go_on)
                quarantined_.push_back({.offset = quarantine.offset,
                                        .length = quarantine.length,
                                        .left = quarantine.until - now_,
                                        .writer = quarantine.writer});
        });
        return go_on && hand_over(/*more=*/false);
    }

private:
    static constexpr size_t kTextBytesMax = 256 << 10;  // keys may be long, and a request is bounded

    bool full() const noexcept {
        return objects_.size() + writes_.size() + quarantined_.size() >= entries_max_ || text_bytes_ >= kTextBytesMax;
    }
    void add(uint64_t generation, const HeldRanges::Record& record, std::string_view key, std::string_view origin, std::string_view group) {
        const ClientId writer = HeldRanges::origin_writer(origin);
        if (!record.filled) {
            writes_.push_back({.offset = record.offset, .length = record.length, .writer = writer});
            return;
        }
        const std::string_view tenant = HeldRanges::origin_tenant(origin);
        if (tenant_ != tenant) tenant_ = copy(tenant);
        objects_.push_back({.tenant = tenant_,
                            .key = copy(key),
                            .group = copy(group),
                            .offset = record.offset,
                            .length = record.length,
                            .generation = generation,
                            .checksum = record.checksum,
                            .data_type = record.data_type,
                            .hard_pin = record.hard_pin,
                            .soft_pin_left = std::max(record.soft_pin_end - now_, Duration::zero()),
                            .writer = writer});
    }
    std::string_view copy(std::string_view text) {
        if (text.empty()) return {};
        auto* to = static_cast<char*>(texts_.allocate(text.size(), 1));
        std::memcpy(to, text.data(), text.size());
        text_bytes_ += text.size();
        return {to, text.size()};
    }

    const SegmentSpec spec_;
    const bool exact_;
    const Time now_;
    const size_t entries_max_;
    const HandOut& hand_out_;
    QuarantinedList in_quarantine_;
    std::optional<uint64_t> told_;  // the last generation
    std::vector<HeldObject> objects_;
    std::vector<HeldWrite> writes_;
    std::vector<HeldQuarantine> quarantined_;
    std::pmr::monotonic_buffer_resource texts_;
    size_t text_bytes_ = 0;
    std::string_view tenant_;
};

bool Catalogue::add_segment(const SegmentSpec& segment) {
    auto made = std::make_unique<Lent>();
    made->spec = segment;
    Lock lock(mutex_);
    return segments_.try_emplace(segment.id, std::move(made)).second;
}

void Catalogue::remove_segment(const SegmentId& segment) {
    Lock lock(mutex_);
    const auto found = segments_.find(segment);
    if (found == segments_.end()) return;
    found->second->ranges.clear({groups_, origins_});
    segments_.erase(found);
}

Catalogue::Lent* Catalogue::find(const SegmentId& segment) {
    const auto found = segments_.find(segment);
    return found == segments_.end() ? nullptr : found->second.get();
}

void Catalogue::begin_round() {
    // Two rounds are told apart, no more: whatever an unfinished stream left becomes one with what was there before.
    if (streaming_)
        for (const auto& [id, lent] : segments_) lent->ranges.settle(round_, {groups_, origins_});
    streaming_ = true;
    round_ = !round_;
}

void Catalogue::begin_stream() {
    begin_round();
    for (const auto& [id, lent] : segments_) lent->ranges.forget_announced();
    exact_ = false;
}

void Catalogue::begin_missed() {
    Lock lock(mutex_);
    begin_round();
}

void Catalogue::apply(const EventView& update, Time now) {
    bool shrunk = false;
    {
        Lock lock(mutex_);
        apply_locked(update, now);
        shrunk = (!update.dropped.empty() || update.complete) && values_.shrunk(count_values());
    }
    if (shrunk) return_free_memory();
}

void Catalogue::apply_locked(const EventView& update, Time now) {
    if (update.reset) begin_stream();
    Lent* lent = nullptr;  // events of one segment mostly stand together
    const auto ranges_of = [&](const SegmentId& segment) MC_REQUIRES(mutex_) {
        if (lent == nullptr || lent->spec.id != segment) lent = find(segment);
        return lent == nullptr ? nullptr : &lent->ranges;
    };
    const auto each = [&](const auto& events, const auto& apply_one) MC_REQUIRES(mutex_) {
        constexpr size_t kWindow = 32;  // events whose cache misses overlap
        struct Place {
            HeldRanges* ranges = nullptr;
            RangePages::Page* page = nullptr;
            HeldRanges::Found found;
        };
        std::array<Place, kWindow> places;
        for (size_t start = 0; start < events.size(); start += kWindow) {
            const auto window = std::span(events).subspan(start, std::min(kWindow, events.size() - start));
            for (size_t i = 0; i < window.size(); ++i) {
                places[i].ranges = ranges_of(window[i].segment);
                places[i].page = places[i].ranges == nullptr ? nullptr : places[i].ranges->find_page(window[i].generation);
            }
            for (size_t i = 0; i < window.size(); ++i) HeldRanges::look_into(places[i].page, window[i].generation);
            for (size_t i = 0; i < window.size(); ++i) places[i].found = HeldRanges::find_in(places[i].page, window[i].generation);
            for (size_t i = 0; i < window.size(); ++i)
                if (places[i].ranges != nullptr) apply_one(*places[i].ranges, places[i].found, window[i]);
        }
    };
    const HeldRanges::Names names{groups_, origins_};
    // What is planned may move others, so it is looked up again: by then it is in the cache.
    each(update.planned, [&](HeldRanges& ranges, HeldRanges::Found, const RangePlannedView& event)
                             MC_REQUIRES(mutex_) { ranges.plan(event, round_, now, names); });
    each(update.filled, [&](HeldRanges& ranges, HeldRanges::Found found, const RangeFilled& event) { ranges.fill(found, event); });
    each(update.dropped,
         [&](HeldRanges& ranges, HeldRanges::Found found, const RangeDropped& event) { ranges.drop(found, event, now, names); });
    if (!update.dropped.empty())
        for (const auto& [id, held] : segments_) held->ranges.tidy();
    if (!update.complete || !streaming_) return;
    for (const auto& [id, held] : segments_) held->ranges.keep_only(round_, names);
    streaming_ = false;
    exact_ = true;
}

void Catalogue::stream_ended(bool orderly) {
    Lock lock(mutex_);
    if (!orderly) exact_ = false;
    if (!streaming_) return;
    for (const auto& [id, lent] : segments_) lent->ranges.settle(round_, {groups_, origins_});
    streaming_ = false;
}

bool Catalogue::report(size_t entries_max, Time now, const std::function<bool(const HeldSegment&)>& part) const {
    std::vector<SegmentId> ids;
    {
        Lock lock(mutex_);
        for (const auto& [id, lent] : segments_) ids.push_back(id);
    }
    for (const SegmentId& id : ids)
        if (!report_segment(id, entries_max, now, part)) return false;
    return true;
}

bool Catalogue::report_segment(const SegmentId& id, size_t entries_max, Time now,
                               const std::function<bool(const HeldSegment&)>& part) const {
    std::unique_ptr<Reporter> reporter;
    for (;;) {
        {
            Lock lock(mutex_);
            const auto found = segments_.find(id);
            if (found == segments_.end()) return true;
            if (!reporter) reporter = std::make_unique<Reporter>(*found->second, exact_, now, entries_max, part);
            if (reporter->collect(found->second->ranges, origins_, groups_)) break;
        }
        if (!reporter->hand_over(/*more=*/true)) return false;
    }
    return reporter->finish();
}

bool Catalogue::save(const SegmentId& id, Time now, const std::function<void(const EventView&)>& part) const {
    constexpr size_t kEventsMax = 256;  // of one part
    Lock lock(mutex_);
    const auto found = segments_.find(id);
    if (found == segments_.end()) return exact_;
    const HeldRanges& ranges = found->second->ranges;
    EventView update;
    const auto hand_out = [&](size_t most) {
        if (update.planned.size() < most) return;
        part(update);
        update = {};
    };
    ranges.for_each({}, [&](uint64_t generation, HeldRanges::Found one) MC_REQUIRES(mutex_) {
        const HeldRanges::Record& record = *one.record;
        const std::string_view origin = origins_[record.origin];
        update.planned.push_back({.segment = id,
                                  .offset = record.offset,
                                  .length = record.length,
                                  .generation = generation,
                                  .tenant = HeldRanges::origin_tenant(origin),
                                  .key = one.key(),
                                  .group = groups_[record.group],
                                  .data_type = record.data_type,
                                  .hard_pin = record.hard_pin,
                                  .soft_pin_left = std::max(record.soft_pin_end - now, Duration::zero()),
                                  .writer = HeldRanges::origin_writer(origin)});
        if (record.filled) update.filled.push_back({.segment = id, .generation = generation, .checksum = record.checksum});
        hand_out(kEventsMax);
        return true;
    });
    uint64_t generation = UINT64_MAX;  // which no value has
    for (const HeldRanges::Quarantined& one : ranges.quarantined(now)) {
        update.planned.push_back(
            {.segment = id, .offset = one.offset, .length = one.length, .generation = --generation, .writer = one.writer});
        update.dropped.push_back({.segment = id, .generation = generation, .quarantine = one.until - now});
        hand_out(kEventsMax);
    }
    hand_out(1);  // behind them, so that these are not looked through for each
    for (const HeldRanges::Announced& one : ranges.announced())
        update.planned.push_back(
            {.segment = id, .offset = one.offset, .length = one.length, .generation = one.generation, .writer = one.writer});
    hand_out(1);
    return exact_;
}

bool Catalogue::streaming() const {
    Lock lock(mutex_);
    return streaming_;
}

bool Catalogue::lends() const {
    Lock lock(mutex_);
    return !segments_.empty();
}

size_t Catalogue::objects() const {
    Lock lock(mutex_);
    return count_values();
}

size_t Catalogue::count_values() const {
    size_t count = 0;
    for (const auto& [id, lent] : segments_) count += lent->ranges.values();
    return count;
}

size_t Catalogue::memory_bytes() const {
    Lock lock(mutex_);
    size_t bytes = groups_.memory_bytes() + origins_.memory_bytes();
    for (const auto& [id, lent] : segments_) bytes += sizeof(Lent) + lent->ranges.memory_bytes();
    return bytes;
}

}  // namespace mooncake::store
