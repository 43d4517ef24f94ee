// SPDX-License-Identifier: Apache-2.0
#include "store/tier/index.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace mooncake::store::log {

namespace {

constexpr size_t kFirstSlots = 16;

void widen(Entry& entry, uint32_t number) noexcept {
    entry.low = std::min(entry.low, number);
    entry.high = std::max(entry.high, number);
}

std::span<const std::byte> bytes_of(std::string_view text) noexcept { return std::as_bytes(std::span(text.data(), text.size())); }

bool outranks(const Fact& fact, const Entry& entry) noexcept {
    const uint64_t generation = fact.header.generation;
    if (generation != entry.generation) return generation > entry.generation;
    // A value may be written again after it was removed, and removed again: the later of the two counts, where one can tell.
    const bool ordered = entry.state != State::kDoubtful && fact.file->ordered && entry.file->ordered;
    if (fact.state != entry.state && !ordered) return fact.state > entry.state;
    return std::pair(fact.file->number, fact.block) >= std::pair(entry.file->number, entry.block);
}

void destroy(Entry* entry) noexcept {
    entry->~Entry();
    ::operator delete(entry);
}

}  // namespace

uint64_t wall_clock_ms() noexcept {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
}

TierObject Entry::object(uint64_t now_ms) const noexcept {
    // A clock that was set back must not pin anything for ever.
    constexpr uint64_t kPinMax = 30ull * 24 * 3600 * 1000;
    const uint64_t pinned_ms = soft_pin_end_ms > now_ms ? std::min(soft_pin_end_ms - now_ms, kPinMax) : 0;
    return {.tenant = tenant(),
            .key = key(),
            .group = group(),
            .length = length,
            .generation = generation,
            .checksum = checksum,
            .data_type = data_type,
            .hard_pin = hard_pin,
            .soft_pin_left = std::chrono::milliseconds(pinned_ms),
            .writer = writer};
}

Index::~Index() {
    for (Part& part : parts_) {
        const Lock lock(part.mutex);
        for (Entry* entry : part.slots)
            if (entry != nullptr) destroy(entry);
    }
}

uint64_t Index::hash_of(std::string_view tenant, std::string_view key) noexcept {
    return hash_bytes(bytes_of(key)) ^ (tenant.empty() ? 0 : hash_bytes(bytes_of(tenant)) * 0x9e3779b97f4a7c15);
}

size_t Index::slot_of(const Part& part, uint32_t hash, std::string_view tenant, std::string_view key) {
    const size_t mask = part.slots.size() - 1;
    size_t slot = hash & mask;
    while (const Entry* entry = part.slots[slot]) {
        if (entry->hash == hash && entry->key() == key && entry->tenant() == tenant) break;
        slot = (slot + 1) & mask;
    }
    return slot;
}

std::optional<Index::Location> Index::find(std::string_view tenant, std::string_view key, For purpose) const {
    const uint64_t hash = hash_of(tenant, key);
    const Part& part = part_of(hash);
    const Lock lock(part.mutex);
    if (part.slots.empty()) return std::nullopt;
    const Entry* entry = part.slots[slot_of(part, rest_of(hash), tenant, key)];
    if (entry == nullptr || entry->state != State::kValue) return std::nullopt;
    if (purpose == For::kUse) std::atomic_ref(entry->used).store(true, std::memory_order_relaxed);
    return Location{entry->file->shared_from_this(), entry->block, entry->payload_at, entry->length, entry->generation, entry->checksum};
}

std::optional<TierObject> Index::find(uint64_t generation, std::string& texts) const {
    for (const GenerationIndex::Place place : generations_.find(generation)) {
        const Part& part = parts_[place.part];
        const Lock lock(part.mutex);
        if (part.slots.empty()) continue;
        const size_t mask = part.slots.size() - 1;
        for (size_t slot = place.hash & mask; part.slots[slot] != nullptr; slot = (slot + 1) & mask) {
            const Entry& entry = *part.slots[slot];
            if (entry.hash != place.hash || entry.generation != generation || entry.state != State::kValue) continue;
            TierObject object = entry.object(wall_clock_ms());
            texts.assign(entry.texts(), size_t{entry.tenant_bytes} + entry.group_bytes + entry.key_bytes);
            const std::string_view all = texts;
            object.tenant = all.substr(0, entry.tenant_bytes);
            object.group = all.substr(entry.tenant_bytes, entry.group_bytes);
            object.key = all.substr(size_t{entry.tenant_bytes} + entry.group_bytes);
            return object;
        }
    }
    return std::nullopt;
}

