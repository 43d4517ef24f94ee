// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time.h"
#include "store/node/name_table.h"
#include "store/node/range_pages.h"
#include "store/protocol/events.h"

namespace mooncake::store {

/// The ranges of one segment that are in use: values and unfinished writes by generation, and what is only in quarantine. Not thread-safe.
class HeldRanges {
public:
    using Record = RangePages::Record;
    using Found = RangePages::Found;
    struct Quarantined {
        uint64_t offset = 0, length = 0;
        Time until{};
        ClientId writer{};  // as in HeldQuarantine
    };
    struct Announced {
        uint64_t generation = 0, offset = 0, length = 0;
        ClientId writer{};
    };
    /// Those of the whole catalogue.
    struct Names {
        NameTable& groups;
        NameTable& origins;
    };
    static ClientId origin_writer(std::string_view text);
    static std::string_view origin_tenant(std::string_view text);

    void plan(const RangePlannedView& event, bool round, Time now, Names names);
    /// What the event speaks of is looked up before; then, for all of them, this.
    void fill(Found found, const RangeFilled& event);
    void drop(Found found, const RangeDropped& event, Time now, Names names);
    /// In steps, with those of other generations in between; valid until something is planned or tidied.
    RangePages::Page* find_page(uint64_t generation) { return records_.find_page(generation); }
    static void look_into(const RangePages::Page* page, uint64_t generation) { RangePages::look_into(page, generation); }
    static Found find_in(RangePages::Page* page, uint64_t generation) { return RangePages::find_in(page, generation); }
    /// After some were dropped: gives back their memory, little by little.
    void tidy() { records_.tidy(kTidyPages); }

    /// Forgets what the current round has not told.
    void keep_only(bool round, Names names);
    /// Forgets what an earlier round left where the current one has something else, and makes all that remains part of the current one.
    void settle(bool round, Names names);
    void clear(Names names);

    /// In the order of generations, those greater than `after`; see RangePages.
    template <typename Visit>
    bool for_each(std::optional<uint64_t> after, Visit&& visit) const {
        return records_.for_each(after, std::forward<Visit>(visit));
    }
    size_t values() const noexcept { return values_; }
    std::vector<Quarantined> quarantined(Time now) const;
    /// Ranges announced for quarantine whose drop has not come.
    const std::vector<Announced>& announced() const noexcept { return announced_; }
    void forget_announced() { announced_.clear(); }
    size_t memory_bytes() const noexcept;

private:
    static constexpr size_t kTidyPages = 128;  // at a time: nobody waits for long

    void erase(Found found, Names names);
    void put_in_quarantine(Quarantined range, Duration left, Time now);
    void expire_quarantine(Time now);

    RangePages records_;
    size_t values_ = 0;
    std::vector<Quarantined> quarantined_;  // a heap, the one that ends first on top
    std::vector<Announced> announced_;
};

}  // namespace mooncake::store
