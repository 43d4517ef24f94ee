// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_registry.h"

#include <algorithm>

#include "base/log.h"

namespace mooncake {

namespace {

const std::byte* end_of(const MemoryRegion& region) { return region.address + region.length; }

Unexpected overlap(const MemoryRegion& region, const MemoryRegion& other) {
    return fail(Code::kOverlap, "[{}, +{}) overlaps the registered [{}, +{})", static_cast<const void*>(region.address), region.length,
                static_cast<const void*>(other.address), other.length);
}

}  // namespace

MemoryRegistry::~MemoryRegistry() {
    for (auto& [address, entry] : entries_) {
        if (entry.allowed) access_.revoke(reinterpret_cast<uint64_t>(address), Deadline::after(0s));
    }
}

Result<> MemoryRegistry::add(const MemoryRegion& region) {
    if (region.address == nullptr || region.length == 0) return fail(Code::kInvalidArgument, "memory without address or length");
    if (reinterpret_cast<uint64_t>(region.address) + region.length < region.length)
        return fail(Code::kInvalidArgument, "[{}, +{}) wraps around", static_cast<void*>(region.address), region.length);
    Lock lock(change_mutex_);
    return add_locked(region);
}

Result<> MemoryRegistry::add_locked(const MemoryRegion& region) {
    // Only this thread changes entries_ while it holds change_mutex_, so reading needs no second lock.
    auto next = entries_.upper_bound(region.address);
    if (next != entries_.begin()) {
        Entry& before = std::prev(next)->second;
        if (end_of(*before.region) > region.address) {
            if (end_of(*before.region) < end_of(region)) return overlap(region, *before.region);
            return add_inside(before, region);
        }
    }
    if (next != entries_.end() && next->first < end_of(region)) return overlap(region, *next->second.region);
    return publish(region);
}

Result<> MemoryRegistry::add_inside(Entry& entry, const MemoryRegion& region) {
    if (entry.draining || entry.region->remote_accessible != region.remote_accessible) return overlap(region, *entry.region);
    if (region.length == entry.region->length) {
        ++entry.count;
        return {};
    }
    std::vector<Inner>& at = entry.inner[region.address];
    if (!at.empty() && at.back().length == region.length) ++at.back().count;
    else at.push_back({.length = region.length, .count = 1});
    return {};
}

Result<> MemoryRegistry::publish(const MemoryRegion& region) {
    Entry entry;
    entry.region = take_region();
    *entry.region = region;
    if (region.remote_accessible) {
        for (Transport* const transport : transports_) {
            auto handle = transport->register_memory(*entry.region);
            if (!handle) {
                (void)revoke(entry, Deadline::after(1s));  // nobody could know the range yet
                free_regions_.push_back(entry.region);
                return Unexpected(std::move(handle).error().with_context(transport->capabilities().name));
            }
            if (*handle) entry.handles.push_back(std::move(*handle));
        }
        access_.allow({.address = reinterpret_cast<uint64_t>(region.address), .length = region.length},
                      region.writable ? Access::kWrite : Access::kRead);
        entry.allowed = true;
    }
    WriteLock lock(lookup_mutex_);
    entries_.emplace(region.address, std::move(entry));
    return {};
}

Result<MemoryRegistry::Entry*> MemoryRegistry::release(const std::byte* address) {
    auto next = entries_.upper_bound(address);
    if (next == entries_.begin()) return fail(Code::kNotRegistered, "{} is not registered", static_cast<const void*>(address));
    Entry& entry = std::prev(next)->second;
    if (const auto at = entry.inner.find(address); at != entry.inner.end()) {
        Inner& newest = at->second.back();
        if (--newest.count == 0) at->second.pop_back();
        if (at->second.empty()) entry.inner.erase(at);
        return nullptr;
    }
    if (entry.region->address != address)
        return fail(Code::kNotRegistered, "{} is not the start of registered memory", static_cast<const void*>(address));
    if (entry.fencing) return fail(Code::kBusy, "{} is being unregistered by another thread", static_cast<const void*>(address));
    if (!entry.draining && --entry.count > 0) return nullptr;
    WriteLock lock(lookup_mutex_);
    entry.draining = true;
    entry.fencing = true;
    return &entry;
}

Result<> MemoryRegistry::remove(const std::byte* address, Deadline deadline) {
    Entry* entry = nullptr;
    {
        Lock lock(change_mutex_);
        MC_ASSIGN_OR_RETURN(entry, release(address));
        if (entry == nullptr) return {};
    }
    auto revoked = revoke(*entry, deadline);  // nobody else touches an entry that is fencing

    Lock lock(change_mutex_);
    entry->fencing = false;
    MC_RETURN_IF_ERROR(std::move(revoked));
    const auto found = entries_.find(address);
    const MemoryRegion outer = *found->second.region;
    const auto inner = std::move(found->second.inner);
    {
        WriteLock write(lookup_mutex_);
        free_regions_.push_back(found->second.region);
        entries_.erase(found);
        version_.fetch_add(1, std::memory_order_release);
    }
    // What was registered inside goes on by itself, the widest first so that the others are counted inside it again.
    std::vector<MemoryRegion> left;
    for (const auto& [start, lengths] : inner) {
        for (const Inner& one : lengths) {
            MemoryRegion region = outer;
            region.address = const_cast<std::byte*>(start);
            region.length = one.length;
            region.shared_offset += static_cast<uint64_t>(start - outer.address);
            left.insert(left.end(), one.count, region);
        }
    }
    std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a.length > b.length; });
    for (const MemoryRegion& region : left)
        if (auto added = add_locked(region); !added)
            MC_LOG_ERROR("memory inside an unregistered range is lost: {}", added.error().to_string());
    return {};
}

