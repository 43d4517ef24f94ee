// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "store/allocation/index_list.h"
#include "store/allocation/slab.h"
#include "store/master/object.h"
#include "store/master/walk_counter.h"

namespace mooncake::store {

/// Freed ranges that must not be reused yet, by the time at which they may, and by the writer that is feared. They stay taken in their
/// allocators, with the number of their quarantine as owner. Not thread-safe.
class Quarantine {
public:
    struct Quarantined {
        SegmentNumber segment = 0;
        RangeAllocator::Block block = 0;  // 0: this number is free
        ClientNumber writer = 0;          // whose late bytes are feared; 0: readers' leases only
        bool until_report = false;        // over when its writer reports to us: before that it ends all writes that were planned for it
        bool write = false;               // of a put or upsert that was taken from its writer, who may yet tell that it has stopped
        uint64_t copy = 0;                // likewise of a copy: the low half of its task's id
        bool replaced = false;            // by a value of which its nodes may not know: for ever, unless somebody says that they can
        uint64_t bytes = 0;
        uint64_t length = 0;  // of the value that was or should have been there
        uint64_t generation = 0;
        Time until{};
        Time leased_until{};       // not earlier, whatever its writer says: there may be readers
        Links at_time, of_writer;  // others of the same
    };

    QuarantineId add(const Quarantined& quarantine) {
        const QuarantineId id = quarantined_.take();
        quarantined_[id] = quarantine;
        by_time_[quarantine.until].push_back(id, [this](QuarantineId other) -> Links& { return quarantined_[other].at_time; });
        if (quarantine.writer != 0)
            by_writer_[quarantine.writer].push_back(id, [this](QuarantineId other) -> Links& { return quarantined_[other].of_writer; });
        if (quarantine.write) of_writes_.emplace(quarantine.generation, id);
        if (quarantine.copy != 0) of_copies_.emplace(quarantine.copy, id);
        if (quarantine.replaced) of_replaced_.emplace(quarantine.generation, id);
        bytes_ += quarantine.bytes;
        return id;
    }
    /// Calls free(quarantined) for ranges whose time has come, no more than `most`.
    template <typename Free>
    void release(Time now, size_t most, Free&& free) {
        for (; most != 0 && next() <= now; --most) free(extract(by_time_.begin()->second.first()));
    }
    Quarantined extract(QuarantineId id) {
        Quarantined& quarantine = quarantined_[id];
        const auto time = by_time_.find(quarantine.until);
        time->second.erase(id, [this](QuarantineId other) -> Links& { return quarantined_[other].at_time; });
        if (time->second.size() == 0) by_time_.erase(time);
        if (quarantine.writer != 0) {
            const auto writer = by_writer_.find(quarantine.writer);
            writer->second.erase(id, [this](QuarantineId other) -> Links& { return quarantined_[other].of_writer; });
            if (writer->second.size() == 0) by_writer_.erase(writer);
        }
        if (quarantine.write) erase(of_writes_, quarantine.generation, id);
        if (quarantine.copy != 0) erase(of_copies_, quarantine.copy, id);
        if (quarantine.replaced) erase(of_replaced_, quarantine.generation, id);
        bytes_ -= quarantine.bytes;
        const Quarantined extracted = quarantine;
        quarantined_.give_back(id);
        return extracted;
    }

    /// The first of those for fear of that writer, and the one after; 0: no more.
    QuarantineId first_of(ClientNumber writer) const {
        const auto found = by_writer_.find(writer);
        return found == by_writer_.end() ? 0 : found->second.first();
    }
    QuarantineId next_of_writer(QuarantineId id) const { return quarantined_[id].of_writer.next; }

    /// Whether something is in quarantine for fear of that write.
    bool fears(uint64_t generation, ClientNumber writer) const {
        const auto [begin, end] = of_writes_.equal_range(generation);
        return std::any_of(begin, end, [&](const auto& entry) { return quarantined_[entry.second].writer == writer; });
    }
    /// What is in quarantine for fear of that write or copy, in an order that is the same wherever the same changes are applied.
    std::vector<QuarantineId> find_write(uint64_t generation) const { return find(of_writes_, generation); }
    std::vector<QuarantineId> find_copy(uint64_t task) const { return find(of_copies_, task); }
    /// What a replaced value of that generation has, and whether there is any of such values.
    std::vector<QuarantineId> find_replaced(uint64_t generation) const { return find(of_replaced_, generation); }
    bool any_replaced() const noexcept { return !of_replaced_.empty(); }

    const Quarantined& operator[](QuarantineId id) const { return quarantined_[id]; }
    Time next() const { return by_time_.empty() ? Time::max() : by_time_.begin()->first; }
    /// When that many bytes will have come back; Time::max() if there are fewer.
    Time time_for(uint64_t bytes) const {
        if (bytes > bytes_) return Time::max();
        for (const auto& [time, quarantined] : by_time_) {
            steps_walked() += quarantined.size();
            for (QuarantineId id = quarantined.first(); id != 0; id = quarantined_[id].at_time.next) {
                if (quarantined_[id].bytes >= bytes) return time;
                bytes -= quarantined_[id].bytes;
            }
        }
        return Time::max();
    }
    uint64_t bytes() const noexcept { return bytes_; }
    size_t size() const noexcept { return quarantined_.size(); }
    /// visit(id, quarantined) for all, those first that end first.
    template <typename Visit>
    void for_each(Visit&& visit) const {
        for (const auto& [time, quarantined] : by_time_)
            for (QuarantineId id = quarantined.first(); id != 0; id = quarantined_[id].at_time.next) visit(id, quarantined_[id]);
    }

private:
    using Index = std::unordered_multimap<uint64_t, QuarantineId>;

    static void erase(Index& index, uint64_t key, QuarantineId id) {
        const auto [begin, end] = index.equal_range(key);
        index.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == id; }));
    }
    static std::vector<QuarantineId> find(const Index& index, uint64_t key) {
        std::vector<QuarantineId> found;
        const auto [begin, end] = index.equal_range(key);
        for (auto at = begin; at != end; ++at) found.push_back(at->second);
        std::sort(found.begin(), found.end());
        return found;
    }

    Slab<Quarantined, 256> quarantined_;
    std::map<Time, IndexList> by_time_;
    std::unordered_map<ClientNumber, IndexList> by_writer_;
    Index of_writes_;    // by generation: one for each replica
    Index of_copies_;    // by task: one for each target
    Index of_replaced_;  // by generation: one for each replica
    uint64_t bytes_ = 0;
};

}  // namespace mooncake::store
