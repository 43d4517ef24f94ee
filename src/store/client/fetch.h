// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "store/client/client_core.h"
#include "store/client/fetch_item.h"

namespace mooncake::store {

/// Asks the master about keys and remembers the answers. Sets places[i] (in the order in which its replicas are best tried) or codes[i].
/// `failed`: segments that the caller has just met as failing, for as long as it takes.
void ask_places(ClientCore& core, std::span<const std::string_view> keys, std::span<Place> places, std::span<StoreCode> codes,
                std::span<const SegmentHandle> failed = {});
/// As ask_places(), but asks only about keys that we hold no lease on. Returns about how many it did not.
size_t find_places(ClientCore& core, std::span<const std::string_view> keys, std::span<Place> places, std::span<StoreCode> codes, Time now);

/// The way of a batch of reads from its keys to verified bytes: finds the places, moves from the nearest replicas, verifies, and goes on
/// to the next replica of what failed, lagged or was not the value; where none is left it asks the master once more. A derived
/// class says which bytes of the stored form are wanted, where they go, and whether what arrived is right. For one call; not thread-safe.
class Fetch {
public:
    Fetch(ClientCore& core, std::vector<std::string_view> keys);
    virtual ~Fetch() = default;
    Fetch(const Fetch&) = delete;
    Fetch& operator=(const Fetch&) = delete;

    void run();
    /// As run(), with places that are known; nobody is asked. What fails stays failed, and an ended lease means kLeaseExpired.
    void run_at(std::span<const Place> places);

    Time began() const noexcept { return began_; }
    StoreCode code(size_t item) const { return items_[item].code(); }
    const Place& place(size_t item) const { return items_[item].place(); }

protected:
    /// Whether what is wanted exists in a value of this place: kOk, kInvalidParams. Called again when the place has changed.
    virtual StoreCode plan(size_t item, const Place& place) = 0;
    /// What is to be moved for the item.
    virtual uint64_t bytes(size_t item) const = 0;
    /// The pieces to move; `stored_at` is the address of the value's first byte where it lies.
    virtual void add_blocks(size_t item, uint64_t stored_at, std::vector<Block>& blocks) = 0;
    /// Whether what arrived is the value's: kOk, kChecksumMismatch; kTransferFail: it cannot be looked at.
    virtual StoreCode verify(size_t item) = 0;
    /// Before verify(), of what comes from the disk of another node, which gives no table: what a chunk has to hash to.
    virtual void expect(size_t /*item*/, uint64_t /*chunk*/, uint64_t /*hash*/) {}
    /// In place of verify(): what arrived is known to be the value's.
    virtual StoreCode accept(size_t /*item*/) { return StoreCode::kOk; }

    size_t size() const noexcept { return items_.size(); }
    /// Whether the bytes of this place can be, and are to be, verified.
    bool verified(const Place& place) const { return core_.config.checksum && place.checksum != 0; }
    ClientCore& core() noexcept { return core_; }

private:
    /// What comes from one segment in one step.
    struct Group {
        SegmentLookup::Found from;
        bool hedged = false;  // everything in it could come from elsewhere too
        std::vector<uint32_t> items;
        bool blamed = false;  // for a failure
    };
    /// Some items of a group.
    struct Share {
        Group* group = nullptr;
        std::span<const uint32_t> items;
    };

    void run(std::span<Place> places, std::span<StoreCode> codes);
    void go_on();
    void go_on_with_one();
    std::vector<uint32_t> take_round(std::vector<uint32_t>& pending) const;
    void step(std::span<const uint32_t> round);
    void renew_ending(std::span<const uint32_t> round);
    enum class Why : uint8_t { kLeaseEnds, kNothingLeft };
    /// Asks the master about these once more.
    void ask_again(std::span<const uint32_t> items, Why why);
    void settle_doubtful();
    /// The replica to try next; false: none is left.
    bool choose(FetchItem& item, bool& hedged);
    bool usable(const FetchItem& item, size_t replica);
    static uint64_t stored_at(const FetchItem& item, const SegmentLookup::Found& from);
    void sort_into_groups(std::span<const uint32_t> round, std::vector<uint32_t>& without);
    void run_groups();
    /// The next items of the group, of about so many bytes.
    std::span<const uint32_t> take_items(std::span<const uint32_t>& rest, uint64_t bytes_max) const;
    /// `before`: bytes that move before these.
    Move move_for(const Group& group, std::span<const uint32_t> items, uint64_t before = 0);
    void copy_own(const Group& group);
    // from disks: fetch_disks.cpp
    struct DiskShare;
    struct OwnWindow;
    Duration disk_patience(const Group& group) const;
    void read_own_disk(Group& group);
    void read_windows(Group& group, std::vector<OwnWindow>& windows, std::vector<StoreCode>& codes, Deadline deadline);
    void finish_own_disk(uint32_t item, StoreCode code);
    void read_far_disks(std::span<Group* const> groups);
    bool ask_disk(DiskShare& share, Time now) const;
    void take_answer(DiskShare& share, Move& move);
    void judge_disk(DiskShare& share, const Move& move);
    void fail_disk(DiskShare& share, const Error& why);
    void copy_near(Group& group);
    void judge(Group& group, std::span<const uint32_t> items, const Result<>& outcome);
    void arrived(uint32_t item);
    void note_failed(const SegmentHandle& segment);

    ClientCore& core_;
    const Time began_ = Clock::now();
    Time now_ = began_;  // read again only after what may have taken long, as a small read takes little more than a few looks at the clock
    const std::vector<std::string_view> keys_;
    SegmentLookup segments_;
    std::vector<FetchItem> items_;
    std::vector<Group> groups_;
    std::vector<SegmentHandle> failed_;  // met as such by this call, however long ago
    std::vector<uint32_t> doubtful_;     // arrived, but the lease was over and there is no checksum
    bool may_ask_ = true;
};

}  // namespace mooncake::store
