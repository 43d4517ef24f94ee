// SPDX-License-Identifier: Apache-2.0
#include "store/node/held_ranges.h"

#include <algorithm>
#include <cstring>

#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

struct EndsLater {
    bool operator()(const HeldRanges::Quarantined& a, const HeldRanges::Quarantined& b) const noexcept { return a.until > b.until; }
};

}  // namespace

ClientId HeldRanges::origin_writer(std::string_view text) {
    ClientId writer;
    if (text.size() >= sizeof writer) std::memcpy(&writer, text.data(), sizeof writer);
    return writer;
}
std::string_view HeldRanges::origin_tenant(std::string_view text) { return text.substr(std::min(sizeof(ClientId), text.size())); }

void HeldRanges::plan(const RangePlannedView& event, bool round, Time now, Names names) {
    if (event.key.empty()) {
        announced_.push_back({.generation = event.generation, .offset = event.offset, .length = event.length, .writer = event.writer});
        return;
    }
    const uint32_t group = names.groups.take(event.group);
    const uint32_t origin = names.origins.take({reinterpret_cast<const char*>(&event.writer), sizeof event.writer}, event.tenant);
    Found found = records_.find(event.generation);
    // A value that is told again stays one, even if the stream breaks before it says so.
    const bool filled = found && found.record->filled && found.record->offset == event.offset && found.record->length == event.length;
    const uint64_t checksum = filled ? found.record->checksum : 0;
    if (found) {
        names.groups.give_back(found.record->group);
        names.origins.give_back(found.record->origin);
        values_ -= found.record->filled ? 1 : 0;
        records_.set_key(found, event.key);
    } else {
        found = records_.add(event.generation, event.key);
    }
    Record& record = *found.record;
    record.offset = event.offset;
    record.length = event.length;
    record.group = group;
    record.origin = origin;
    record.data_type = event.data_type;
    record.hard_pin = event.hard_pin;
    record.filled = filled;
    record.round = round;
    record.checksum = checksum;
    record.soft_pin_end = event.soft_pin_left > Duration::zero() ? now + event.soft_pin_left : Time{};
    values_ += filled ? 1 : 0;
}

void HeldRanges::fill(Found found, const RangeFilled& event) {
    if (!found) return;
    if (!found.record->filled) ++values_;
    found.record->filled = true;
    found.record->checksum = event.checksum;
}

void HeldRanges::drop(Found found, const RangeDropped& event, Time now, Names names) {
    if (!announced_.empty()) {
        const auto announced = std::find_if(announced_.begin(), announced_.end(),
                                            [&](const Announced& range) { return range.generation == event.generation; });
        if (announced != announced_.end()) {
            put_in_quarantine({.offset = announced->offset, .length = announced->length, .writer = announced->writer}, event.quarantine,
                              now);
            announced_.erase(announced);
            return;
        }
    }
    if (!found) return;
    // Nobody reads what was never filled.
    const ClientId writer = found.record->filled ? ClientId{} : origin_writer(names.origins[found.record->origin]);
    put_in_quarantine({.offset = found.record->offset, .length = found.record->length, .writer = writer}, event.quarantine, now);
    erase(found, names);
}

void HeldRanges::erase(Found found, Names names) {
    names.groups.give_back(found.record->group);
    names.origins.give_back(found.record->origin);
    values_ -= found.record->filled ? 1 : 0;
    records_.erase(found);
}

void HeldRanges::put_in_quarantine(Quarantined range, Duration left, Time now) {
    expire_quarantine(now);
    if (left <= Duration::zero()) return;
    range.until = now + left;
    quarantined_.push_back(range);
    std::push_heap(quarantined_.begin(), quarantined_.end(), EndsLater());
}

void HeldRanges::expire_quarantine(Time now) {
    while (!quarantined_.empty() && quarantined_.front().until <= now) {
        std::pop_heap(quarantined_.begin(), quarantined_.end(), EndsLater());
        quarantined_.pop_back();
    }
}

std::vector<HeldRanges::Quarantined> HeldRanges::quarantined(Time now) const {
    std::vector<Quarantined> left;
    for (const Quarantined& quarantine : quarantined_)
        if (quarantine.until > now) left.push_back(quarantine);
    return left;
}

void HeldRanges::keep_only(bool round, Names names) {
    records_.for_each({}, [&](uint64_t, Found found) {
        if (found.record->round != round) erase(found, names);
        return true;
    });
    records_.tidy(SIZE_MAX);
}

void HeldRanges::settle(bool round, Names names) {
    struct Range {
        uint64_t offset, end;
    };
    std::vector<Range> told;
    records_.for_each({}, [&](uint64_t, Found found) {
        const Record& record = *found.record;
        if (record.round == round) told.push_back({record.offset, record.offset + stored_bytes(record.length)});
        return true;
    });
    // These do not overlap each other, so the last one that begins before a range ends is the only one that can reach into it.
    std::sort(told.begin(), told.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
    records_.for_each({}, [&](uint64_t, Found found) {
        Record& record = *found.record;
        if (record.round == round) return true;
        const auto behind = std::lower_bound(told.begin(), told.end(), record.offset + stored_bytes(record.length),
                                             [](const Range& range, uint64_t end) { return range.offset < end; });
        if (behind != told.begin() && std::prev(behind)->end > record.offset) erase(found, names);
        else record.round = round;
        return true;
    });
    records_.tidy(SIZE_MAX);
}

void HeldRanges::clear(Names names) {
    records_.for_each({}, [&](uint64_t, Found found) {
        erase(found, names);
        return true;
    });
    records_.clear();
    quarantined_.clear();
    announced_.clear();
}

size_t HeldRanges::memory_bytes() const noexcept { return records_.memory_bytes() + quarantined_.capacity() * sizeof(Quarantined); }

}  // namespace mooncake::store
