// SPDX-License-Identifier: Apache-2.0
// A node with a disk and a scripted master: what it reports, what it removes, and the copies between the tiers.
#include "store/node/node_disk.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "store/node/disk_identity.h"
#include "store/node/testing/disk_node.h"

namespace mooncake::store::testing {
namespace {

using tier_calls::make_bytes;

bool on_disk(StorageTier& tier, uint64_t generation) {
    std::string texts;
    return tier.find(generation, texts).has_value();
}

/// Takes writes, and answers them when it is told to.
class HoldingTier final : public MemoryTier {
public:
    using MemoryTier::MemoryTier;
    void write(std::span<TierWrite> objects, Deadline deadline, Completion& completion) override {
        const Lock lock(mutex_);
        if (!released_) return held_.push_back({objects, deadline, &completion});
        MemoryTier::write(objects, deadline, completion);
    }
    size_t held() const {
        const Lock lock(mutex_);
        size_t count = 0;
        for (const Held& one : held_) count += one.objects.size();
        return count;
    }
    void release() {
        const Lock lock(mutex_);
        released_ = true;
        for (const Held& one : held_) MemoryTier::write(one.objects, one.deadline, *one.completion);
        held_.clear();
    }

private:
    struct Held {
        std::span<TierWrite> objects;
        Deadline deadline;
        Completion* completion;
    };
    mutable Mutex mutex_;
    std::vector<Held> held_ MC_GUARDED_BY(mutex_);
    bool released_ MC_GUARDED_BY(mutex_) = false;
};

/// Removes nothing for a while.
class UnremovableTier final : public MemoryTier {
public:
    UnremovableTier(std::atomic<bool>& fails, std::shared_ptr<Shelf> shelf, uint64_t capacity_bytes, TierObserver* observer)
        : MemoryTier(std::move(shelf), capacity_bytes, observer), fails_(fails) {}
    void remove(std::span<TierRemove> objects, Completion& completion) override {
        if (!fails_) return MemoryTier::remove(objects, completion);
        completion.add(static_cast<uint32_t>(objects.size()));
        for (size_t i = 0, count = objects.size(); i < count; ++i) {
            objects[i].result = Code::kUnavailable;
            completion.fail(Error(Code::kUnavailable, "the disk fails"));
        }
    }

private:
    std::atomic<bool>& fails_;
};

TEST(NodeDisk, WritesWhatTheMasterOrdersWithThePropertiesOfThePlan) {
    DiskNode node;
    const auto value = node.fill(4096, 1, 200'000);
    auto planned = node.planned(5, "k", value.size());
    planned.hard_pin = true;
    planned.writer = {3, 4};
    planned.data_type = ObjectDataType::kTensor;
    node.master->tell({.sequence = 2, .planned = {planned}, .orders = {node.offload(1, 5, "k", 4096, value)}});
    ASSERT_TRUE(node.ended(1));
    EXPECT_EQ(node.master->ends()[0].code, StoreCode::kOk);
    EXPECT_EQ(node.master->ends()[0].task.low, kTierTaskBit | 1);
    EXPECT_GE(node.master->window(), TierOrders::kWindowMin);
    const auto got = tier_calls::get(node.tier(), "k", value.size());
    EXPECT_EQ(got.code, Code::kOk);
    EXPECT_EQ(got.bytes, value);
    const auto listed = tier_calls::list(node.tier()).at("default/k");
    EXPECT_EQ(listed.generation, 5u);
    EXPECT_EQ(listed.group, "g");
    EXPECT_TRUE(listed.hard_pin);
    EXPECT_EQ(listed.writer, (ClientId{3, 4}));
    EXPECT_EQ(listed.data_type, ObjectDataType::kTensor);
}

TEST(NodeDisk, WritesNothingThatIsNotWhatTheMasterThinks) {
    DiskNode node;
    const auto value = node.fill(0, 1, 1000);
    CopyOrder damaged = node.offload(1, 5, "damaged", 0, value), unplanned = node.offload(2, 6, "unplanned", 0, value),
              beyond = node.offload(3, 7, "beyond", 16 << 20, value), strange = node.offload(4, 8, "strange", 0, value),
              mistaken = node.offload(5, 9, "mistaken", 0, value);
    damaged.checksum ^= 1;
    strange.targets = {{77, 0}};
    mistaken.length = 999;
    EventUpdate update{.sequence = 2};
    for (const auto& [generation, key] : {std::pair(5, "damaged"), {7, "beyond"}, {8, "strange"}, {9, "mistaken"}})
        update.planned.push_back(node.planned(static_cast<uint64_t>(generation), key, 1000));
    update.orders = {damaged, unplanned, beyond, strange, mistaken};
    node.master->tell(update);
    ASSERT_TRUE(node.ended(5));
    for (const CopyEnd& end : node.master->ends()) EXPECT_NE(end.code, StoreCode::kOk) << (end.task.low & ~kTierTaskBit);
    EXPECT_EQ(node.tier().usage().objects, 0u);
}

TEST(NodeDisk, AnOrderRepeatedIsNotCarriedOutTwiceButItsEndIsToldAgain) {
    DiskNode node;
    const auto value = node.fill(0, 1, 1000);
    const CopyOrder order = node.offload(1, 5, "k", 0, value);
    node.master->tell({.sequence = 2, .planned = {node.planned(5, "k", 1000)}, .orders = {order}});
    ASSERT_TRUE(node.ended(1));
    node.fill(0, 2, 1000);  // somebody else's by now
    node.master->tell({.sequence = 3, .orders = {order}});
    ASSERT_TRUE(node.ended(2));
    EXPECT_EQ(node.master->ends()[1].code, StoreCode::kOk);
    EXPECT_EQ(tier_calls::get(node.tier(), "k", 1000).bytes, value);
}

TEST(NodeDisk, EndsThatTheMasterDoesNotHearAreToldAgain) {
    DiskNode node;
    node.master->set_deaf(true);
    const auto value = node.fill(0, 1, 1000);
    node.master->tell({.sequence = 2, .planned = {node.planned(5, "k", 1000)}, .orders = {node.offload(1, 5, "k", 0, value)}});
    ASSERT_TRUE(eventually([&] { return on_disk(node.tier(), 5); }));
    EXPECT_TRUE(node.master->ends().empty());
    node.master->set_deaf(false);
    EXPECT_TRUE(node.ended(1));
}

TEST(NodeDisk, RemovesWhatTheMasterDropsAlsoBeforeItIsCalledFilled) {
    DiskNode node;
    const auto value = node.fill(0, 1, 1000);
    node.master->tell({.sequence = 2,
                       .planned = {node.planned(5, "a", 1000), node.planned(6, "b", 1000)},
                       .orders = {node.offload(1, 5, "a", 0, value), node.offload(2, 6, "b", 0, value)}});
    ASSERT_TRUE(node.ended(2));
    node.master->tell({.sequence = 3, .filled = {{node.disk_id(), 5, checksum_of(value)}}});
    node.master->tell({.sequence = 4, .dropped = {{node.disk_id(), 5, 0s}, {node.disk_id(), 6, 0s}, {node.disk_id(), 99, 0s}}});
    EXPECT_FALSE(on_disk(node.tier(), 5));
    EXPECT_FALSE(on_disk(node.tier(), 6));
    // Dropped before its order was carried out: it does not come to the disk.
    node.master->tell({.sequence = 5,
                       .planned = {node.planned(7, "c", 1000)},
                       .dropped = {{node.disk_id(), 7, 0s}},
                       .orders = {node.offload(3, 7, "c", 0, value)}});
    ASSERT_TRUE(node.ended(3));
    EXPECT_NE(node.master->ends()[2].code, StoreCode::kOk);
    EXPECT_FALSE(on_disk(node.tier(), 7));
}

TEST(NodeDisk, ReportsWhatLiesThereWhenItJoinsAndWhenAnotherMasterTakesOver) {
    const auto shelf = std::make_shared<MemoryTier::Shelf>();
    {
        MemoryTier before(shelf, 64 << 20);
        ASSERT_TRUE(before.recover());
        for (uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(tier_calls::put(before, "k" + std::to_string(i), i, make_bytes(i, 100)), Code::kOk);
    }
    DiskNode node(shelf);
    const auto keys_of = [&] {
        std::vector<std::string> keys;
        for (const FakeMaster::Part& part : node.master->take_parts())
            if (part.segment == node.disk_id()) {
                keys.insert(keys.end(), part.keys.begin(), part.keys.end());
                EXPECT_TRUE(part.exact);
            }
        std::sort(keys.begin(), keys.end());
        return keys;
    };
    EXPECT_EQ(keys_of(), (std::vector<std::string>{"k1", "k2", "k3"}));
    EXPECT_EQ(node.tier().usage().objects, 3u) << "they were named by the stream, and stay";
    node.master->tell({.sequence = 2, .dropped = {{node.disk_id(), 2, 0s}}});
    node.master->die();
    node.master->come_back(200);
    ASSERT_TRUE(eventually([&] { return node.pool.membership().epoch() == 200; }));
    EXPECT_EQ(keys_of(), (std::vector<std::string>{"k1", "k3"}));
}

TEST(NodeDisk, WhatLiesOnADiskThatTheMasterDoesNotTakeStays) {
    const auto shelf = std::make_shared<MemoryTier::Shelf>();
    {
        MemoryTier before(shelf, 64 << 20);
        ASSERT_TRUE(before.recover());
        for (uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(tier_calls::put(before, "k" + std::to_string(i), i, make_bytes(i, 100)), Code::kOk);
    }
    DiskNode node(shelf);
    node.master->remount_code = [](const SegmentSpec& segment) {
        return segment.kind == SegmentKind::kDisk ? StoreCode::kInvalidParams : StoreCode::kOk;
    };
    node.master->die();
    node.master->come_back(200);
    ASSERT_TRUE(eventually([&] { return node.pool.membership().epoch() == 200 && node.node.disk()->settled(); }));
    EXPECT_EQ(node.tier().usage().objects, 3u) << "another process may be called as this one: that is no reason to remove anything";
}

TEST(NodeDisk, WhatACompleteStreamDoesNotNameGoes) {
    DiskNode node;
    const auto value = node.fill(0, 1, 1000);
    node.master->tell({.sequence = 2, .planned = {node.planned(5, "k", 1000)}, .orders = {node.offload(1, 5, "k", 0, value)}});
    ASSERT_TRUE(node.ended(1));
    ASSERT_EQ(tier_calls::put(node.tier(), "left", 3, make_bytes(3, 100)), Code::kOk);  // by nobody's order
    node.master->tell({.sequence = 3, .reset = true, .planned = {node.planned(5, "k", 1000)}});
    EXPECT_TRUE(on_disk(node.tier(), 3)) << "not yet told to the end";
    node.master->tell({.sequence = 4, .complete = true, .filled = {{node.disk_id(), 5, checksum_of(value)}}});
    EXPECT_TRUE(eventually([&] { return !on_disk(node.tier(), 3); }));
    EXPECT_TRUE(on_disk(node.tier(), 5));
}

TEST(NodeDisk, TellsWhatWentFromTheDiskByItself) {
    const auto shelf = std::make_shared<MemoryTier::Shelf>();
    DiskNode node(shelf, [&](DiskConfig& config) {
        config.make_tier = [&](TierObserver& observer) { return std::make_unique<MemoryTier>(shelf, 2500, &observer); };
    });
    const auto value = node.fill(0, 1, 1000);
    EventUpdate update{.sequence = 2};
    for (uint64_t i = 1; i <= 3; ++i) {
        update.planned.push_back(node.planned(i, "k" + std::to_string(i), 1000));
        update.orders.push_back(node.offload(i, i, "k" + std::to_string(i), 0, value));
    }
    node.master->tell(update);
    ASSERT_TRUE(node.ended(3));
    ASSERT_TRUE(eventually([&] { return !node.master->gone().empty(); }));
    EXPECT_EQ(node.master->gone()[0].key, "k1");
    EXPECT_EQ(node.master->gone()[0].generation, 1u);
    EXPECT_EQ(node.master->gone()[0].segment, node.disk_id());
    // The master calls something filled that is not there (any more): it is told.
    node.master->tell({.sequence = 3, .planned = {node.planned(77, "lost", 10)}, .filled = {{node.disk_id(), 77, 1}}});
    EXPECT_TRUE(eventually([&] { return node.master->gone().size() == 2 && node.master->gone()[1].key == "lost"; }));
}

TEST(NodeDisk, WhatCameAgainIsNotToldToHaveGone) {
    const auto shelf = std::make_shared<MemoryTier::Shelf>();
    DiskNode node(shelf, [&](DiskConfig& config) {
        config.make_tier = [&](TierObserver& observer) { return std::make_unique<MemoryTier>(shelf, 2500, &observer); };
    });
    const auto value = node.fill(0, 1, 1000);
    node.master->set_deaf(true);  // it hears, but its answers are lost
    uint64_t task = 0;
    for (const uint64_t i : {1, 2, 3, 1}) {  // the first goes for the third, and comes again
        const std::string key = "k" + std::to_string(i);
        node.master->tell(
            {.sequence = 2 + task, .planned = {node.planned(i, key, 1000)}, .orders = {node.offload(++task, i, key, 0, value)}});
        ASSERT_TRUE(eventually([&] { return on_disk(node.tier(), i); }));
    }
    node.master->set_deaf(false);
    ASSERT_TRUE(eventually([&] { return !node.master->gone().empty(); }));
    EXPECT_EQ(node.master->gone()[0].key, "k2");
    EXPECT_TRUE(on_disk(node.tier(), 1));
}

TEST(NodeDisk, ARemovalThatFailedDoesNotHitWhatWasOrderedAnew) {
    const auto shelf = std::make_shared<MemoryTier::Shelf>();
    std::atomic<bool> fails{false};
    DiskNode node(shelf, [&](DiskConfig& config) {
        config.make_tier = [&](TierObserver& observer) { return std::make_unique<UnremovableTier>(fails, shelf, 64 << 20, &observer); };
    });
    const auto value = node.fill(0, 1, 1000);
    node.master->tell({.sequence = 2,
                       .planned = {node.planned(5, "a", 1000), node.planned(6, "b", 1000)},
                       .orders = {node.offload(1, 5, "a", 0, value), node.offload(2, 6, "b", 0, value)}});
    ASSERT_TRUE(node.ended(2));
    node.master->tell({.sequence = 3, .filled = {{node.disk_id(), 5, checksum_of(value)}, {node.disk_id(), 6, checksum_of(value)}}});
    fails = true;
    node.master->tell({.sequence = 4, .dropped = {{node.disk_id(), 5, 0s}, {node.disk_id(), 6, 0s}}});
    node.master->tell({.sequence = 5, .planned = {node.planned(5, "a", 1000)}, .orders = {node.offload(3, 5, "a", 0, value)}});
    ASSERT_TRUE(node.ended(3));
    EXPECT_EQ(node.master->ends()[2].code, StoreCode::kOk);
    fails = false;
    ASSERT_TRUE(eventually([&] { return !on_disk(node.tier(), 6); })) << "tried again";
    EXPECT_TRUE(on_disk(node.tier(), 5)) << "the master may have given up the memory for it";
}

TEST(NodeDisk, BringsValuesBackToMemoryInTheirStoredForm) {
    DiskNode node;
    for (const size_t length : {size_t{1}, size_t{70'000}, size_t{5'000'000}}) {
        const auto value = make_bytes(length, length);
        const uint64_t generation = 10 + length;
        ASSERT_EQ(tier_calls::put(node.tier(), "k", generation, value), Code::kOk);
        const size_t before = node.master->ends().size();
        node.master->tell({.sequence = 2, .orders = {node.promotion(length, generation, "k", 8192, value)}});
        ASSERT_TRUE(node.ended(before + 1));
        EXPECT_EQ(node.master->ends().back().code, StoreCode::kOk) << length;
        EXPECT_EQ(std::memcmp(node.held->base + 8192, value.data(), length), 0);
        std::vector<uint64_t> table;
        const std::span<const std::byte> piece(value);
        hash_value({&piece, 1}, table);
        const auto* const behind = reinterpret_cast<const std::byte*>(table.data());
        EXPECT_TRUE(std::equal(behind, behind + table.size() * sizeof(uint64_t), node.held->base + 8192 + length));
    }
}

TEST(NodeDisk, PromotesNothingThatIsNotThereOrNotTheValue) {
    DiskNode node;
    const auto value = make_bytes(1, 1000);
    ASSERT_EQ(tier_calls::put(node.tier(), "k", 5, value), Code::kOk);
    CopyOrder missing = node.promotion(1, 6, "k", 0, value), renamed = node.promotion(2, 5, "other", 0, value),
              longer = node.promotion(3, 5, "k", 0, value), mistaken = node.promotion(4, 5, "k", 0, value),
              nowhere = node.promotion(5, 5, "k", 0, value), beyond = node.promotion(6, 5, "k", (16 << 20) - 10, value);
    longer.length = 2000;
    mistaken.checksum ^= 1;
    nowhere.targets.clear();
    node.master->tell({.sequence = 2, .orders = {missing, renamed, longer, mistaken, nowhere, beyond}});
    ASSERT_TRUE(node.ended(6));
    for (const CopyEnd& end : node.master->ends()) EXPECT_NE(end.code, StoreCode::kOk) << (end.task.low & ~kTierTaskBit);
}

TEST(NodeDisk, EndsOfALostMastersOrdersAreToldToNobody) {
    DiskNode node;
    const auto value = node.fill(0, 1, 1000);
    node.master->set_deaf(true);
    node.master->tell({.sequence = 2, .planned = {node.planned(5, "k", 1000)}, .orders = {node.offload(1, 5, "k", 0, value)}});
    ASSERT_TRUE(eventually([&] { return on_disk(node.tier(), 5); }));
    node.master->die();
    node.master->come_back(200);
    ASSERT_TRUE(eventually([&] { return node.pool.membership().epoch() == 200; }));
    node.master->list.epoch = 200;
    node.master->set_deaf(false);
    node.master->tell({.sequence = 2, .planned = {node.planned(6, "l", 1000)}, .orders = {node.offload(2, 6, "l", 0, value)}});
    ASSERT_TRUE(node.ended(1));
    EXPECT_EQ(node.master->ends()[0].task.low, kTierTaskBit | 2);
    EXPECT_TRUE(on_disk(node.tier(), 5)) << "reported like any other, and named by the new master";
}

TEST(NodeDisk, AMasterThatIsFoundAgainHearsOfOrdersThatEndedMeanwhile) {
    DiskNode node;
    const auto value = node.fill(0, 1, 1000);
    node.master->set_deaf(true);
    node.master->tell({.sequence = 2, .planned = {node.planned(5, "k", 1000)}, .orders = {node.offload(1, 5, "k", 0, value)}});
    ASSERT_TRUE(eventually([&] { return on_disk(node.tier(), 5); }));
    // It was stopped for a while, and gives its members that time back: it has forgotten nothing.
    node.node.master_lost();
    node.master->set_deaf(false);
    node.node.master_found(100);
    ASSERT_TRUE(node.ended(1)) << "or it waits for it until the order expires, and orders nothing else where that fills its window";
    EXPECT_EQ(node.master->ends()[0].code, StoreCode::kOk);
    EXPECT_TRUE(on_disk(node.tier(), 5));
}

TEST(NodeDisk, AMasterThatIsFoundAgainHearsOfOrdersThatWereGivenUp) {
    const auto shelf = std::make_shared<MemoryTier::Shelf>();
    HoldingTier* tier = nullptr;
    DiskNode node(shelf, [&](DiskConfig& config) {
        config.make_tier = [&](TierObserver& observer) {
            auto made = std::make_unique<HoldingTier>(shelf, 128 << 20, &observer);
            tier = made.get();
            return made;
        };
    });
    constexpr uint64_t kOrders = 6;  // of which the last one finds the window full
    const auto value = node.fill(0, 1, 15 << 20);
    static_assert((kOrders - 1) * (15 << 20) >= TierOrders::kWindowFirst && (kOrders - 2) * (15 << 20) < TierOrders::kWindowFirst);
    EventUpdate update{.sequence = 2};
    for (uint64_t i = 1; i <= kOrders; ++i) {
        update.planned.push_back(node.planned(i, "k" + std::to_string(i), value.size()));
        update.orders.push_back(node.offload(i, i, "k" + std::to_string(i), 0, value));
    }
    node.master->tell(update);
    ASSERT_TRUE(eventually([&] { return tier->held() == kOrders - 1; }));
    node.pool.fence.shut();
    node.node.master_lost();
    node.pool.fence.open(100);
    node.node.master_found(100);
    tier->release();
    ASSERT_TRUE(node.ended(kOrders));
    for (const CopyEnd& end : node.master->ends()) {
        const bool last = (end.task.low & ~kTierTaskBit) == kOrders;
        EXPECT_EQ(end.code, last ? StoreCode::kUnavailableInCurrentStatus : StoreCode::kOk);
    }
    // Told once more, since the stream broke: it has been given up for good, or it would be under way after the master heard that it is not.
    node.master->tell({.sequence = 3, .orders = {update.orders.back()}});
    ASSERT_TRUE(node.ended(kOrders + 1));
    EXPECT_EQ(node.master->ends().back().code, StoreCode::kUnavailableInCurrentStatus);
    EXPECT_FALSE(on_disk(node.tier(), kOrders));
}

TEST(NodeDisk, EndsWhileCopiesAreUnderWay) {
    DiskNode node;
    EventUpdate update{.sequence = 2};
    const auto value = node.fill(0, 1, 100'000);
    for (uint64_t i = 1; i <= 200; ++i) {
        update.planned.push_back(node.planned(i, "k" + std::to_string(i), value.size()));
        update.orders.push_back(node.offload(i, i, "k" + std::to_string(i), 0, value));
    }
    node.master->tell(update);
    node.stop();
}

// ---- a directory's own name

struct Folder {
    Folder() {
        char name[] = "/tmp/mc_disk_XXXXXX";
        path = ::mkdtemp(name);
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path;
};

TEST(DiskIdentity, StaysWithTheDirectory) {
    const Folder one, other;
    const auto first = disk_identity(one.path);
    ASSERT_TRUE(first) << first.error().to_string();
    EXPECT_EQ(*disk_identity(one.path), *first);
    EXPECT_NE(*disk_identity(other.path), *first);
}

TEST(DiskIdentity, RefusesAFileThatIsNotItsOwn) {
    for (const std::string text : {"", "x", "mooncake disk segment 12\n", "mooncake disk segment 0000000000000000000000000000000g\n"}) {
        const Folder folder;
        std::ofstream(folder.path + "/segment") << text;
        EXPECT_EQ(disk_identity(folder.path).error().code(), Code::kCorrupt) << text;
    }
    EXPECT_FALSE(disk_identity("/tmp/there is no such directory"));
}

}  // namespace
}  // namespace mooncake::store::testing