Result<> MemoryRegistry::revoke(Entry& entry, Deadline deadline) {
    Result<> outcome;
    if (entry.allowed && !access_.revoke(reinterpret_cast<uint64_t>(entry.region->address), deadline))
        outcome = fail(Code::kBusy, "memory at {} is still being accessed", static_cast<void*>(entry.region->address));
    for (const auto& handle : entry.handles) {
        auto revoked = handle->revoke(deadline);
        if (!revoked && outcome) outcome = std::move(revoked);
    }
    return outcome;
}

MemoryRegistry::Entries::const_iterator MemoryRegistry::around(const std::byte* address) const {
    auto next = entries_.upper_bound(address);
    if (next == entries_.begin()) return entries_.end();
    const auto found = std::prev(next);
    return end_of(*found->second.region) > address && !found->second.draining ? found : entries_.end();
}

const MemoryRegion* MemoryRegistry::find(const std::byte* address, uint64_t length) const {
    ReadLock lock(lookup_mutex_);
    const auto first = around(address);
    if (first == entries_.end()) return nullptr;
    const std::byte* const end = address + length;
    for (auto found = first;;) {
        const std::byte* const covered_to = end_of(*found->second.region);
        if (covered_to >= end) return first->second.region;
        if (++found == entries_.end() || found->first != covered_to || found->second.draining) return nullptr;
    }
}

size_t MemoryRegistry::resolve(std::span<const Block> blocks, Completion* completion, std::vector<Slice>& slices) const {
    const size_t before = slices.size();
    slices.reserve(before + blocks.size());
    const MemoryRegion* region = nullptr;  // of the previous block: batches mostly stay in one region
    const std::byte* region_end = nullptr;
    ReadLock lock(lookup_mutex_);
    for (const Block& block : blocks) {
        if (block.length == 0) continue;
        if (region == nullptr || block.local < region->address || block.local + block.length > region_end) {
            const auto found = around(block.local);
            region = found == entries_.end() || end_of(*found->second.region) < block.local + block.length ? nullptr : found->second.region;
            if (region != nullptr) region_end = end_of(*region);
        }
        if (slices.size() > before) {
            Slice& last = slices.back();
            if (last.local + last.length == block.local && last.remote + last.length == block.remote && last.region == region &&
                last.copier == nullptr && block.copier == nullptr) {
                last.length += block.length;
                continue;
            }
        }
        slices.push_back({.local = block.local,
                          .remote = block.remote,
                          .length = block.length,
                          .completion = completion,
                          .region = region,
                          .copier = block.copier});
    }
    return slices.size() - before;
}

std::vector<BufferRecord> MemoryRegistry::buffers(size_t limit) const {
    ReadLock lock(lookup_mutex_);
    std::vector<BufferRecord> records;
    for (auto entry = entries_.begin(); entry != entries_.end() && records.size() < limit; ++entry) {
        const MemoryRegion& region = *entry->second.region;
        if (!region.remote_accessible || entry->second.draining) continue;
        records.push_back({.address = reinterpret_cast<uint64_t>(region.address), .length = region.length, .location = region.location});
    }
    return records;
}

size_t MemoryRegistry::size() const {
    ReadLock lock(lookup_mutex_);
    return entries_.size();
}

MemoryRegion* MemoryRegistry::take_region() {
    if (free_regions_.empty()) return &pool_.emplace_back();
    MemoryRegion* const region = free_regions_.back();
    free_regions_.pop_back();
    return region;
}

}  // namespace mooncake
