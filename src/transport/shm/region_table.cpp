// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/region_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace mooncake::shm {

namespace {

bool live(uint64_t state) noexcept { return (state & 1) != 0; }

}  // namespace

Result<std::unique_ptr<RegionTable>> RegionTable::create(Incarnation incarnation) {
    MC_ASSIGN_OR_RETURN(MemoryFile file, MemoryFile::create("mooncake-regions", kTableBytes));
    MC_ASSIGN_OR_RETURN(Mapping mapping, file.map(true, kTableBytes));
    ::madvise(mapping.address(), mapping.length(), MADV_DONTFORK);
    file.forbid_new_writers();
    // The entries are zero as the kernel made them: generation 0, not live.
    auto* const header = new (mapping.address()) TableHeader{};
    header->magic = kTableMagic;
    header->version = kVersion;
    header->entry_bytes = sizeof(TableEntry);
    header->incarnation = incarnation.value;
    return std::unique_ptr<RegionTable>(new RegionTable(std::move(file), std::move(mapping)));
}

Result<uint32_t> RegionTable::publish(const Region& region) {
    Lock lock(mutex_);
    if (closed_) return fail(Code::kUnavailable, "memory is not lent any more");
    uint32_t number = used_;
    if (!free_.empty()) {
        number = free_.back();
        free_.pop_back();
    } else if (used_ < kTableEntries) {
        if (free_.capacity() <= used_) free_.reserve(2 * (size_t{used_} + 1));  // giving one back needs no memory
        header().used.store(++used_, std::memory_order_release);
    } else {
        return fail(Code::kNoSpace, "{} regions are registered already", kTableEntries);
    }
    TableEntry& found = entry(number);
    const uint64_t generation = found.state.load(std::memory_order_relaxed) >> 1;
    found.address.store(region.address, std::memory_order_relaxed);
    found.length.store(region.length, std::memory_order_relaxed);
    found.memory.store(region.memory, std::memory_order_relaxed);
    found.offset.store(region.offset, std::memory_order_relaxed);
    found.rights.store(uint64_t{region.writable} | static_cast<uint64_t>(region.kind) << 8, std::memory_order_relaxed);
    found.state.store((generation + 1) << 1 | 1, std::memory_order_seq_cst);  // publishes the fields: RemoteTable::read()
    header().changes.fetch_add(1, std::memory_order_seq_cst);
    return number;
}

void RegionTable::withdraw(uint32_t number) {
    // Pairs with RemoteTable::still(): a peer's Section that still sees the entry live is one the caller waits for.
    entry(number).state.fetch_and(~uint64_t{1}, std::memory_order_seq_cst);
    header().changes.fetch_add(1, std::memory_order_seq_cst);
}

void RegionTable::release(uint32_t number) {
    Lock lock(mutex_);
    free_.push_back(number);
}

void RegionTable::close() {
    Lock lock(mutex_);
    closed_ = true;
    for (uint32_t number = 0; number < used_; ++number) entry(number).state.fetch_and(~uint64_t{1}, std::memory_order_seq_cst);
    header().changes.fetch_add(1, std::memory_order_seq_cst);
}

Result<RemoteTable> RemoteTable::open(const MemoryFile& file, Incarnation expected) {
    RemoteTable table;
    MC_ASSIGN_OR_RETURN(table.mapping_, file.map(false, kTableBytes));
    ::madvise(table.mapping_.address(), table.mapping_.length(), MADV_DONTFORK);
    const TableHeader& header = table.header();
    if (header.magic != kTableMagic || header.version != kVersion || header.entry_bytes != sizeof(TableEntry))
        return fail(Code::kRefused, "region table of an unknown kind");
    if (header.incarnation != expected.value) return fail(Code::kStale, "region table of another incarnation");
    return table;
}

std::vector<RemoteTable::Found> RemoteTable::read() const {
    std::vector<Found> all;
    const uint32_t used = std::min(header().used.load(std::memory_order_acquire), kTableEntries);
    for (uint32_t number = 0; number < used; ++number) {
        const TableEntry& from = entry(number);
        const uint64_t state = from.state.load(std::memory_order_acquire);
        if (!live(state)) continue;
        const uint64_t rights = from.rights.load(std::memory_order_acquire);
        const RegionTable::Region region{.address = from.address.load(std::memory_order_acquire),
                                         .length = from.length.load(std::memory_order_acquire),
                                         .memory = from.memory.load(std::memory_order_acquire),
                                         .offset = from.offset.load(std::memory_order_acquire),
                                         .writable = (rights & 1) != 0,
                                         .kind = static_cast<MemoryKind>(rights >> 8)};
        // Acquire above: the fields are read before this. If it did not change they belong together.
        if (from.state.load(std::memory_order_relaxed) != state) continue;
        if (region.length == 0 || region.address + region.length < region.address || rights >> 8 >= kMemoryKinds) continue;
        all.push_back({.number = number, .state = state, .region = region});
    }
    return all;
}

}  // namespace mooncake::shm
