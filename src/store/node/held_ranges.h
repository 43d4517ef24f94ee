// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "store/allocation/slab.h"
#include "store/allocation/slot_index.h"
#include "store/node/name_table.h"
#include "store/protocol/feed.h"

namespace mooncake::store {

/// The ranges of one segment that are in use: values and unfinished writes by generation, and what only rests. The part of the
/// catalogue that is large: a record is one cache line, its key a second allocation. Not thread-safe.
class HeldRanges {
public:
    struct alignas(64) Record {
        uint64_t offset = 0, length = 0, generation = 0, checksum = 0;
        std::unique_ptr<char[]> text;
        Time soft_pin_end{};
        uint32_t key_bytes = 0;
        uint32_t group = 0, origin = 0;  // names; an origin is a writer and a tenant
        ObjectDataType data_type = ObjectDataType::kUnknown;
        bool hard_pin = false;
        bool filled = false;
        bool round = false;

        std::string_view key() const noexcept { return {text.get(), key_bytes}; }
        bool used() const noexcept { return text != nullptr; }
    };
    struct Rest {
        uint64_t offset = 0, length = 0;
        Time until{};
    };
    /// Those of the whole catalogue.
    struct Names {
        NameTable& groups;
        NameTable& origins;
    };
    static std::string origin_text(const ClientId& writer, std::string_view tenant);
    static ClientId origin_writer(std::string_view text);
    static std::string_view origin_tenant(std::string_view text);

    void plan(const RangePlanned& word, bool round, Time now, Names names);
    void fill(const RangeFilled& word);
    void drop(const RangeDropped& word, Time now, Names names);
    /// Bring into the cache what these will touch of a generation: one after the other, with those of other generations in between.
    void prefetch_slot(uint64_t generation) const { by_generation_.prefetch(hash_of(generation)); }
    void prefetch_record(uint64_t generation) const;

    /// Forgets what the current round has not told.
    void keep_only(bool round, Names names);
    /// Forgets what an earlier round left where the current one has something else, and makes all that remains part of the current one.
    void settle(bool round, Names names);
    void clear(Names names);

    /// Records are numbered from 1 to below limit(), with gaps that are not used().
    const Record& operator[](uint32_t number) const { return records_[number]; }
    uint32_t limit() const noexcept { return records_.limit(); }
    size_t values() const noexcept { return values_; }
    std::vector<Rest> rests(Time now) const;
    /// Ranges announced to rest whose drop has not come.
    const std::vector<RangePlanned>& announced() const noexcept { return announced_; }
    void forget_announced() { announced_.clear(); }
    size_t memory_bytes() const noexcept;

private:
    static uint64_t hash_of(uint64_t generation) noexcept;
    uint32_t find(uint64_t generation) const;
    void erase(uint32_t number, Names names);
    void rest(uint64_t offset, uint64_t length, Duration left, Time now);
    void expire_rests(Time now);

    Slab<Record> records_;
    SlotIndex<4> by_generation_;
    size_t values_ = 0, key_bytes_ = 0;
    std::vector<Rest> rests_;  // a heap, the one that ends first on top
    std::vector<RangePlanned> announced_;
};
static_assert(sizeof(HeldRanges::Record) == 64);

}  // namespace mooncake::store
