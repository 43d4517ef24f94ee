// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "store/allocation/index_list.h"
#include "store/allocation/range_allocator.h"
#include "store/protocol/ids.h"
#include "store/protocol/objects.h"
#include "store/protocol/tiers.h"

namespace mooncake::store {

// Numbers of records in the state; 0 means none. Not reused while anything refers to them.
using ObjectId = uint32_t;
using WriteId = uint32_t;
using GroupId = uint32_t;
using TenantNumber = uint32_t;
using ClientNumber = uint32_t;
using SegmentNumber = uint32_t;
using CopyId = uint32_t;
using QuarantineId = uint32_t;
using TaskNumber = uint32_t;

/// A range of a segment that is taken in its allocator.
struct Replica {
    uint64_t offset = 0;
    SegmentNumber segment = 0;
    RangeAllocator::Block block = 0;
};

/// One replica without further memory, more with.
class ReplicaList {
public:
    size_t size() const noexcept { return first_.segment == 0 ? 0 : 1 + (rest_ ? rest_->size() : 0); }
    bool empty() const noexcept { return first_.segment == 0; }
    const Replica& operator[](size_t i) const { return i == 0 ? first_ : (*rest_)[i - 1]; }
    void add(const Replica& replica) {
        if (first_.segment == 0) {
            first_ = replica;
        } else {
            if (!rest_) rest_ = std::make_unique<std::vector<Replica>>();
            rest_->push_back(replica);
        }
    }
    void erase(size_t i) {
        if (rest_) {
            if (i == 0) first_ = rest_->front();
            rest_->erase(rest_->begin() + static_cast<std::ptrdiff_t>(i == 0 ? 0 : i - 1));
            if (rest_->empty()) rest_.reset();
        } else {
            first_ = {};
        }
    }
    /// Position of the replica on that segment; size() if there is none.
    size_t find(SegmentNumber segment) const {
        size_t i = 0;
        while (i < size() && (*this)[i].segment != segment) ++i;
        return i;
    }

private:
    Replica first_;
    std::unique_ptr<std::vector<Replica>> rest_;
};

/// Where an evictable entry stands: in the policy's order, or set aside until something is over.
enum class Shelf : uint8_t { kNone, kOrder, kSoftLeased, kLeased, kSoftPinned, kDirty };

/// What the master knows of one key. There are many: two cache lines, the first for finding and probing.
struct alignas(64) Object {
    std::unique_ptr<char[]> key_bytes;  // null: this number is free
    uint32_t key_length = 0;
    TenantNumber tenant = 0;
    uint64_t generation = 0;  // of the value; 0: there is none yet
    Time soft_lease_end{};
    Time lease_end{};
    GroupId group = 0;
    ClientNumber writer = 0;  // of the value
    Links order;              // on its shelf
    WriteId write = 0;        // the unfinished put or upsert
    ObjectDataType data_type : 4 = ObjectDataType::kUnknown;
    bool in_memory : 1 = false;  // its value lies in memory, as counted in its group
    bool on_disk : 1 = false;    // and on a disk
    bool queued : 1 = false;     // to be copied between the two
    bool looked_at : 1 = false;  // for the eviction policy: see EvictionPolicy::first_unseen()
    Shelf shelf = Shelf::kNone;
    bool hard_pin : 1 = false;
    bool blocked : 1 = false;  // may not be evicted whatever the time: as counted in its group
    bool reused : 1 = false;   // this and the next for the eviction policy
    uint8_t size_class : 5 = 0;
    uint8_t moved_by : 7 = 0;  // the mark of the drain that its value owes its place to; 0: none
    bool untold : 1 = false;   // its memory came from its disk, and no reader was told of it: leases so far do not hold it

    ReplicaList replicas;  // of the value, all complete
    uint64_t length = 0;
    uint64_t checksum = 0;
    Time soft_pin_end{};
    uint32_t group_position = 0;
    CopyId copy = 0;       // the copy or move in progress
    uint64_t used_at = 0;  // for the eviction policy

    std::string_view key() const { return {key_bytes.get(), key_length}; }
    bool has_value() const { return generation != 0; }
    bool holds_memory() const { return in_memory && !untold; }
    /// Until when the ranges must stay that readers were told of.
    Time read_until(Time now) const { return untold ? now : lease_end; }
    /// Nobody was told lately that it is there.
    bool free_of_leases(Time now) const { return lease_end <= now && soft_lease_end <= now; }
};
static_assert(sizeof(Object) == 128);
static_assert(static_cast<int>(ObjectDataType::kGeneral) < 16);

/// A put or upsert between start and end. Its ranges belong to it, not to the object.
struct Write {
    ObjectId object = 0;
    ClientNumber client = 0;
    uint64_t request_id = 0;
    uint64_t generation = 0;
    uint64_t length = 0;
    Time started{};
    ReplicaList replicas;
    Duration soft_pin_ttl{0};
    SoftPinAction soft_pin = SoftPinAction::kPreserve;
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    bool regroups = false;  // the object goes over to this group (empty: to none) with the value
    std::string group{};
    Links age;
    Links of_client;  // in the order of their age, too
};

/// A copy or move between its order and its end, or a copy between tiers. Its target ranges belong to it, not to the object.
struct Copy {
    bool of_tiers() const { return is_tier_task(task); }

    TaskId task;
    ObjectId object = 0;  // 0: this number is free
    SegmentNumber source = 0;
    ClientNumber client = 0;  // who carries it out: it owns the source
    bool move = false;
    Time started{};  // of one between tiers
    ReplicaList targets;
};

/// What a taken block of an allocator belongs to.
enum class OwnerKind : uint32_t { kObject = 1, kWrite, kCopy, kQuarantined };
constexpr uint64_t owner_word(OwnerKind kind, uint32_t number) { return uint64_t{static_cast<uint32_t>(kind)} << 32 | number; }
constexpr OwnerKind owner_kind(uint64_t word) { return static_cast<OwnerKind>(word >> 32); }
constexpr uint32_t owner_number(uint64_t word) { return static_cast<uint32_t>(word); }

}  // namespace mooncake::store
