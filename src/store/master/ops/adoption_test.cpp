// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/evictor.h"
#include "store/master/ops/removal.h"
#include "store/master/testing/pool_segments.h"

namespace mooncake::store {
namespace {

class Adoption : public PoolSegmentsTest {};

TEST_F(Adoption, BringsBackWhatANodeHolds) {
    const auto result = adopt(1, {held("a", 0, 5), held("b", 4096, 7, 2048)});
    EXPECT_EQ(result.code, StoreCode::kOk);
    EXPECT_EQ(result.adopted, 2u);
    const GetItem b = get("b");
    EXPECT_EQ(b.length, 2048u);
    EXPECT_EQ(b.checksum, 70u);
    EXPECT_EQ(where("b").offset, 4096u);
    EXPECT_EQ(state().next_generation(), 8u);
    EXPECT_EQ(beat(node(1)), HeartbeatStatus::kOk);
}

TEST_F(Adoption, DoesNotBringBackWhatThisLifeReplacedWhenTheClockWasSetBack) {
    options_.first_generation = 1000;
    add_node(1);
    ASSERT_EQ(put("k"), StoreCode::kOk);
    const uint64_t ours = object("k").generation;
    const auto result = adopt(2, {held("k", 0, 9000), held("other", 4096, 8000)});
    EXPECT_EQ(result.stale, 1u) << "from the days when the clock was ahead";
    EXPECT_EQ(result.adopted, 1u);
    EXPECT_EQ(get("k").generation, ours);
    EXPECT_EQ(put("next"), StoreCode::kOk);
    EXPECT_GT(object("next").generation, 9000u) << "the next life shall not be misled";
}

TEST_F(Adoption, DoesNotBringBackWhatThisLifeRemovedWhenTheClockWasSetBack) {
    options_.first_generation = 1000;
    add_node(1);
    put("k");
    EXPECT_EQ(remove_key("k"), StoreCode::kOk);
    EXPECT_EQ(remove_key("never seen"), StoreCode::kObjectNotFound);
    EXPECT_EQ(adopt(2, {held("k", 0, 9000), held("never seen", 4096, 9001)}).stale, 2u);
    EXPECT_FALSE(holds("k"));
}

TEST_F(Adoption, PrefersWhatThisLifeWroteToWhatOthersTellMeanwhile) {
    options_.first_generation = 1000;
    add_node(1);
    put("k");
    const uint64_t ours = object("k").generation;
    {
        auto t = transaction();
        end_client(t, state().clients().find(node(1)), ClientEnd::kSilent, now_);  // it is cut off, and comes back with all it holds
    }
    EXPECT_EQ(adopt(2, {held("k", 0, 9000)}).stale, 1u);
    adopt(1, {held("k", 0, ours)});
    EXPECT_EQ(get("k").generation, ours);
}

TEST_F(Adoption, RefusesNumbersThatNoClockShows) {
    EXPECT_EQ(adopt(1, {held("k", 0, UINT64_MAX), held("l", 4096, Generations::kEnd)}).refused, 2u);
    EXPECT_EQ(state().next_generation(), 1u);
}

TEST_F(Adoption, HonoursLeasesOfTheMastersEarlierLife) {
    adopt(1, {held("a", 0, 5)});
    EXPECT_EQ(remove_key("a"), StoreCode::kObjectHasLease);
    const PutStartReply refused = start({{.key = "n", .length = 64}});
    EXPECT_EQ(refused.items[0].code, StoreCode::kNoAvailableHandle) << "free space may be leased, too";
    EXPECT_EQ(refused.retry_after, 10s);
    pass(10s);
    EXPECT_EQ(put("n", 64), StoreCode::kOk);
    EXPECT_EQ(remove_key("a"), StoreCode::kOk);
}

TEST_F(Adoption, OneBadEntryCostsOneKey) {
    std::vector<HeldObject> objects;
    std::vector<std::string> names;
    for (int i = 0; i < 100; ++i) names.push_back(std::to_string(i));
    for (uint64_t i = 0; i < 100; ++i) objects.push_back(held(names[i], i * 512, i + 1, 512));
    objects[10].offset = 9 * 512 + 64;  // overlaps its neighbour
    objects[20].offset = 20 * 512 + 1;  // unaligned
    objects[30].offset = kPool;         // outside
    objects[40].length = 0;
    objects[50].generation = 0;
    objects[60].key = "";
    objects[70].offset = UINT64_MAX - 63;
    objects[80].length = UINT64_MAX;
    objects[90].offset = 0;  // claims everything
    objects[90].length = kPool;
    const auto result = adopt(1, objects);
    EXPECT_EQ(result.adopted, 91u);
    EXPECT_EQ(result.refused, 9u);
    EXPECT_TRUE(holds("91"));
}

TEST_F(Adoption, TheSameGenerationOnTwoNodesMakesTwoReplicas) {
    adopt(1, {held("k", 0, 5)});
    EXPECT_EQ(adopt(2, {held("k", 128, 5)}).adopted, 1u);
    EXPECT_EQ(get("k").replica_count, 2u);
    EXPECT_EQ(adopt(3, {held("k", 0, 5, 2 * kKiB)}).refused, 1u) << "another length";
    EXPECT_EQ(get("k").replica_count, 2u);
}

TEST_F(Adoption, TheNewerGenerationWins) {
    adopt(1, {held("k", 0, 5)});
    EXPECT_EQ(adopt(2, {held("k", 0, 4)}).stale, 1u);
    EXPECT_EQ(get("k").generation, 5u);
    EXPECT_EQ(adopt(3, {held("k", 0, 9)}).adopted, 1u);
    EXPECT_EQ(get("k").generation, 9u);
    EXPECT_EQ(get("k").replica_count, 1u);
    EXPECT_EQ(state().quarantine().size(), 2u) << "the older ones may have readers";
}

TEST_F(Adoption, ARemovedKeyStaysAwayAlsoWithALaterValueOfANodeNotYetHeardOf) {
    adopt(1, {held("k", 0, 5), held("other", 8192, 20)});
    ASSERT_EQ(remove_key("k", true), StoreCode::kOk);
    EXPECT_EQ(adopt(2, {held("k", 0, 9)}).stale, 1u);
    EXPECT_FALSE(holds("k"));
}

TEST_F(Adoption, TwoGenerationsInOneReportLeaveTheNewer) {
    const auto result = adopt(1, {held("k", 4096, 4), held("k", 0, 5), held("k", 8192, 6), held("k", 12288, 6)});
    EXPECT_EQ(result.adopted, 2u);
    EXPECT_EQ(result.stale, 1u);
    EXPECT_EQ(result.refused, 1u) << "twice the same in one segment";
    EXPECT_EQ(where("k").offset, 8192u);
}

TEST_F(Adoption, ReservesWhatWasBeingWritten) {
    const auto result = adopt(1, {held("a", 0, 5), held("b", 8192, 6)},
                              {{.offset = 8192, .length = 64, .writer = kOther}, {.offset = 4096, .length = 64, .writer = kOther}});
    EXPECT_EQ(result.adopted, 1u);
    EXPECT_EQ(result.refused, 1u) << "its bytes may be written over";
    EXPECT_EQ(state().quarantine().bytes(), 128u);
    EXPECT_EQ(state().quarantine().next(), now_ + 40s) << "by then a writer without a master has stopped for sure";
    attach(kOther);
    EXPECT_EQ(state().quarantine().next(), now_ + options_.lease_ttl) << "who reports to us has stopped what others planned";
}

TEST_F(Adoption, DoesNotWaitForAWriterThatHasReportedAlready) {
    attach(kOther);
    adopt(1, {}, {{.offset = 0, .length = 64, .writer = kOther}, {.offset = 4096, .length = 64, .writer = node(1)}});
    EXPECT_EQ(state().quarantine().size(), 2u) << "but for readers: its end may be what the node was not told any more";
    EXPECT_EQ(state().quarantine().next(), now_ + options_.lease_ttl);
    now_ = state().quarantine().next();
    jobs();
    EXPECT_EQ(state().quarantine().size(), 0u);
}

TEST_F(Adoption, ReadersOfAWriteOfThisLifeAreKnown) {
    add_node(1);
    auto t = transaction();
    end_client(t, state().clients().find(node(1)), ClientEnd::kSilent, now_);
    attach(kOther);
    adopt(1, {}, {{.offset = 0, .length = 64, .writer = kOther}});
    EXPECT_EQ(state().quarantine().size(), 0u);
}

TEST_F(Adoption, AReportDoesNotEndWhatThisMasterFears) {
    add_node(1);
    start("k", kKiB, {}, kOther);
    upsert("k");
    ASSERT_EQ(state().quarantine().size(), 1u);
    attach(kOther);
    EXPECT_EQ(state().quarantine().size(), 1u) << "this write was not planned by an earlier master";
}

TEST_F(Adoption, AfterAnExactReportWhatIsNotNamedIsFreeAtOnce) {
    const std::vector<HeldObject> objects{held("a", 0, 5, kPool / 4)};
    const std::vector<HeldQuarantine> quarantined{{.offset = kPool / 2, .length = kPool / 4, .left = 3s},
                                                  {.offset = 0, .length = kPool / 2, .left = 1s},  // half of it is taken by now
                                                  {.offset = UINT64_MAX - 63, .length = 640, .left = 3s},
                                                  {.offset = 0, .length = UINT64_MAX, .left = 3s}};
    const HeldSegment segment{.segment = spec(1, kPool), .objects = objects, .quarantined = quarantined, .exact = true};
    auto t = transaction();
    remount(t, {.client = node(1), .segments = {&segment, 1}}, now_);
    EXPECT_EQ(put("n", kPool / 4, {.hard_pin = true}), StoreCode::kOk);
    const PutStartReply refused = start({{.key = "m", .length = kPool / 4}});
    EXPECT_EQ(refused.items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(refused.retry_after, 1s);
    pass(1s);
    EXPECT_EQ(put("m", kPool / 4, {.hard_pin = true}), StoreCode::kOk);
    pass(2s);
    EXPECT_EQ(put("o", kPool / 4), StoreCode::kOk);
}

TEST_F(Adoption, WhatIsInQuarantineForFearOfAWriterEndsWithItsReport) {
    const std::vector<HeldQuarantine> quarantined{{.offset = 0, .length = kKiB, .left = 600s, .writer = kOther},
                                                  {.offset = 4096, .length = kKiB, .left = 600s, .writer = {7, 7}},
                                                  {.offset = 8192, .length = kKiB, .left = 600s}};
    const HeldSegment segment{.segment = spec(1, kPool), .quarantined = quarantined, .exact = true};
    {
        auto t = transaction();
        remount(t, {.client = node(1), .segments = {&segment, 1}}, now_);
    }
    EXPECT_EQ(state().quarantine().bytes(), 3 * kKiB);
    attach(kOther);
    EXPECT_EQ(state().quarantine().bytes(), 2 * kKiB);
    pass(40s);
    attach(node(1));
    EXPECT_EQ(state().quarantine().bytes(), kKiB) << "one that reports to nobody has stopped by then; readers may not have";
}

TEST_F(Adoption, WhatIsInQuarantineForFearOfAWriterThatHasReportedIsFree) {
    attach(kOther);
    const std::vector<HeldQuarantine> quarantined{{.offset = 0, .length = kKiB, .left = 600s, .writer = kOther}};
    const HeldSegment segment{.segment = spec(1, kPool), .quarantined = quarantined, .exact = true};
    auto t = transaction();
    remount(t, {.client = node(1), .segments = {&segment, 1}}, now_);
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Adoption, OfPartsTakesNothingNewBeforeTheLast) {
    std::vector<std::string> names;
    for (int i = 0; i < 40; ++i) names.push_back(std::to_string(i));
    const auto part = [&](size_t first, bool more) {  // interleaved in memory
        std::vector<HeldObject> objects;
        for (size_t i = first; i < names.size(); i += 2) objects.push_back(held(names[i], i * kKiB, i + 1, kKiB));
        const HeldSegment segment{.segment = spec(1, kPool), .objects = objects, .exact = true, .more = more};
        auto t = transaction();
        return remount(t, {.client = node(1), .segments = {&segment, 1}}, now_).segments[0];
    };
    EXPECT_EQ(part(0, true).adopted, 20u);
    EXPECT_EQ(get("0").code, StoreCode::kOk) << "readable at once";
    const PutStartReply refused = start({{.key = "n", .length = 64}});
    EXPECT_EQ(refused.items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_GT(refused.retry_after, 0s);
    ASSERT_EQ(remove_key("2", true), StoreCode::kOk);
    const RemountReply::Segment again = part(0, true);
    EXPECT_EQ(again.adopted, 19u) << "its answer was lost";
    EXPECT_EQ(again.stale, 1u) << "what was removed meanwhile does not come back";
    EXPECT_EQ(part(1, false).adopted, 20u);
    EXPECT_EQ(put("n", 64), StoreCode::kOk);
    EXPECT_EQ(state().objects().size(), 40u);
    EXPECT_EQ(part(1, false).adopted, 0u);
}

TEST_F(Adoption, KeepsPinsGroupsAndWriters) {
    HeldObject a = held("a", 0, 5), b = held("b", 4096, 6);
    a.group = b.group = "g";
    a.hard_pin = true;
    b.soft_pin_left = 60s;
    a.writer = kClient;
    adopt(1, {a, b});
    EXPECT_TRUE(object("a").hard_pin);
    EXPECT_EQ(object("b").soft_pin_end, now_ + 60s);
    EXPECT_EQ(state().groups()[object("b").group].members.size(), 2u);
    EXPECT_EQ(end("a", 5), StoreCode::kOk) << "a repeated end finds its value";
    pass(11s);
    attach(node(1));
    const std::string_view key = "a";
    auto t = transaction();
    EXPECT_EQ(replica_clear(t, {.client = kClient, .tenant = "", .keys = {&key, 1}}, now_).codes[0], StoreCode::kOk);
}

TEST_F(Adoption, AnUnfinishedPutReplacesWhatIsAdoptedMeanwhile) {
    add_node(2);
    const PutStartItem started = start("k");
    adopt(1, {held("k", 0, 5)});
    EXPECT_EQ(exists("k"), 1);
    end("k", started.generation);
    EXPECT_EQ(get("k").generation, started.generation);
}

TEST_F(Adoption, WhatWasRemovedBeforeItsNodeReportedStaysAway) {
    options_.first_generation = 1000;
    EXPECT_EQ(remove_key("unknown"), StoreCode::kObjectNotFound);
    ASSERT_EQ(adopt(1, {held("twice", 0, 5)}).adopted, 1u);
    EXPECT_EQ(remove_key("twice", true), StoreCode::kOk);
    const RemountReply::Segment reply = adopt(2, {held("unknown", 0, 6), held("twice", kKiB, 5), held("other", 2 * kKiB, 7)});
    EXPECT_EQ(reply.adopted, 1u);
    EXPECT_EQ(reply.stale, 2u);
    EXPECT_FALSE(holds("unknown"));
    EXPECT_FALSE(holds("twice"));
    EXPECT_TRUE(holds("other"));
    add_node(9);
    EXPECT_EQ(put("unknown"), StoreCode::kOk) << "a new value is another matter";
}

TEST_F(Adoption, WhatWasReplacedWhileItsNodeWasAwayStaysAway) {
    options_.first_generation = 1000;
    add_node(1);
    ASSERT_EQ(adopt(2, {held("k", 0, 5)}).adopted, 1u);
    ASSERT_EQ(upsert("k").code, StoreCode::kOk);
    ASSERT_EQ(end("k"), StoreCode::kOk);
    jobs();
    {
        auto t = transaction();
        Evictor(t, now_).evict(state().objects().find(TenantTable::kDefault, "k"));
    }
    ASSERT_FALSE(holds("k"));
    EXPECT_EQ(adopt(3, {held("k", 0, 5)}).stale, 1u);
    EXPECT_FALSE(holds("k"));
}

TEST_F(Adoption, RemovalOfEverythingByForceIncludesWhatIsYetToBeReported) {
    options_.first_generation = 1000;
    {
        auto t = transaction();
        Removal removal(t, {.force = true});
        removal.start(t, now_);
        EXPECT_TRUE(removal.look(t.state()).empty());
    }
    EXPECT_EQ(adopt(1, {held("k", 0, 5)}).stale, 1u);
    add_node(9);
    EXPECT_EQ(put("k"), StoreCode::kOk);
}

TEST_F(Adoption, ARepeatedRemountChangesNothing) {
    adopt(1, {held("a", 0, 5)});
    pass(11s);
    attach(node(1));
    put("n", 64);
    const auto result = adopt(1, {held("a", 0, 5), held("x", 4096, 6)});
    EXPECT_EQ(result.code, StoreCode::kOk);
    EXPECT_EQ(result.adopted, 0u);
    EXPECT_FALSE(holds("x")) << "the master knows better by now";
}

}  // namespace
}  // namespace mooncake::store
