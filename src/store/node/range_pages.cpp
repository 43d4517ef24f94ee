// SPDX-License-Identifier: Apache-2.0
#include "store/node/range_pages.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/prefetch.h"

namespace mooncake::store {

// ---- one page

size_t RangePages::Page::guess(uint64_t generation) const noexcept {
    const uint64_t behind = generation - first, span = last - first;
    if (span == generations.size() - 1) return behind;  // all of them are here
    const double share = static_cast<double>(behind) / (static_cast<double>(span) + 1);
    return std::min(static_cast<size_t>(share * static_cast<double>(generations.size())), generations.size() - 1);
}

size_t RangePages::Page::slot_of(uint64_t generation) const noexcept {
    if (generation > last || generations.empty()) return generations.size();
    if (generation <= first) return 0;
    size_t slot = guess(generation);
    while (generations[slot] > generation) --slot;
    while (generations[slot] < generation) ++slot;
    return slot;
}

void RangePages::Page::append(uint64_t generation, const Record& record, std::string_view key) {
    if (generations.empty()) first = generation;
    last = generation;
    generations.push_back(generation);
    records.push_back(record);
    records.back().key_at = static_cast<uint32_t>(texts.size());
    records.back().key_bytes = static_cast<uint32_t>(key.size());
    texts.append(key);
    ++used;
}

// ---- finding

RangePages::Page* RangePages::find_page(uint64_t generation) {
    if (generation >= hint_.begin && generation < hint_.end) return hint_.page;
    if (back_ == nullptr || generation > back_->last) return nullptr;
    const Spot spot = spot_of(generation);
    Spot next = spot;
    hint_.page = shelves_[spot.shelf].pages[spot.index].get();
    hint_.begin = shelves_[spot.shelf].begins[spot.index];
    hint_.end = step(next) ? shelves_[next.shelf].begins[next.index] : back_->last;
    prefetch(hint_.page);
    prefetch(reinterpret_cast<const char*>(hint_.page + 1) - 1);
    return hint_.page;
}

void RangePages::look_into(const Page* page, uint64_t generation) {
    if (page == nullptr || !page->covers(generation)) return;
    prefetch(&page->generations[page->guess(generation)]);
}

RangePages::Found RangePages::find_in(Page* page, uint64_t generation) {
    if (page == nullptr || !page->covers(generation)) return {};
    size_t slot = page->next_slot;
    if (slot >= page->generations.size() || page->generations[slot] != generation) {
        slot = page->slot_of(generation);
        if (page->generations[slot] != generation) return {};
    }
    page->next_slot = static_cast<uint32_t>(slot + 1);
    Record* record = &page->records[slot];
    prefetch_to_write(record);
    prefetch_to_write(reinterpret_cast<const char*>(record + 1) - 1);
    return {page, record};
}

RangePages::Spot RangePages::spot_of(uint64_t generation) const noexcept {
    const auto last_before = [generation](const std::vector<uint64_t>& begins) {
        size_t from = 0;  // without a branch that depends on what is there
        for (size_t count = begins.size(); count > 1;) {
            const size_t half = count / 2;
            from = begins[from + half] <= generation ? from + half : from;
            count -= half;
        }
        return from;
    };
    const size_t shelf = last_before(shelf_begins_);
    return {shelf, last_before(shelves_[shelf].begins)};
}

bool RangePages::step(Spot& spot) const noexcept {
    if (++spot.index < shelves_[spot.shelf].pages.size()) return true;
    spot.index = 0;
    return ++spot.shelf < shelves_.size();
}

bool RangePages::step_back(Spot& spot) const noexcept {
    if (spot.index == 0) {
        if (spot.shelf == 0) return false;
        spot.index = shelves_[--spot.shelf].pages.size();
    }
    --spot.index;
    return true;
}

// ---- adding

RangePages::Found RangePages::add(uint64_t generation, std::string_view key) {
    Page* page = nullptr;
    size_t slot = 0;
    if (back_ == nullptr || generation > back_->last) {
        page = back_ == nullptr || back_->full() ? &begin_page(generation) : back_;
        slot = page->generations.size();
        page->append(generation, {}, key);
        bytes_ += Page::kSlotBytes + key.size();
    } else {
        page = &page_for(generation);
        slot = page->slot_of(generation);
        const bool known = slot < page->generations.size() && page->generations[slot] == generation;
        if (known) {
            MC_CHECK(!page->records[slot].used());
            page->wasted -= Page::kSlotBytes;
            wasted_ -= Page::kSlotBytes;
            page->records[slot] = {};
        } else {
            page->generations.insert(page->generations.begin() + static_cast<std::ptrdiff_t>(slot), generation);
            page->records.emplace(page->records.begin() + static_cast<std::ptrdiff_t>(slot));
            page->first = page->generations.front();
            page->last = page->generations.back();
            bytes_ += Page::kSlotBytes;
        }
        page->records[slot].key_at = static_cast<uint32_t>(page->texts.size());
        page->records[slot].key_bytes = static_cast<uint32_t>(key.size());
        page->texts.append(key);
        bytes_ += key.size();
        ++page->used;
    }
    ++used_;
    return {page, &page->records[slot]};
}

void RangePages::set_key(Found found, std::string_view key) {
    if (found.key() == key) return;
    found.page->wasted += found.record->key_bytes;
    wasted_ += found.record->key_bytes;
    found.record->key_at = static_cast<uint32_t>(found.page->texts.size());
    found.record->key_bytes = static_cast<uint32_t>(key.size());
    found.page->texts.append(key);
    bytes_ += key.size();
}

/// At the end: it will most likely be filled to its own end.
RangePages::Page& RangePages::begin_page(uint64_t generation) {
    auto page = std::make_unique<Page>();
    page->generations.reserve(Page::kRecordsMax);
    page->records.reserve(Page::kRecordsMax);
    Spot spot;
    if (back_ != nullptr) {
        std::string& before = back_->texts;
        if (before.capacity() - before.size() > before.size() / 8) before.shrink_to_fit();
        page->texts.reserve(std::min(before.size() + before.size() / 16, Page::kTextFull));  // keys are mostly as long as those before
        spot = {shelves_.size() - 1, shelves_.back().pages.size()};
    }
    insert_page(spot, generation, std::move(page));
    return *back_;
}

/// With room for it.
RangePages::Page& RangePages::page_for(uint64_t generation) {
    const Spot spot = spot_of(generation);
    // Before the first one of a shelf, nobody begins as early as this.
    uint64_t& begin = shelves_[spot.shelf].begins[spot.index];
    begin = std::min(begin, generation);
    shelf_begins_[spot.shelf] = std::min(shelf_begins_[spot.shelf], begin);
    Page* page = &page_at(spot);
    if (page->full() && page->wasted != 0) squeeze(*page);
    while (page->full()) page = &split(spot_of(generation), generation);
    return *page;
}

/// Returns the one for this generation.
RangePages::Page& RangePages::split(Spot spot, uint64_t generation) {
    Page& page = page_at(spot);
    auto right = std::make_unique<Page>();
    uint64_t begin = generation;
    if (generation < page.last) {  // else it begins a page of its own: more of the kind may follow
        const size_t middle = page.generations.size() / 2;
        begin = page.generations[middle];
        Page left;
        for (size_t slot = 0; slot < page.generations.size(); ++slot) {
            const Record& record = page.records[slot];
            (slot < middle ? left : *right).append(page.generations[slot], record, page.key(record));
        }
        page = std::move(left);
    }
    Page& other = *right;
    Spot behind = spot;
    ++behind.index;
    insert_page(behind, begin, std::move(right));
    return generation >= begin ? other : page;
}

/// Before this place, which may be behind the last page of a shelf.
RangePages::Spot RangePages::insert_page(Spot before, uint64_t begin, std::unique_ptr<Page> page) {
    hint_ = {};
    const bool at_end = shelves_.empty() || (before.shelf + 1 == shelves_.size() && before.index == shelves_.back().pages.size());
    if (at_end) back_ = page.get();
    if (shelves_.empty() || (at_end && shelves_.back().pages.size() >= kShelfPages)) {
        before = {shelves_.size(), 0};
        shelves_.emplace_back();
        shelf_begins_.push_back(begin);
    } else if (shelves_[before.shelf].pages.size() >= kShelfPages) {
        constexpr auto kHalf = static_cast<std::ptrdiff_t>(kShelfPages / 2);
        const auto next = static_cast<std::ptrdiff_t>(before.shelf + 1);
        shelf_begins_.insert(shelf_begins_.begin() + next, shelves_[before.shelf].begins[kHalf]);
        Shelf& right = *shelves_.emplace(shelves_.begin() + next);
        Shelf& left = shelves_[before.shelf];
        right.begins.assign(left.begins.begin() + kHalf, left.begins.end());
        left.begins.resize(kHalf);
        right.pages.assign(std::make_move_iterator(left.pages.begin() + kHalf), std::make_move_iterator(left.pages.end()));
        left.pages.resize(kHalf);
        if (before.index > kHalf) before = {before.shelf + 1, before.index - kHalf};
    }
    Shelf& shelf = shelves_[before.shelf];
    shelf.begins.insert(shelf.begins.begin() + static_cast<std::ptrdiff_t>(before.index), begin);
    shelf.pages.insert(shelf.pages.begin() + static_cast<std::ptrdiff_t>(before.index), std::move(page));
    ++pages_;
    return before;
}

// ---- erasing

void RangePages::erase(Found found) {
    const size_t bytes = Page::kSlotBytes + found.record->key_bytes;
    found.page->wasted += bytes;
    wasted_ += bytes;
    found.record->key_bytes = 0;
    if (--found.page->used == 0) emptied_.push_back(found.page->first);
    --used_;
}

void RangePages::remove_page(Spot spot) {
    hint_ = {};
    const Page& page = page_at(spot);
    wasted_ -= page.wasted;
    bytes_ -= page.bytes();
    Shelf& shelf = shelves_[spot.shelf];
    shelf.begins.erase(shelf.begins.begin() + static_cast<std::ptrdiff_t>(spot.index));
    shelf.pages.erase(shelf.pages.begin() + static_cast<std::ptrdiff_t>(spot.index));
    if (shelf.pages.empty()) {
        shelves_.erase(shelves_.begin() + static_cast<std::ptrdiff_t>(spot.shelf));
        shelf_begins_.erase(shelf_begins_.begin() + static_cast<std::ptrdiff_t>(spot.shelf));
    } else {
        shelf_begins_[spot.shelf] = shelf.begins.front();  // what is before it belongs to the one before
        if (shelf.pages.size() * 4 < shelf.pages.capacity()) {
            shelf.begins.shrink_to_fit();
            shelf.pages.shrink_to_fit();
        }
    }
    --pages_;
    back_ = shelves_.empty() ? nullptr : shelves_.back().pages.back().get();
}

/// Leaves what is used, and takes in what is used of another one that follows.
void RangePages::squeeze(Page& page, const Page* more) {
    hint_ = {};
    wasted_ -= page.wasted;
    bytes_ -= page.bytes();
    const size_t records = page.used + (more != nullptr ? more->used : 0);
    const size_t bytes = page.used_bytes() + (more != nullptr ? more->used_bytes() : 0);
    Page packed;
    packed.generations.reserve(records);
    packed.records.reserve(records);
    packed.texts.reserve(bytes - records * Page::kSlotBytes);
    for (const Page* from : {static_cast<const Page*>(&page), more}) {
        if (from == nullptr) continue;
        for (size_t slot = 0; slot < from->generations.size(); ++slot)
            if (from->records[slot].used()) packed.append(from->generations[slot], from->records[slot], from->key(from->records[slot]));
    }
    page = std::move(packed);
    bytes_ += page.bytes();
}

void RangePages::tidy(size_t pages_max) {
    for (const uint64_t generation : emptied_) {
        if (pages_ == 0) break;
        const Spot spot = spot_of(generation);
        if (page_at(spot).used == 0) remove_page(spot);
    }
    emptied_.clear();
    // Going round: what lies longest since it was swept has most to give.
    for (size_t most = std::min(pages_max, 2 * pages_); most != 0 && too_much_waste(); --most) sweep_page();
}

void RangePages::sweep_page() {
    const Spot spot = spot_of(sweep_from_);
    Page& page = page_at(spot);
    Spot next = spot, previous = spot;
    sweep_from_ = step(next) ? shelves_[next.shelf].begins[next.index] : 0;
    if (step_back(previous)) {
        Page& other = page_at(previous);
        if (page.used + other.used <= Page::kRecordsMax && page.used_bytes() + other.used_bytes() <= Page::kTextFull) {
            squeeze(other, &page);
            remove_page(spot);
            return;
        }
    }
    if (page.wasted * 8 >= page.bytes()) squeeze(page);
}

size_t RangePages::memory_bytes() const noexcept {
    constexpr size_t kHeap = 8;  // the allocator of the C library takes these for itself, and rounds up to 16
    size_t bytes = shelf_begins_.capacity() * sizeof(uint64_t) + shelves_.capacity() * sizeof(Shelf) +
                   emptied_.capacity() * sizeof(uint64_t);
    for (const Shelf& shelf : shelves_) {
        bytes += shelf.begins.capacity() * sizeof(uint64_t) + shelf.pages.capacity() * sizeof(shelf.pages[0]);
        for (const auto& page : shelf.pages)
            bytes += sizeof(Page) + page->generations.capacity() * sizeof(uint64_t) + page->records.capacity() * sizeof(Record) +
                     page->texts.capacity() + 4 * kHeap;
    }
    return bytes;
}

}  // namespace mooncake::store
