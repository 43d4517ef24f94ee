// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/prefix_index.h"

#include <algorithm>

#include "base/error.h"

namespace mooncake::conductor {

void PrefixIndex::add_instance(InstanceId id, size_t capacity_blocks) {
    if (id >= views_.size()) views_.resize(id + 1);
    MC_CHECK(!views_[id].known);
    views_[id].known = true;
    views_[id].capacity = capacity_blocks;
}

void PrefixIndex::remove_instance(InstanceId id) {
    clear(id);
    views_[id] = View();
}

void PrefixIndex::use(InstanceId id, std::span<const BlockHash> blocks) {
    // From the end, so that of one prompt the blocks at its beginning are evicted last: the others are of no use without them.
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) insert(id, *block);
    shrink(id);
}

void PrefixIndex::insert(InstanceId id, BlockHash block) {
    View& view = views_[id];
    const auto found = view.places.find(block);
    if (found != view.places.end()) {
        view.order.splice(view.order.begin(), view.order, found->second);
        return;
    }
    view.order.push_front(block);
    view.places.emplace(block, view.order.begin());
    holders_[block].push_back(id);
    // A prompt longer than the cache must not make the index grow without bound while it is entered.
    if (view.places.size() > 2 * view.capacity) shrink(id);
}

void PrefixIndex::remove(InstanceId id, BlockHash block) {
    View& view = views_[id];
    const auto found = view.places.find(block);
    if (found == view.places.end()) return;
    view.order.erase(found->second);
    view.places.erase(found);
    forget(id, block);
}

void PrefixIndex::clear(InstanceId id) {
    View& view = views_[id];
    for (const BlockHash block : view.order) forget(id, block);
    view.order.clear();
    view.places.clear();
}

bool PrefixIndex::holds(InstanceId id, BlockHash block) const { return id < views_.size() && views_[id].places.contains(block); }

size_t PrefixIndex::size(InstanceId id) const { return id < views_.size() ? views_[id].places.size() : 0; }

void PrefixIndex::match(std::span<const BlockHash> blocks, std::vector<uint32_t>& lengths) const {
    lengths.assign(views_.size(), 0);
    for (uint32_t number = 0; number < blocks.size(); ++number) {
        const auto found = holders_.find(blocks[number]);
        if (found == holders_.end()) return;
        bool any = false;
        for (const InstanceId id : found->second) {
            if (lengths[id] != number) continue;
            lengths[id] = number + 1;
            any = true;
        }
        if (!any) return;
    }
}

void PrefixIndex::forget(InstanceId id, BlockHash block) {
    const auto found = holders_.find(block);
    std::vector<InstanceId>& ids = found->second;
    const auto place = std::find(ids.begin(), ids.end(), id);
    *place = ids.back();
    ids.pop_back();
    if (ids.empty()) holders_.erase(found);
}

void PrefixIndex::shrink(InstanceId id) {
    View& view = views_[id];
    while (view.places.size() > view.capacity) {
        const BlockHash oldest = view.order.back();
        view.order.pop_back();
        view.places.erase(oldest);
        forget(id, oldest);
    }
}

}  // namespace mooncake::conductor
