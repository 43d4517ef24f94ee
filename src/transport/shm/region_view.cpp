// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/region_view.h"

#include <algorithm>
#include <set>

namespace mooncake::shm {

namespace {

std::byte* mapped_address(const RegionTable::Region& region, const ReachedMemory* memory) {
    if (memory == nullptr || memory->kind != region.kind) return nullptr;
    // The table may say anything; outside of what we mapped the kernel copies, and reports.
    if (region.offset > memory->length || region.length > memory->length - region.offset) return nullptr;
    return memory->address + region.offset;
}

}  // namespace

RegionView::RegionView(const RemoteTable& table, RemoteMemories& memories) : changes_(table.changes()) {
    const std::vector<RemoteTable::Found> found = table.read();
    std::set<uint64_t> named;
    for (const RemoteTable::Found& one : found) {
        if (one.region.memory == 0 || !named.insert(one.region.memory).second) continue;
        RemoteMemory& memory = memories[one.region.memory];
        memory.device = one.region.kind != MemoryKind::kHost;
        if (memory.reached) memories_.push_back(memory.reached);
    }
    std::erase_if(memories, [&named](const auto& memory) { return !named.contains(memory.first); });

    regions_.reserve(found.size());
    for (const RemoteTable::Found& one : found) {
        const auto memory = memories.find(one.region.memory);
        const ReachedMemory* const reached = memory == memories.end() ? nullptr : memory->second.reached.get();
        regions_.push_back({.address = one.region.address,
                            .length = one.region.length,
                            .state = one.state,
                            .mapped = mapped_address(one.region, reached),
                            .number = one.number,
                            .writable = one.region.writable,
                            .kind = one.region.kind,
                            .memory = one.region.memory,
                            .copied = reached == nullptr ? nullptr : &reached->copied});
    }
    has_devices_ = std::any_of(regions_.begin(), regions_.end(), [](const Region& region) { return region.device(); });
    std::sort(regions_.begin(), regions_.end(), [](const Region& a, const Region& b) { return a.address < b.address; });
    // An entry that changed hands while we read may appear to overlap another. Only one of them is live, and find() asks.
    size_t kept = 0;
    for (const Region& region : regions_)
        if (kept == 0 || region.address >= regions_[kept - 1].end()) regions_[kept++] = region;
    regions_.resize(kept);
}

const RegionView::Region* RegionView::find_anew(const RemoteTable& table, Claims::Section& section, AddressRange range, Access access,
                                                size_t& hint) const noexcept {
    if (range.length == 0 || range.address + range.length < range.address) return nullptr;
    const auto holds = [&](const Region& region) { return range.address >= region.address && range.address < region.end(); };
    if (hint >= regions_.size() || !holds(regions_[hint])) {
        const auto after = std::upper_bound(regions_.begin(), regions_.end(), range.address,
                                            [](uint64_t address, const Region& region) { return address < region.address; });
        if (after == regions_.begin() || !holds(*std::prev(after))) return nullptr;
        hint = static_cast<size_t>(std::prev(after) - regions_.begin());
    }
    const uint64_t end = range.address + range.length;
    for (size_t i = hint;; ++i) {
        if (i == regions_.size() || (i > hint && regions_[i].address != regions_[i - 1].end())) return nullptr;
        if (!allows(regions_[i], table, section, access)) return nullptr;
        if (regions_[i].end() >= end) return &regions_[hint];
    }
}

const RegionView::Region* RegionView::first_in(AddressRange range) const noexcept {
    auto region = std::upper_bound(regions_.begin(), regions_.end(), range.address,
                                   [](uint64_t address, const Region& other) { return address < other.address; });
    if (region != regions_.begin()) --region;
    return regions_.data() + (region - regions_.begin());
}

bool RegionView::outdated(const RemoteTable& table, AddressRange range) const noexcept {
    bool gone = false;
    for_each_in(range, [&](const Region& region) { gone = gone || !table.still(region.number, region.state); });
    return gone;
}

const RegionView::Region* RegionView::at(uint64_t address) const noexcept {
    const auto after = std::upper_bound(regions_.begin(), regions_.end(), address,
                                        [](uint64_t wanted, const Region& region) { return wanted < region.address; });
    return after != regions_.begin() && address < std::prev(after)->end() ? &*std::prev(after) : nullptr;
}

}  // namespace mooncake::shm
