// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"

namespace mooncake::store {

/// Blocks in the order of their offsets, to be found by any offset inside them: a sorted array cut into pages, with the first offset of
/// each page in an array of its own. Finding is two binary searches, changing moves at most a page. About 16 bytes per block. Not
/// thread-safe.
class AddressIndex {
public:
    using Block = uint32_t;

    /// No block begins there yet.
    void insert(uint64_t offset, Block block) {
        if (pages_.empty()) add_page(0, offset);
        size_t number = page_of(offset);
        if (pages_[number]->size == kPage) {
            split(number);
            number = page_of(offset);
        }
        Page& page = *pages_[number];
        const size_t at = page.behind(offset);
        std::move_backward(page.offsets.begin() + at, page.offsets.begin() + page.size, page.offsets.begin() + page.size + 1);
        std::move_backward(page.blocks.begin() + at, page.blocks.begin() + page.size, page.blocks.begin() + page.size + 1);
        page.offsets[at] = offset;
        page.blocks[at] = block;
        ++page.size;
        firsts_[number] = page.offsets[0];
        ++size_;
    }
    void erase(uint64_t offset) {
        const size_t number = page_of(offset);
        Page& page = *pages_[number];
        const size_t at = page.behind(offset);
        MC_CHECK(at != 0 && page.offsets[at - 1] == offset);
        std::move(page.offsets.begin() + at, page.offsets.begin() + page.size, page.offsets.begin() + at - 1);
        std::move(page.blocks.begin() + at, page.blocks.begin() + page.size, page.blocks.begin() + at - 1);
        --size_;
        if (--page.size != 0) {
            firsts_[number] = page.offsets[0];
            return;
        }
        pages_.erase(pages_.begin() + static_cast<std::ptrdiff_t>(number));
        firsts_.erase(firsts_.begin() + static_cast<std::ptrdiff_t>(number));
    }
    /// The last block that begins at or before `offset`; 0: none does.
    Block find(uint64_t offset) const {
        if (pages_.empty()) return 0;
        const Page& page = *pages_[page_of(offset)];
        const size_t at = page.behind(offset);
        return at == 0 ? 0 : page.blocks[at - 1];
    }
    size_t size() const noexcept { return size_; }
    size_t memory_bytes() const noexcept { return pages_.capacity() * (sizeof(Page) + sizeof(pages_[0]) + sizeof(firsts_[0])); }

private:
    static constexpr size_t kPage = 256;
    struct Page {
        uint32_t size = 0;
        std::array<uint64_t, kPage> offsets;
        std::array<Block, kPage> blocks;

        /// How many begin at or before.
        size_t behind(uint64_t offset) const {
            return static_cast<size_t>(std::upper_bound(offsets.begin(), offsets.begin() + size, offset) - offsets.begin());
        }
    };

    /// The one where it is, or would go.
    size_t page_of(uint64_t offset) const {
        const auto behind = static_cast<size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), offset) - firsts_.begin());
        return behind == 0 ? 0 : behind - 1;
    }
    void add_page(size_t number, uint64_t first) {
        pages_.insert(pages_.begin() + static_cast<std::ptrdiff_t>(number), std::make_unique<Page>());
        firsts_.insert(firsts_.begin() + static_cast<std::ptrdiff_t>(number), first);
    }
    /// Appending leaves full pages behind: most indexes are built in order.
    void split(size_t number) {
        const size_t kept = number + 1 == pages_.size() ? kPage - kPage / 8 : kPage / 2;
        add_page(number + 1, pages_[number]->offsets[kept]);
        Page &from = *pages_[number], &to = *pages_[number + 1];
        to.size = static_cast<uint32_t>(kPage - kept);
        std::copy(from.offsets.begin() + kept, from.offsets.end(), to.offsets.begin());
        std::copy(from.blocks.begin() + kept, from.blocks.end(), to.blocks.begin());
        from.size = static_cast<uint32_t>(kept);
    }

    std::vector<std::unique_ptr<Page>> pages_;
    std::vector<uint64_t> firsts_;  // of each page
    size_t size_ = 0;
};

}  // namespace mooncake::store
