// SPDX-License-Identifier: Apache-2.0
#include "store/node/held_ranges.h"

#include <algorithm>
#include <cstring>

#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

struct EndsLater {
    bool operator()(const HeldRanges::Rest& a, const HeldRanges::Rest& b) const noexcept { return a.until > b.until; }
};

}  // namespace

ClientId HeldRanges::origin_writer(std::string_view text) {
    ClientId writer;
    if (text.size() >= sizeof writer) std::memcpy(&writer, text.data(), sizeof writer);
    return writer;
}
std::string_view HeldRanges::origin_tenant(std::string_view text) { return text.substr(std::min(sizeof(ClientId), text.size())); }

void HeldRanges::plan(const RangePlannedView& word, bool round, Time now, Names names) {
    if (word.key.empty()) {
        announced_.push_back({.generation = word.generation, .offset = word.offset, .length = word.length, .writer = word.writer});
        return;
    }
    const uint32_t group = names.groups.take(word.group);
    const uint32_t origin = names.origins.take({reinterpret_cast<const char*>(&word.writer), sizeof word.writer}, word.tenant);
    Found found = records_.find(word.generation);
    // A value that is told again stays one, even if the stream breaks before it says so.
    const bool filled = found && found.record->filled && found.record->offset == word.offset && found.record->length == word.length;
    const uint64_t checksum = filled ? found.record->checksum : 0;
    if (found) {
        names.groups.give_back(found.record->group);
        names.origins.give_back(found.record->origin);
        values_ -= found.record->filled ? 1 : 0;
        records_.set_key(found, word.key);
    } else {
        found = records_.add(word.generation, word.key);
    }
    Record& record = *found.record;
    record.offset = word.offset;
    record.length = word.length;
    record.group = group;
    record.origin = origin;
    record.data_type = word.data_type;
    record.hard_pin = word.hard_pin;
    record.filled = filled;
    record.round = round;
    record.checksum = checksum;
    record.soft_pin_end = word.soft_pin_left > Duration::zero() ? now + word.soft_pin_left : Time{};
    values_ += filled ? 1 : 0;
}

void HeldRanges::fill(Found found, const RangeFilled& word) {
    if (!found) return;
    if (!found.record->filled) ++values_;
    found.record->filled = true;
    found.record->checksum = word.checksum;
}

void HeldRanges::drop(Found found, const RangeDropped& word, Time now, Names names) {
    if (!announced_.empty()) {
        const auto announced = std::find_if(announced_.begin(), announced_.end(),
                                            [&](const Announced& range) { return range.generation == word.generation; });
        if (announced != announced_.end()) {
            rest({.offset = announced->offset, .length = announced->length, .writer = announced->writer}, word.rest, now);
            announced_.erase(announced);
            return;
        }
    }
    if (!found) return;
    // Nobody reads what was never filled.
    const ClientId writer = found.record->filled ? ClientId{} : origin_writer(names.origins[found.record->origin]);
    rest({.offset = found.record->offset, .length = found.record->length, .writer = writer}, word.rest, now);
    erase(found, names);
}

void HeldRanges::erase(Found found, Names names) {
    names.groups.give_back(found.record->group);
    names.origins.give_back(found.record->origin);
    values_ -= found.record->filled ? 1 : 0;
    records_.erase(found);
}

void HeldRanges::rest(Rest range, Duration left, Time now) {
    expire_rests(now);
    if (left <= Duration::zero()) return;
    range.until = now + left;
    rests_.push_back(range);
    std::push_heap(rests_.begin(), rests_.end(), EndsLater());
}

void HeldRanges::expire_rests(Time now) {
    while (!rests_.empty() && rests_.front().until <= now) {
        std::pop_heap(rests_.begin(), rests_.end(), EndsLater());
        rests_.pop_back();
    }
}

std::vector<HeldRanges::Rest> HeldRanges::rests(Time now) const {
    std::vector<Rest> left;
    for (const Rest& rest : rests_)
        if (rest.until > now) left.push_back(rest);
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
    rests_.clear();
    announced_.clear();
}

size_t HeldRanges::memory_bytes() const noexcept { return records_.memory_bytes() + rests_.capacity() * sizeof(Rest); }

}  // namespace mooncake::store
