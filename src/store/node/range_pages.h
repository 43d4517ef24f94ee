// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "store/protocol/objects.h"

namespace mooncake::store {

/// The records of the ranges of one segment, in the order of their generations. Generations rise, what came together mostly goes together,
/// and events about neighbours come together. So neighbours lie together, in pages, and the keys of a page in one text: a batch of events
/// touches a few rows of cache lines, and no record needs an allocation of its own. Generations may come in any order and lie any distance
/// apart; those that rise are the cheap ones. A record takes 64 bytes and its key; those that are gone keep their space until their page
/// is empty, or swept, which happens as soon as there are more than a quarter as many as others. Not thread-safe.
class RangePages {
public:
    struct Record {
        uint64_t offset = 0, length = 0;
        uint32_t group = 0, origin = 0;  // names; an origin is a writer and a tenant
        ObjectDataType data_type = ObjectDataType::kUnknown;
        bool hard_pin = false;
        bool filled = false;
        bool round = false;
        uint32_t key_at = 0, key_bytes = 0;  // in the text of the page; no key: gone
        uint64_t checksum = 0;
        Time soft_pin_end{};

        bool used() const noexcept { return key_bytes != 0; }
    };
    struct Page {
        static constexpr size_t kRecordsMax = 64;
        static constexpr size_t kTextFull = 64 << 10;  // one key more may go over it
        static constexpr size_t kSlotBytes = sizeof(Record) + sizeof(uint64_t);

        uint64_t first = 0, last = 0;       // generations
        std::vector<uint64_t> generations;  // rising
        std::vector<Record> records;
        std::string texts;
        uint32_t used = 0;
        uint32_t next_slot = 0;  // behind the one found last
        size_t wasted = 0;       // bytes of what is gone

        size_t bytes() const noexcept { return generations.size() * kSlotBytes + texts.size(); }
        size_t used_bytes() const noexcept { return bytes() - wasted; }
        bool full() const noexcept { return generations.size() >= kRecordsMax || texts.size() >= kTextFull; }
        bool covers(uint64_t generation) const noexcept { return generation - first <= last - first; }
        std::string_view key(const Record& record) const noexcept { return {texts.data() + record.key_at, record.key_bytes}; }
        /// Where this generation lies if they are spread evenly; covers() must hold.
        size_t guess(uint64_t generation) const noexcept;
        size_t slot_of(uint64_t generation) const noexcept;  // of the first one that is not smaller
        /// Behind all others.
        void append(uint64_t generation, const Record& record, std::string_view key);
    };
    /// Valid until something is added, or tidy().
    struct Found {
        Page* page = nullptr;
        Record* record = nullptr;

        explicit operator bool() const noexcept { return record != nullptr && record->used(); }
        std::string_view key() const noexcept { return page->key(*record); }
    };

    Found find(uint64_t generation) { return find_in(find_page(generation), generation); }
    /// The same in steps, each of which brings into the cache what the next one will touch, while it is done for other generations.
    Page* find_page(uint64_t generation);
    static void look_into(const Page* page, uint64_t generation);
    static Found find_in(Page* page, uint64_t generation);

    /// There must be none of this generation. The key must not be empty.
    Found add(uint64_t generation, std::string_view key);
    void set_key(Found found, std::string_view key);
    void erase(Found found);
    /// Gives back the space of what is gone, looking at no more than so many pages; to be called after some were erased.
    void tidy(size_t pages_max);
    void clear() { *this = {}; }

    /// Visits in order what has a greater generation, until `visit(generation, found)` is false; true: that was all. May erase.
    template <typename Visit>
    bool for_each(std::optional<uint64_t> after, Visit&& visit) const;

    size_t size() const noexcept { return used_; }
    size_t pages() const noexcept { return pages_; }
    size_t memory_bytes() const noexcept;

private:
    struct Shelf {
        std::vector<uint64_t> begins;  // of pages: nothing in it is smaller, and everything before it is
        std::vector<std::unique_ptr<Page>> pages;
    };
    struct Spot {
        size_t shelf = 0, index = 0;
    };
    static constexpr size_t kShelfPages = 256;
    static constexpr size_t kWasteAllowed = 16 << 10;  // whatever there is besides

    /// The page that holds this generation, if any does. There must be pages.
    Spot spot_of(uint64_t generation) const noexcept;
    Page& page_at(Spot spot) const noexcept { return *shelves_[spot.shelf].pages[spot.index]; }
    bool step(Spot& spot) const noexcept;  // false: it was the last one
    bool step_back(Spot& spot) const noexcept;

    Page& begin_page(uint64_t generation);
    Page& page_for(uint64_t generation);
    Spot insert_page(Spot before, uint64_t begin, std::unique_ptr<Page> page);
    void remove_page(Spot spot);
    Page& split(Spot spot, uint64_t generation);
    void squeeze(Page& page, const Page* more = nullptr);
    void sweep_page();
    bool too_much_waste() const noexcept { return wasted_ > bytes_ / 5 + kWasteAllowed; }

    std::vector<uint64_t> shelf_begins_;
    std::vector<Shelf> shelves_;  // none is empty
    Page* back_ = nullptr;        // the last one
    struct {
        Page* page = nullptr;
        uint64_t begin = 0, end = 0;  // it has everything there is from the one up to the other
    } hint_;                          // the one found last
    std::vector<uint64_t> emptied_;
    uint64_t sweep_from_ = 0;
    size_t used_ = 0, pages_ = 0;
    size_t bytes_ = 0, wasted_ = 0;  // of all pages
};
static_assert(RangePages::Page::kSlotBytes == 64);

template <typename Visit>
bool RangePages::for_each(std::optional<uint64_t> after, Visit&& visit) const {
    if (pages_ == 0) return true;
    Spot spot = after ? spot_of(*after) : Spot{};
    do {
        Page& page = page_at(spot);
        for (size_t slot = 0; slot < page.generations.size(); ++slot) {
            if (!page.records[slot].used() || (after && page.generations[slot] <= *after)) continue;
            if (!visit(page.generations[slot], Found{&page, &page.records[slot]})) return false;
        }
    } while (step(spot));
    return true;
}

}  // namespace mooncake::store