void Index::collect(size_t number, std::vector<TierObject>& objects, std::vector<char>& texts) const {
    objects.clear();
    texts.clear();
    const uint64_t now_ms = wall_clock_ms();
    const Part& part = parts_[number];
    const Lock lock(part.mutex);
    size_t bytes = 0;
    for (const Entry* entry : part.slots)
        if (entry != nullptr && entry->state == State::kValue) bytes += entry->memory_bytes() - sizeof(Entry);
    texts.reserve(bytes);  // does not move any more
    const auto keep = [&](std::string_view text) {
        const size_t at = texts.size();
        texts.insert(texts.end(), text.begin(), text.end());
        return std::string_view(texts.data() + at, text.size());
    };
    for (const Entry* entry : part.slots) {
        if (entry == nullptr || entry->state != State::kValue) continue;
        TierObject object = entry->object(now_ms);
        object.tenant = keep(object.tenant);
        object.group = keep(object.group);
        object.key = keep(object.key);
        objects.push_back(object);
    }
}

const Entry* Index::look(std::string_view tenant, std::string_view key) const {
    const uint64_t hash = hash_of(tenant, key);
    const Part& part = part_of(hash);
    const Lock lock(part.mutex);
    return part.slots.empty() ? nullptr : part.slots[slot_of(part, rest_of(hash), tenant, key)];
}

bool Index::merge(const Fact& fact) {
    const RecordHeader& header = fact.header;
    const uint64_t hash = hash_of(header.tenant, header.key);
    Part& part = part_of(hash);
    const Lock lock(part.mutex);
    const size_t slot = part.slots.empty() ? 0 : slot_of(part, rest_of(hash), header.tenant, header.key);
    Entry* entry = part.slots.empty() ? nullptr : part.slots[slot];
    if (entry == nullptr) {
        entry = insert(part, hash, header, *fact.file);
        become(*entry, fact);
        if (fact.state == State::kValue) generations_.add(header.generation, place_of(*entry));
        return true;
    }
    const bool counts = outranks(fact, *entry);
    if (!counts) {
        widen(*entry, fact.file->number);
        return false;
    }
    // First the new, then without the old: a value that only moves is found at any time.
    const std::optional<uint64_t> before = entry->state == State::kValue ? std::optional(entry->generation) : std::nullopt;
    if (fact.state == State::kValue) generations_.add(header.generation, place_of(*entry));
    if (before) generations_.remove(*before, place_of(*entry));
    leave(*entry);
    if (entry->group() != header.group) {  // texts have no room to change: another one takes its place
        void* memory = ::operator new(sizeof(Entry) + header.tenant.size() + header.group.size() + header.key.size());
        auto* other = new (memory) Entry(*entry);
        other->group_bytes = static_cast<uint16_t>(header.group.size());
        char* at = reinterpret_cast<char*>(other + 1);
        for (const std::string_view text : {header.tenant, header.group, header.key}) at = std::copy(text.begin(), text.end(), at);
        memory_ += other->memory_bytes() - entry->memory_bytes();
        destroy(std::exchange(entry, other));
        part.slots[slot] = entry;
    }
    widen(*entry, fact.file->number);
    become(*entry, fact);
    return true;
}

void Index::doubt(std::string_view tenant, std::string_view key, uint64_t generation, LogFile& file) {
    const uint64_t hash = hash_of(tenant, key);
    Part& part = part_of(hash);
    const Lock lock(part.mutex);
    if (!part.slots.empty()) {
        if (Entry* entry = part.slots[slot_of(part, rest_of(hash), tenant, key)]) {
            entry->doubt = std::max(entry->doubt, generation);
            return widen(*entry, file.number);
        }
    }
    Fact fact{.state = State::kDoubtful, .file = &file};
    fact.header.tenant = tenant;
    fact.header.key = key;
    fact.header.generation = generation;
    Entry* entry = insert(part, hash, fact.header, file);
    become(*entry, fact);
}

void Index::hide(std::string_view tenant, std::string_view key, LogFile& file) {
    const uint64_t hash = hash_of(tenant, key);
    Part& part = part_of(hash);
    const Lock lock(part.mutex);
    if (part.slots.empty()) return;
    Entry* entry = part.slots[slot_of(part, rest_of(hash), tenant, key)];
    if (entry == nullptr) return;
    widen(*entry, file.number);
    if (entry->state != State::kValue) return;
    generations_.remove(entry->generation, place_of(*entry));
    leave(*entry);
    entry->state = State::kDoubtful;
    join(*entry);
}

