// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "device/device.h"
#include "transport/access.h"
#include "transport/device_bytes.h"
#include "transport/shm/claims.h"
#include "transport/shm/region_table.h"

namespace mooncake::shm {

/// Memory of a peer that is reachable here: mapped, or opened by a device.
class ReachedMemory {
public:
    ReachedMemory(MemoryKind of_kind, std::byte* start, uint64_t bytes, DeviceBytes of_device = {}) noexcept
        : kind(of_kind), address(start), length(bytes), copied(of_device) {}
    virtual ~ReachedMemory() = default;
    ReachedMemory(const ReachedMemory&) = delete;
    ReachedMemory& operator=(const ReachedMemory&) = delete;

    const MemoryKind kind;
    std::byte* const address;
    const uint64_t length;
    const DeviceBytes copied;  // of it; of a device only
};

/// Ours alone, so devices that copy there may pin it. It is told to no user.
class MappedMemory final : public ReachedMemory {
public:
    MappedMemory(std::shared_ptr<const Mapping> mapping, const Devices& devices)
        : ReachedMemory(MemoryKind::kHost, mapping->address(), mapping->length()), mapping_(std::move(mapping)),
          offer_(devices, address, length) {}

private:
    const std::shared_ptr<const Mapping> mapping_;
    const HostOffer offer_;  // ends before the mapping does
};

/// Shared memory of a peer.
struct RemoteMemory {
    std::shared_ptr<const ReachedMemory> reached;  // null: not there yet, or not to be had
    bool asked = false;
    bool answered = false;
    bool device = false;  // then it is asked for when somebody needs it
    bool wanted = false;
};
using RemoteMemories = std::map<uint64_t, RemoteMemory>;  // by its number

/// A peer's regions as they were at one moment, sorted. Never changes, so it is read without locks; what has become of a region
/// since is asked of the table when it is used.
class RegionView {
public:
    struct Region {
        uint64_t address = 0;
        uint64_t length = 0;
        uint64_t state = 0;
        std::byte* mapped = nullptr;  // where we mapped it; null: only reachable through the kernel
        uint32_t number = 0;
        bool writable = true;
        MemoryKind kind = MemoryKind::kHost;
        uint64_t memory = 0;                  // as in TableEntry
        const DeviceBytes* copied = nullptr;  // of a device's

        bool device() const noexcept { return kind != MemoryKind::kHost; }
        uint64_t end() const noexcept { return address + length; }
        /// All of a range, which is not empty.
        bool covers(AddressRange range) const noexcept {
            const uint64_t offset = range.address - address;
            return offset < length && range.length - 1 < length - offset;
        }
    };

    RegionView() = default;
    /// Reads the table. Afterwards `memories` has exactly those the table names.
    RegionView(const RemoteTable& table, RemoteMemories& memories);

    /// The first region of a range that lies in live, adjacent regions only that allow the access; null if it does not. They are claimed
    /// in the section, and stay until it ends. `hint` is any number, best the place in regions() of the last one found; set to that of
    /// the result.
    const Region* find(const RemoteTable& table, Claims::Section& section, AddressRange range, Access access, size_t& hint) const noexcept {
        if (hint < regions_.size() && regions_[hint].covers(range)) [[likely]]
            return allows(regions_[hint], table, section, access) ? &regions_[hint] : nullptr;
        return find_anew(table, section, range, access, hint);
    }

    /// Whether some region of the range has gone since: then there may be another one in its place, whatever changes() says.
    bool outdated(const RemoteTable& table, AddressRange range) const noexcept;
    /// What is registered there; null: nothing.
    const Region* at(uint64_t address) const noexcept;
    /// Calls `use` for each region in a range.
    template <typename Use>
    void for_each_in(AddressRange range, const Use& use) const {
        for (const Region* region = first_in(range); region != regions_.data() + regions_.size(); ++region) {
            if (region->address > range.address && region->address - range.address >= range.length) return;
            if (region->end() > range.address) use(*region);
        }
    }
    /// Whether some of it is memory of a device.
    bool has_devices() const noexcept { return has_devices_; }

    const std::vector<Region>& regions() const noexcept { return regions_; }
    /// RemoteTable::changes() from before it was read.
    uint64_t changes() const noexcept { return changes_; }

private:
    /// The last that does not begin behind the start of the range, or the first of all.
    const Region* first_in(AddressRange range) const noexcept;
    const Region* find_anew(const RemoteTable& table, Claims::Section& section, AddressRange range, Access access,
                            size_t& hint) const noexcept;
    static bool allows(const Region& region, const RemoteTable& table, Claims::Section& section, Access access) noexcept {
        if ((region.device() && region.mapped == nullptr) || (access == Access::kWrite && !region.writable)) return false;
        section.claim(region.number);  // before the question: who withdraws it afterwards waits for us
        return table.still(region.number, region.state);
    }

    std::vector<Region> regions_;
    std::vector<std::shared_ptr<const ReachedMemory>> memories_;  // keeps Region::mapped valid
    bool has_devices_ = false;
    uint64_t changes_ = 0;
};

}  // namespace mooncake::shm
