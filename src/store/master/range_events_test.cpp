// SPDX-License-Identifier: Apache-2.0
#include "store/master/range_events.h"

#include <map>

#include "store/master/testing/pool.h"
#include "store/protocol/messages_events.h"

namespace mooncake::store {
namespace {

/// Writes down what it hears, as text.
class Listener final : public StateObserver {
public:
    void range_planned(const MasterState& state, SegmentNumber segment, WriteId write) override {
        const RangePlanned event = event_of_write(state, segment, write);
        heard.push_back(format_text("planned {} {} on {}", event.key, event.generation, segment));
    }
    void range_planned_for_copy(const MasterState&, SegmentNumber segment, CopyId) override {
        heard.push_back(format_text("copy on {}", segment));
    }
    void range_filled(const MasterState&, SegmentNumber segment, uint64_t generation, uint64_t checksum) override {
        heard.push_back(format_text("filled {} on {} with {}", generation, segment, checksum));
    }
    void range_dropped(const MasterState&, SegmentNumber segment, uint64_t generation, Duration quarantine, bool) override {
        heard.push_back(format_text("dropped {} on {} for {} s", generation, segment, quarantine / 1s));
    }
    void value_outdated(const MasterState& state, ObjectId object) override {
        heard.push_back(format_text("outdated {}", state.objects()[object].key()));
    }
    void copy_ordered(const MasterState&, CopyId) override {}
    void segment_removed(const MasterState&, SegmentNumber segment) override { heard.push_back(format_text("removed {}", segment)); }

