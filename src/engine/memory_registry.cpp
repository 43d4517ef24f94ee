// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_registry.h"

#include <algorithm>

namespace mooncake {

namespace {

/// A transfer of ours may still name a region when it goes: it is used again only when many others have gone.
constexpr size_t kRegionsKept = 1024;

const std::byte* end_of(const MemoryRegion& region) { return region.address + region.length; }
uint64_t address_of(const std::byte* pointer) { return reinterpret_cast<uint64_t>(pointer); }
bool touch(const MemoryRegion& a, const MemoryRegion& b) { return a.address < end_of(b) && b.address < end_of(a); }

Permission permission_of(const MemoryRegion& region) {
    return {.range = {.address = address_of(region.address), .length = region.length},
            .most = region.writable ? Access::kWrite : Access::kRead,
            .kind = region.kind};
}

}  // namespace

MemoryRegistry::~MemoryRegistry() {
    for (auto& [address, entry] : entries_) access_.replace(address_of(address), {});
}

Result<> MemoryRegistry::add(const MemoryRegion& region) {
    if (region.address == nullptr || region.length == 0) return fail(Code::kInvalidArgument, "memory without address or length");
    if (address_of(region.address) + region.length < region.length)
        return fail(Code::kInvalidArgument, "[{}, +{}) wraps around", static_cast<void*>(region.address), region.length);
    Lock lock(change_mutex_);
    return add_locked(region);
}

Result<> MemoryRegistry::add_locked(const MemoryRegion& region) {
    if (closed_) return fail(Code::kUnavailable, "no memory is registered any more");
    for (const Entry& going : forbidden_)
        if (touch(*going.region, region)) return overlap(region, *going.region);
    // Only this thread changes entries_ while it holds change_mutex_, so reading needs no second lock.
    const auto next = entries_.upper_bound(region.address);
    if (next != entries_.begin()) {
        Entry& before = std::prev(next)->second;
        if (before.range.contains(region)) {
            if (before.region->remote_accessible != region.remote_accessible) return overlap(region, *before.region);
            return before.range.add(region, ++last_number_);
        }
        if (touch(*before.region, region)) return overlap(region, *before.region);
    }
    if (next != entries_.end() && touch(*next->second.region, region)) return overlap(region, *next->second.region);
    MC_ASSIGN_OR_RETURN(Entry entry, open(RegisteredRange(region, ++last_number_)));
    const uint64_t number = entry.range.number();
    try {
        {
            WriteLock lock(lookup_mutex_);
            insert(std::move(entry));
        }
        if (region.remote_accessible) access_.allow(permission_of(region));  // last: no peer touches what is not registered in the end
    } catch (...) {
        WriteLock lock(lookup_mutex_);
        order_.erase(number);
        if (const auto found = entries_.find(region.address); found != entries_.end()) take_out(found);
        devices_.erase(region.address);
        device_regions_.store(devices_.size(), std::memory_order_relaxed);
        throw;
    }
    return {};
}

Result<MemoryRegistry::Entry> MemoryRegistry::open(RegisteredRange range) {
    Entry entry;
    entry.range = std::move(range);
    entry.region = take_region();
    *entry.region = entry.range.region();
    if (!entry.region->remote_accessible) return entry;
    for (Transport* const transport : transports_) {
        auto handle = transport->register_memory(*entry.region);
        if (!handle) {
            discard(entry);
            return Unexpected(std::move(handle).error().with_context(transport->capabilities().name));
        }
        if (*handle) entry.handles.push_back(std::move(*handle));
    }
    return entry;
}

void MemoryRegistry::discard(Entry& entry) {
    // Peers that look for something may have found it already, but nobody was told of it.
    for (const auto& handle : entry.handles) (void)handle->revoke(Deadline::after(1s));
    entry.handles.clear();
    free_regions_.push_back(entry.region);
}

void MemoryRegistry::insert(Entry entry) {
    if (entry.region->remote_accessible) {
        order_.emplace(entry.range.number(), entry.region);
        listing_.fetch_add(1, std::memory_order_release);
    }
    const std::byte* const address = entry.region->address;
    const bool device = entry.region->kind != MemoryKind::kHost;
    if (device) devices_.emplace(address, entry.region);
    device_regions_.store(devices_.size(), std::memory_order_relaxed);
    entries_.emplace(address, std::move(entry));
    if (device) version_.store(unique_number(), std::memory_order_release);
}

void MemoryRegistry::take_out(Entries::iterator found) {
    devices_.erase(found->first);
    device_regions_.store(devices_.size(), std::memory_order_relaxed);
    entries_.erase(found);
}

// ---- taking back

Result<std::optional<MemoryRegistry::Going>> MemoryRegistry::release(const std::byte* address) {
    for (auto going = forbidden_.begin(); going != forbidden_.end(); ++going) {
        if (going->region->address != address) continue;
        if (going->fencing) return fail(Code::kBusy, "{} is being unregistered by another thread", static_cast<const void*>(address));
        going->fencing = true;
        return going;
    }
    const auto next = entries_.upper_bound(address);
    if (next == entries_.begin()) return fail(Code::kNotRegistered, "{} is not registered", static_cast<const void*>(address));
    const auto found = std::prev(next);
    switch (found->second.range.release(address)) {
        case RegisteredRange::Released::kNothing: break;
        case RegisteredRange::Released::kCounted: return std::nullopt;
        case RegisteredRange::Released::kLast: {
            auto going = forbid(found);
            if (going) return *going;
            found->second.range.restore();
            return Unexpected(std::move(going).error());
        }
    }
    return fail(Code::kNotRegistered, "{} is not the start of registered memory", static_cast<const void*>(address));
}

Result<MemoryRegistry::Going> MemoryRegistry::forbid(Entries::iterator found) {
    // What was registered inside goes on by itself. The transports know it before they forget the wider range, and the permissions
    // change in one step, so that peers find it at every moment.
    std::vector<Entry> left;
    Result<> opened;
    for (const auto& [start, inner] : found->second.range.inside()) {
        MemoryRegion region = *found->second.region;
        region.address = inner->region().address;
        region.length = inner->region().length;
        region.location = inner->region().location;
        region.writable = inner->region().writable;
        region.shared_offset += static_cast<uint64_t>(start - found->first);
        auto entry = open(RegisteredRange(region, inner->number()));
        if (!entry) {
            for (Entry& undone : left) discard(undone);
            return Unexpected(std::move(entry).error().with_context("memory registered inside"));
        }
        left.push_back(std::move(*entry));
    }
    std::vector<Permission> permissions;
    for (const Entry& entry : left) permissions.push_back(permission_of(*entry.region));
    if (found->second.region->remote_accessible) access_.replace(address_of(found->first), permissions);

    auto inside = found->second.range.take_inside();
    WriteLock lock(lookup_mutex_);
    order_.erase(found->second.range.number());
    const Going going = forbidden_.insert(forbidden_.end(), std::move(found->second));
    going->fencing = true;
    take_out(found);
    for (Entry& entry : left) {
        entry.range.take_over(std::move(*inside.at(entry.region->address)));
        insert(std::move(entry));
    }
    listing_.fetch_add(1, std::memory_order_release);
    version_.store(unique_number(), std::memory_order_release);
    return going;
}

Result<> MemoryRegistry::remove(const std::byte* address, Deadline deadline) {
    std::optional<Going> going;
    {
        Lock lock(change_mutex_);
        MC_ASSIGN_OR_RETURN(going, release(address));
        if (!going) return {};
    }
    return fence(std::span(&*going, 1), deadline);
}

Result<> MemoryRegistry::remove_within(AddressRange range, Deadline deadline) {
    const MemoryRegion all{.address = reinterpret_cast<std::byte*>(range.address), .length = range.length};
    std::vector<Going> going;
    {
        Lock lock(change_mutex_);
        for (auto entry = forbidden_.begin(); entry != forbidden_.end(); ++entry) {
            if (!touch(*entry->region, all)) continue;
            if (entry->fencing) return fail(Code::kBusy, "{} is being unregistered by another thread", static_cast<void*>(all.address));
            going.push_back(entry);
        }
        auto first = entries_.upper_bound(all.address);
        if (first != entries_.begin() && end_of(*std::prev(first)->second.region) > all.address) --first;
        std::vector<Entries::iterator> inside;
        for (auto found = first; found != entries_.end() && found->first < end_of(all); ++found) {
            if (found->first < all.address || end_of(*found->second.region) > end_of(all)) return overlap(all, *found->second.region);
            inside.push_back(found);
        }
        for (const auto found : inside) {
            found->second.range.take_inside();
            MC_ASSIGN_OR_RETURN(const Going entry, forbid(found));
            going.push_back(entry);
        }
        for (const Going entry : going) entry->fencing = true;
    }
    return fence(going, deadline);
}

Result<> MemoryRegistry::wait_for(const Entry& entry, Deadline deadline) {
    Result<> outcome;
    if (entry.region->remote_accessible && !access_.quiesce(deadline))
        outcome = fail(Code::kBusy, "memory at {} is still being accessed", static_cast<void*>(entry.region->address));
    for (const auto& handle : entry.handles) {
        auto revoked = handle->revoke(deadline);
        if (!revoked && outcome) outcome = std::move(revoked);
    }
    return outcome;
}

Result<> MemoryRegistry::fence(std::span<const Going> entries, Deadline deadline) {
    Result<> first;
    for (const Going going : entries) {
        auto over = wait_for(*going, deadline);  // nobody else touches an entry that is fencing
        Lock lock(change_mutex_);
        going->fencing = false;
        if (!over) {
            if (first) first = std::move(over);
            continue;
        }
        free_regions_.push_back(going->region);
        forbidden_.erase(going);
    }
    return first;
}

Result<> MemoryRegistry::close(Deadline deadline) {
    {
        Lock lock(change_mutex_);
        closed_ = true;
    }
    Result<> first;
    if (!access_.close(deadline)) first = fail(Code::kBusy, "registered memory is still being accessed");
    for (Transport* const transport : transports_) {
        auto stopped = transport->stop_serving(deadline);
        if (!stopped && first) first = Unexpected(std::move(stopped).error().with_context(transport->capabilities().name));
    }
    MC_RETURN_IF_ERROR(std::move(first));
    Lock lock(change_mutex_);
    WriteLock write(lookup_mutex_);
    forbidden_.clear();
    order_.clear();
    devices_.clear();
    device_regions_.store(0, std::memory_order_relaxed);
    entries_.clear();
    version_.store(unique_number(), std::memory_order_release);
    listing_.fetch_add(1, std::memory_order_release);
    return {};
}

// ---- looking up

MemoryRegistry::Entries::const_iterator MemoryRegistry::around(const std::byte* address) const {
    auto next = entries_.upper_bound(address);
    if (next == entries_.begin()) return entries_.end();
    const auto found = std::prev(next);
    return end_of(*found->second.region) > address ? found : entries_.end();
}

const MemoryRegion* MemoryRegistry::find(const std::byte* address, uint64_t length) const {
    ReadLock lock(lookup_mutex_);
    const auto first = around(address);
    if (first == entries_.end()) return nullptr;
    const std::byte* const end = address + length;
    for (auto found = first;;) {
        const std::byte* const covered_to = end_of(*found->second.region);
        if (covered_to >= end) return first->second.region;
        if (++found == entries_.end() || found->first != covered_to) return nullptr;
    }
}

MemoryKind MemoryRegistry::find_kind(const std::byte* address, uint64_t length) const noexcept {
    ReadLock lock(lookup_mutex_);
    for (const std::byte* const at : {address, address + (length == 0 ? 0 : length - 1)}) {
        const auto found = around(at);
        if (found != entries_.end() && found->second.region->kind != MemoryKind::kHost) return found->second.region->kind;
    }
    return MemoryKind::kHost;
}

int MemoryRegistry::device_of(const std::byte* address, uint64_t length) const noexcept {
    if (!has_device_memory() || length == 0) return -1;
    ReadLock lock(lookup_mutex_);
    const auto found = around(address);
    return found != entries_.end() && found->second.region->kind != MemoryKind::kHost ? found->second.region->device : -1;
}

size_t MemoryRegistry::resolve(std::span<const Block> blocks, Completion* completion, std::vector<Slice>& slices) const {
    const size_t before = slices.size();
    // At least twice as much: a batch of many tasks comes here once for each of them.
    if (const size_t need = before + blocks.size(); need > slices.capacity()) slices.reserve(std::max(need, 2 * slices.capacity()));
    const MemoryRegion* region = nullptr;  // of the previous block: batches mostly stay in one region
    const std::byte* region_end = nullptr;
    ReadLock lock(lookup_mutex_);
    for (Block block : blocks) {
        if (block.length == 0) continue;
        if (!devices_.empty()) cut_at_borders(block, completion, slices);
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

size_t MemoryRegistry::resolve(std::span<const Block> blocks, Completion* completion, std::vector<Slice>& slices, Last& last) const {
    const uint64_t version = this->version();  // before we look: what is found is at least as new
    const Block& first = blocks.front();
    if (blocks.size() == 1 && last.version == version && last.contains(first) && first.length != 0) [[likely]] {
        slices.insert(slices.end(), Slice{.local = first.local,
                                          .remote = first.remote,
                                          .length = first.length,
                                          .completion = completion,
                                          .region = last.region,
                                          .copier = first.copier});
        return 1;
    }
    const size_t added = resolve(blocks, completion, slices);
    if (added == 0) return 0;
    if (const MemoryRegion* const region = slices.back().region)
        last = {.version = version, .region = region, .address = region->address, .length = region->length};
    return added;
}

void MemoryRegistry::cut_at_borders(Block& block, Completion* completion, std::vector<Slice>& slices) const {
    for (;;) {
        const auto found = around(block.local);
        if (found == entries_.end() || found->second.region->kind == MemoryKind::kHost) return;
        const auto inside = static_cast<uint64_t>(end_of(*found->second.region) - block.local);
        const auto next = std::next(found);
        const bool goes_on = next != entries_.end() && next->first == end_of(*found->second.region);
        if (inside >= block.length || !goes_on) return;
        slices.push_back({.local = block.local,
                          .remote = block.remote,
                          .length = inside,
                          .completion = completion,
                          .region = found->second.region,
                          .copier = block.copier});
        block = {.local = block.local + inside, .remote = block.remote + inside, .length = block.length - inside, .copier = block.copier};
    }
}

std::vector<BufferRecord> MemoryRegistry::buffers(size_t limit) const {
    ReadLock lock(lookup_mutex_);
    std::vector<BufferRecord> records;
    records.reserve(std::min(limit, order_.size()));
    for (auto next = order_.begin(); next != order_.end() && records.size() < limit; ++next) {
        const MemoryRegion& region = *next->second;
        records.push_back({.address = address_of(region.address), .length = region.length, .location = region.location});
    }
    return records;
}

std::vector<DeviceRange> MemoryRegistry::device_memory(size_t limit) const {
    std::vector<DeviceRange> ranges;
    if (!has_device_memory()) return ranges;
    ReadLock lock(lookup_mutex_);
    for (const auto& [address, region] : devices_) {
        if (!region->remote_accessible) continue;
        const DeviceRange next{.address = address_of(address), .length = region->length, .kind = region->kind, .device = region->device};
        DeviceRange* const last = ranges.empty() ? nullptr : &ranges.back();
        if (last != nullptr && last->end() == next.address && last->kind == next.kind && last->device == next.device) {
            last->length += next.length;
            continue;
        }
        if (ranges.size() == limit) break;
        ranges.push_back(next);
    }
    return ranges;
}

size_t MemoryRegistry::size() const {
    ReadLock lock(lookup_mutex_);
    return entries_.size();
}

MemoryRegion* MemoryRegistry::take_region() {
    if (free_regions_.size() <= kRegionsKept) return &pool_.emplace_back();
    MemoryRegion* const region = free_regions_.front();
    free_regions_.pop_front();
    return region;
}

}  // namespace mooncake