void Index::forget(Entry& entry) {
    const uint64_t hash = hash_of(entry.tenant(), entry.key());
    Part& part = part_of(hash);
    const Lock lock(part.mutex);
    const size_t mask = part.slots.size() - 1;
    size_t hole = slot_of(part, entry.hash, entry.tenant(), entry.key());
    MC_CHECK(part.slots[hole] == &entry);
    // Those behind it move up, so that no search ends too early.
    for (size_t at = (hole + 1) & mask; part.slots[at] != nullptr; at = (at + 1) & mask) {
        const size_t home = part.slots[at]->hash & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        part.slots[hole] = part.slots[at];
        hole = at;
    }
    part.slots[hole] = nullptr;
    --part.used;
    if (entry.state == State::kValue) generations_.remove(entry.generation, place_of(entry));
    leave(entry);
    memory_ -= entry.memory_bytes();
    destroy(&entry);
}

Entry* Index::insert(Part& part, uint64_t hash, const RecordHeader& header, const LogFile& file) {
    if ((part.used + 1) * 4 > part.slots.size() * 3) grow(part);
    void* memory = ::operator new(sizeof(Entry) + header.tenant.size() + header.group.size() + header.key.size());
    auto* entry = new (memory) Entry();
    entry->hash = rest_of(hash);
    entry->part = static_cast<uint8_t>(hash % kParts);
    entry->high = file.number;
    entry->low = floor_ == 0 ? file.number : std::min(floor_, file.number);
    entry->key_bytes = static_cast<uint32_t>(header.key.size());
    entry->tenant_bytes = static_cast<uint16_t>(header.tenant.size());
    entry->group_bytes = static_cast<uint16_t>(header.group.size());
    char* at = reinterpret_cast<char*>(entry + 1);
    for (const std::string_view text : {header.tenant, header.group, header.key}) at = std::copy(text.begin(), text.end(), at);
    part.slots[slot_of(part, rest_of(hash), header.tenant, header.key)] = entry;
    ++part.used;
    memory_ += entry->memory_bytes();
    return entry;
}

void Index::grow(Part& part) {
    std::vector<Entry*> before(std::max(kFirstSlots, part.slots.size() * 2), nullptr);
    before.swap(part.slots);
    const size_t mask = part.slots.size() - 1;
    for (Entry* entry : before) {
        if (entry == nullptr) continue;
        size_t slot = entry->hash & mask;
        while (part.slots[slot] != nullptr) slot = (slot + 1) & mask;
        part.slots[slot] = entry;
    }
    memory_ += (part.slots.size() - before.size()) * sizeof(Entry*);
}

void Index::become(Entry& entry, const Fact& fact) {
    entry.state = fact.state;
    entry.generation = fact.header.generation;
    entry.file = fact.file;
    entry.block = fact.block;
    entry.checksum = fact.header.checksum;
    entry.length = fact.header.length;
    entry.payload_at = fact.header.payload_at;
    entry.writer = fact.header.writer;
    entry.soft_pin_end_ms = fact.header.soft_pin_end_ms;
    entry.data_type = fact.header.data_type;
    entry.hard_pin = fact.header.hard_pin;
    std::atomic_ref(entry.used).store(false, std::memory_order_relaxed);
    join(entry);
}

void Index::join(Entry& entry) {
    LogFile& file = *entry.file;
    Entry*& first = entry.state == State::kValue ? file.first_value : file.first_removal;
    entry.previous = nullptr;
    entry.next = first;
    if (first != nullptr) first->previous = &entry;
    first = &entry;
    if (entry.state != State::kValue) {
        ++removals_;
        return;
    }
    ++values_;
    ++file.values;
    file.pinned += entry.hard_pin ? 1 : 0;
    file.live_bytes += entry.record_bytes();
}

void Index::leave(Entry& entry) {
    LogFile& file = *entry.file;
    Entry*& first = entry.state == State::kValue ? file.first_value : file.first_removal;
    (entry.previous == nullptr ? first : entry.previous->next) = entry.next;
    if (entry.next != nullptr) entry.next->previous = entry.previous;
    if (entry.state != State::kValue) {
        --removals_;
        return;
    }
    --values_;
    --file.values;
    file.pinned -= entry.hard_pin ? 1 : 0;
    file.live_bytes -= entry.record_bytes();
}

}  // namespace mooncake::store::log