    std::vector<std::string> take() { return std::exchange(heard, {}); }
    std::vector<std::string> heard;
};

using Events = std::vector<std::string>;

class ObserverTest : public PoolTest {
protected:
    ObserverTest() { state_ = std::make_unique<MasterState>(options_, &listener_); }
    Listener listener_;
};

TEST_F(ObserverTest, HearsOfAWriteWhenItIsPlannedAndWhenItEnds) {
    add_node(1);
    const PutStartItem started = start("a");
    EXPECT_EQ(listener_.take(), Events{format_text("planned a {} on 1", started.generation)});
    end("a", started.generation, kClient, 77);
    EXPECT_EQ(listener_.take(), Events{format_text("filled {} on 1 with 77", started.generation)});
}

TEST_F(ObserverTest, HearsOfEveryReplica) {
    add_node(1);
    add_node(2);
    start("a", kKiB, {.replica_num = 2});
    EXPECT_EQ(listener_.take().size(), 2u);
    end("a");
    EXPECT_EQ(listener_.take().size(), 2u);
    remove_key("a");
    EXPECT_EQ(listener_.take().size(), 2u);
}

TEST_F(ObserverTest, HearsThatAValueIsOutdatedOnlyWhereSomebodyMayRememberIt) {
    add_node(1);
    put("a");
    put("b");
    put("c");
    get("b");
    exists("c");
    listener_.take();
    remove_key("a");
    EXPECT_EQ(listener_.take(), (Events{"dropped 1 on 1 for 0 s"}));
    remove_key("b", true);
    EXPECT_EQ(listener_.take(), (Events{"outdated b", "dropped 2 on 1 for 10 s"}));
    remove_key("c", true);
    EXPECT_EQ(listener_.take(), (Events{"outdated c", "dropped 3 on 1 for 0 s"}));
}

TEST_F(ObserverTest, HearsOfTheNewValueBeforeTheOldOneGoes) {
    add_node(1);
    put("a");
    get("a");
    upsert("a");
    listener_.take();
    end("a");
    EXPECT_EQ(listener_.take(), (Events{"filled 2 on 1 with 0", "outdated a", "dropped 1 on 1 for 10 s"}));
}

TEST_F(ObserverTest, HearsNothingOfRangesThatGoWithTheirSegmentButOfTheGroupTheyBreak) {
    add_node(1);
    put("a", kKiB, {.preferred_segments = {"node01:1"}}, "g");
    add_node(2);
    put("b", kKiB, {.preferred_segments = {"node02:1"}}, "g");
    get("b");
    listener_.take();
    auto t = transaction();
    unmount_segment(t, {.client = node(1), .segment = spec(1, kPool).id}, now_);
    EXPECT_EQ(listener_.take(), (Events{"removed 1", "outdated b", "dropped 2 on 2 for 10 s"}));
}

TEST_F(ObserverTest, HearsHowLongTheRangesOfAPreemptedWriteAreInQuarantine) {
    add_node(1);
    start("a");
    listener_.take();
    upsert("a", kKiB, {}, kOther);
    EXPECT_EQ(listener_.take(), (Events{"dropped 1 on 1 for 630 s", "planned a 2 on 1"}));
}

constexpr size_t kMiB = 1 << 20;

class RangeEventsTest : public PoolTest {};

TEST_F(RangeEventsTest, TellAllThatASegmentHoldsInPartsOfAnySize) {
    add_node(1, 1024 * kKiB);
    put("value", 100'000, {.hard_pin = true});
    put("old");
    get("old");
    start("write", 3 * kKiB);
    remove_key("old", true);
    for (const size_t most : {1, 2, 100}) {
        RangeCursor cursor;
        EventUpdate update;
        while (tell_ranges(state(), 1, cursor, {most, kMiB}, now_, update)) {}
        ASSERT_EQ(update.planned.size(), 3u);
        ASSERT_EQ(update.filled.size(), 1u);
        ASSERT_EQ(update.dropped.size(), 1u);
        std::map<uint64_t, RangePlanned> by_generation;
        for (const RangePlanned& event : update.planned) by_generation[event.generation] = event;
        EXPECT_EQ(by_generation[1].key, "value");
        EXPECT_EQ(by_generation[1].length, 100'000u);
        EXPECT_TRUE(by_generation[1].hard_pin);
        EXPECT_EQ(by_generation[1].writer, kClient);
        EXPECT_EQ(update.filled[0].generation, 1u);
        EXPECT_EQ(by_generation[3].key, "write");
        EXPECT_EQ(by_generation[3].length, 3 * kKiB);
        EXPECT_EQ(update.dropped[0].generation, 2u);
        EXPECT_EQ(update.dropped[0].quarantine, 10s);
        EXPECT_EQ(by_generation[2].length, kKiB);
    }
}

TEST_F(RangeEventsTest, TellNoMoreBytesAtOnceThanWanted) {
    add_node(1, 1024 * kKiB);
    for (int i = 0; i < 200; ++i) ASSERT_EQ(put(format_text("{:0>65536}", i), kKiB), StoreCode::kOk);
    RangeCursor cursor;
    size_t told = 0;
    for (bool more = true; more;) {
        EventUpdate update;
        more = tell_ranges(state(), 1, cursor, {512, kMiB}, now_, update);
        told += update.filled.size();
        EXPECT_LE(encode_event_update(update).size(), kMiB + kKeyBytesMax + kKiB);
    }
    EXPECT_EQ(told, 200u);
}

TEST_F(RangeEventsTest, VisitEveryRangeThatStaysWhileOthersComeAndGo) {
    add_node(1, 1024 * kKiB);
    for (int i = 0; i < 200; ++i) put(format_text("stays{}", i), kKiB);
    for (int i = 0; i < 200; ++i) put(format_text("goes{}", i), kKiB);
    std::map<uint64_t, int> seen;
    RangeCursor cursor;
    for (int step = 0;; ++step) {
        const bool more = for_each_range(state(), 1, cursor, 7, [&](const UsedRange& range) { ++seen[range.generation]; });
        if (!more) break;
        if (step < 200) remove_key(format_text("goes{}", (step * 37) % 200));
        put(format_text("comes{}", step), 256);
    }
    for (int i = 0; i < 200; ++i) EXPECT_EQ(seen[object(format_text("stays{}", i)).generation], 1);
    for (const auto& [generation, times] : seen) EXPECT_EQ(times, 1) << generation;
}

TEST_F(RangeEventsTest, OfAGoneSegmentAreNone) {
    add_node(1);
    put("a");
    auto t = transaction();
    unmount_segment(t, {.client = node(1), .segment = spec(1, kPool).id}, now_);
    RangeCursor cursor;
    EventUpdate update;
    EXPECT_FALSE(tell_ranges(state(), 1, cursor, {10, kMiB}, now_, update));
    EXPECT_TRUE(update.planned.empty());
    EXPECT_EQ(add_node(2), 2u) << "a number must not be used again";
}

TEST_F(RangeEventsTest, CountTheTableBehindALongValueAsUsed) {
    add_node(1, 1024 * kKiB);
    put("a", 128 * kKiB);
    EXPECT_EQ(state().segments().used_bytes(), 128 * kKiB + 64);
    put("b", 64 * kKiB);
    EXPECT_EQ(state().segments().used_bytes(), 192 * kKiB + 64);
}

}  // namespace
}  // namespace mooncake::store
