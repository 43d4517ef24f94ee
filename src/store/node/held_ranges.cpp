// SPDX-License-Identifier: Apache-2.0
#include "store/node/held_ranges.h"

#include <algorithm>
#include <cstring>

#include "base/prefetch.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

struct EndsLater {
    bool operator()(const HeldRanges::Rest& a, const HeldRanges::Rest& b) const noexcept { return a.until > b.until; }
};

}  // namespace

std::string HeldRanges::origin_text(const ClientId& writer, std::string_view tenant) {
    std::string text(sizeof writer, '\0');
    std::memcpy(text.data(), &writer, sizeof writer);
    return text.append(tenant);
}
ClientId HeldRanges::origin_writer(std::string_view text) {
    ClientId writer;
    if (text.size() >= sizeof writer) std::memcpy(&writer, text.data(), sizeof writer);
    return writer;
}
std::string_view HeldRanges::origin_tenant(std::string_view text) { return text.substr(std::min(sizeof(ClientId), text.size())); }

uint64_t HeldRanges::hash_of(uint64_t generation) noexcept {
    uint64_t hash = generation * 0x9e3779b97f4a7c15;  // generations come in a row: spread them over shards and slots
    hash ^= hash >> 32;
    return hash * 0xd6e8feb86659fd93;
}

uint32_t HeldRanges::find(uint64_t generation) const {
    return by_generation_.find(hash_of(generation), [&](uint32_t number) { return records_[number].generation == generation; });
}

void HeldRanges::prefetch_record(uint64_t generation) const {
    if (const uint32_t number = by_generation_.guess(hash_of(generation))) prefetch_to_write(&records_[number]);
}

void HeldRanges::plan(const RangePlanned& word, bool round, Time now, Names names) {
    if (word.key.empty()) {
        announced_.push_back(word);
        return;
    }
    uint32_t number = find(word.generation);
    // A value that is told again stays one, even if the stream breaks before it says so.
    const bool again = number != 0 && records_[number].offset == word.offset && records_[number].length == word.length;
    const bool filled = again && records_[number].filled;
    const uint64_t checksum = filled ? records_[number].checksum : 0;
    if (number != 0) erase(number, names);
    number = records_.take();
    Record& record = records_[number];
    record.offset = word.offset;
    record.length = word.length;
    record.generation = word.generation;
    record.checksum = checksum;
    record.text = std::make_unique_for_overwrite<char[]>(word.key.size());
    std::memcpy(record.text.get(), word.key.data(), word.key.size());
    record.key_bytes = static_cast<uint32_t>(word.key.size());
    record.group = names.groups.take(word.group);
    record.origin = names.origins.take(origin_text(word.writer, word.tenant));
    record.data_type = word.data_type;
    record.hard_pin = word.hard_pin;
    record.soft_pin_end = word.soft_pin_left > Duration::zero() ? now + word.soft_pin_left : Time{};
    record.filled = filled;
    record.round = round;
    by_generation_.insert(hash_of(word.generation), number);
    values_ += filled ? 1 : 0;
    key_bytes_ += word.key.size();
}

void HeldRanges::fill(const RangeFilled& word) {
    const uint32_t number = find(word.generation);
    if (number == 0) return;
    Record& record = records_[number];
    if (!record.filled) ++values_;
    record.filled = true;
    record.checksum = word.checksum;
}

void HeldRanges::drop(const RangeDropped& word, Time now, Names names) {
    const auto announced = std::find_if(announced_.begin(), announced_.end(),
                                        [&](const RangePlanned& range) { return range.generation == word.generation; });
    if (announced != announced_.end()) {
        rest(announced->offset, announced->length, word.rest, now);
        announced_.erase(announced);
        return;
    }
    const uint32_t number = find(word.generation);
    if (number == 0) return;
    rest(records_[number].offset, records_[number].length, word.rest, now);
    erase(number, names);
}

void HeldRanges::erase(uint32_t number, Names names) {
    const Record& record = records_[number];
    names.groups.give_back(record.group);
    names.origins.give_back(record.origin);
    values_ -= record.filled ? 1 : 0;
    key_bytes_ -= record.key_bytes;
    by_generation_.erase(hash_of(record.generation), number);
    records_.give_back(number);
}

void HeldRanges::rest(uint64_t offset, uint64_t length, Duration left, Time now) {
    expire_rests(now);
    if (left <= Duration::zero()) return;
    rests_.push_back({.offset = offset, .length = length, .until = now + left});
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
    for (uint32_t number = 1; number < records_.limit(); ++number)
        if (records_[number].used() && records_[number].round != round) erase(number, names);
}

void HeldRanges::settle(bool round, Names names) {
    struct Range {
        uint64_t offset, end;
    };
    std::vector<Range> told;
    for (uint32_t number = 1; number < records_.limit(); ++number) {
        const Record& record = records_[number];
        if (record.used() && record.round == round) told.push_back({record.offset, record.offset + stored_bytes(record.length)});
    }
    // These do not overlap each other, so the last one that begins before a range ends is the only one that can reach into it.
    std::sort(told.begin(), told.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
    for (uint32_t number = 1; number < records_.limit(); ++number) {
        Record& record = records_[number];
        if (!record.used() || record.round == round) continue;
        const auto behind = std::lower_bound(told.begin(), told.end(), record.offset + stored_bytes(record.length),
                                             [](const Range& range, uint64_t end) { return range.offset < end; });
        if (behind != told.begin() && std::prev(behind)->end > record.offset) erase(number, names);
        else record.round = round;
    }
}

void HeldRanges::clear(Names names) {
    for (uint32_t number = 1; number < records_.limit(); ++number)
        if (records_[number].used()) erase(number, names);
    rests_.clear();
    announced_.clear();
}

size_t HeldRanges::memory_bytes() const noexcept {
    // The allocator of the C library takes 8 bytes for itself and rounds up to 16.
    return records_.memory_bytes() + by_generation_.memory_bytes() + rests_.capacity() * sizeof(Rest) + key_bytes_ + records_.size() * 16;
}

}  // namespace mooncake::store
