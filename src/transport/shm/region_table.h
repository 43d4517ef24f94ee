// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/incarnation.h"
#include "base/shared_memory.h"
#include "base/thread_annotations.h"
#include "device/device.h"
#include "transport/shm/layout.h"

namespace mooncake::shm {

/// The regions peers may use, in memory they map: the owner's side. Thread-safe; every call is O(1). The file is as large as the
/// largest table, but only what was used takes memory.
class RegionTable {
public:
    struct Region {
        uint64_t address = 0;
        uint64_t length = 0;
        uint64_t memory = 0;  // as in TableEntry
        uint64_t offset = 0;
        bool writable = true;
        MemoryKind kind = MemoryKind::kHost;
    };

    static Result<std::unique_ptr<RegionTable>> create(Incarnation incarnation);

    /// The entry's number. kNoSpace when all are in use, kUnavailable once closed.
    Result<uint32_t> publish(const Region& region);
    /// No peer that looks from now on finds it; who looked before is waited for elsewhere.
    void withdraw(uint32_t entry);
    /// Gives a withdrawn entry's number back.
    void release(uint32_t entry);
    /// Withdraws all entries, for good.
    void close();

    int fd() const noexcept { return file_.fd(); }
    /// Nobody will be given it any more. Who has it keeps it.
    void close_file() noexcept { file_ = MemoryFile(); }

private:
    RegionTable(MemoryFile file, Mapping mapping) noexcept : file_(std::move(file)), mapping_(std::move(mapping)) {}
    TableHeader& header() const noexcept { return *reinterpret_cast<TableHeader*>(mapping_.address()); }
    TableEntry& entry(uint32_t number) const noexcept {
        return reinterpret_cast<TableEntry*>(mapping_.address() + sizeof(TableHeader))[number];
    }

    MemoryFile file_;
    const Mapping mapping_;
    Mutex mutex_;
    std::vector<uint32_t> free_ MC_GUARDED_BY(mutex_);
    uint32_t used_ MC_GUARDED_BY(mutex_) = 0;
    bool closed_ MC_GUARDED_BY(mutex_) = false;
};

/// The table of a peer, mapped read-only. Thread-safe. Nothing in it is trusted: whatever it holds, reading it is safe.
class RemoteTable {
public:
    RemoteTable() noexcept = default;
    /// kRefused when it is not a table we understand; kStale when another incarnation wrote it.
    static Result<RemoteTable> open(const MemoryFile& file, Incarnation expected);

    uint64_t changes() const noexcept { return header().changes.load(std::memory_order_seq_cst); }
    /// Pairs with RegionTable::withdraw(): asked inside a Section that claims the entry, it says whether the region may be touched.
    bool still(uint32_t number, uint64_t state) const noexcept { return entry(number).state.load(std::memory_order_seq_cst) == state; }

    struct Found {
        uint32_t number = 0;
        uint64_t state = 0;
        RegionTable::Region region;
    };
    /// All live entries that make sense, in no order.
    std::vector<Found> read() const;

private:
    const TableHeader& header() const noexcept { return *reinterpret_cast<const TableHeader*>(mapping_.address()); }
    const TableEntry& entry(uint32_t number) const noexcept {
        return reinterpret_cast<const TableEntry*>(mapping_.address() + sizeof(TableHeader))[number];
    }

    Mapping mapping_;
};

}  // namespace mooncake::shm
