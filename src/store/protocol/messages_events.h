// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "store/protocol/events.h"

/// The event stream: see messages.h.
namespace mooncake::store {

/// Collects one update, item by item, without an allocation for each: keys are appended to one text. Not thread-safe.
class EventWriter {
public:
    using Planned = RangePlannedView;
    void planned(const Planned& range);
    void filled(const RangeFilled& range) { filled_.push_back(range); }
    void dropped(const RangeDropped& range) { dropped_.push_back(range); }
    void changed(std::string_view tenant, std::string_view key);
    /// Forgets the keys told: all may have changed.
    void all_changed();
    /// The keys, or the "all", of another one, besides its own.
    void add_changes_of(const EventWriter& other);
    void order(CopyOrder order) {
        orders_bytes_ += wire_bytes(order);
        orders_.push_back(std::move(order));
    }
    void behind(const Behind& behind) { behind_.push_back(behind); }
    void caught_up(const ClientId& client) { caught_up_.push_back(client); }

    bool empty() const noexcept;
    /// Whether it tells anything of ranges.
    bool has_ranges() const noexcept { return !planned_.empty() || !filled_.empty() || !dropped_.empty(); }
    /// Items of all kinds.
    size_t items() const noexcept;
    size_t changed_keys() const noexcept { return changed_.size(); }
    /// About as much as encoded.
    size_t bytes() const noexcept;
    void clear() noexcept;

    struct Head {
        uint64_t sequence = 0;
        bool acknowledge = false, reset = false, complete = false;
        HistoryPoint now{};
    };
    std::vector<std::byte> encode(const Head& head) const;

private:
    struct PlannedRow {
        SegmentId segment;
        ClientId writer;
        uint64_t offset, length, generation;
        Duration soft_pin_left;
        uint32_t tenant_bytes, key_bytes, group_bytes;
        ObjectDataType data_type;
        bool hard_pin;
    };
    struct ChangedRow {
        uint32_t tenant_bytes, key_bytes;
    };

    std::vector<PlannedRow> planned_;
    std::string planned_texts_;
    std::vector<RangeFilled> filled_;
    std::vector<RangeDropped> dropped_;
    std::vector<ChangedRow> changed_;
    std::string changed_texts_;
    std::vector<CopyOrder> orders_;
    size_t orders_bytes_ = 0;
    std::vector<Behind> behind_;
    std::vector<ClientId> caught_up_;
    bool all_changed_ = false;
};

/// Of an encoded update with any other sequence than 0: the same one as told to somebody else.
void set_event_sequence(std::span<std::byte> body, uint64_t sequence);
std::vector<std::byte> encode_event_update(const EventUpdate& update);
Result<EventUpdate> decode_event_update(std::span<const std::byte> body);
/// Valid as long as the body is.
Result<EventView> decode_event_view(std::span<const std::byte> body);

struct Acknowledgement {
    ClientId client;
    uint64_t sequence = 0;
};
std::vector<std::byte> encode_acknowledgement(const Acknowledgement& acknowledgement);
Result<Acknowledgement> decode_acknowledgement(std::span<const std::byte> body);

}  // namespace mooncake::store
