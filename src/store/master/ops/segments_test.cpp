// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/evictor.h"
#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class Segments : public PoolTest {
protected:
    StoreCode mount(const SegmentSpec& segment, const ClientId& client) {
        auto t = transaction();
        return mount_segment(t, {.client = client, .segment = segment}, now_);
    }
    StoreCode unmount(uint64_t number, Duration grace = 0s, std::optional<ClientId> client = {}) {
        auto t = transaction();
        return unmount_segment(t, {.client = client.value_or(node(number)), .segment = spec(number, kPool).id, .grace = grace}, now_);
    }
    RemountReply::Segment adopt(uint64_t number, const std::vector<HeldObject>& objects, const std::vector<HeldWrite>& writes = {},
                                uint64_t size = kPool) {
        const HeldSegment held{.segment = spec(number, size), .objects = objects, .writes = writes};
        auto t = transaction();
        return remount(t, {.client = node(number), .segments = {&held, 1}}, now_).segments[0];
    }
    static HeldObject held(std::string_view key, uint64_t offset, uint64_t generation, uint64_t length = kKiB) {
        return {.tenant = "default", .key = key, .offset = offset, .length = length, .generation = generation, .checksum = generation * 10};
    }
};

TEST_F(Segments, MountIsIdempotentAndChecked) {
    EXPECT_EQ(mount(spec(1, kPool), node(1)), StoreCode::kClientNotFound) << "must make itself known first";
    attach(node(1));
    EXPECT_EQ(mount(spec(1, kPool), node(1)), StoreCode::kOk);
    EXPECT_EQ(mount(spec(1, kPool), node(1)), StoreCode::kOk);
    EXPECT_EQ(state().segments().size(), 1u);
    EXPECT_EQ(mount(spec(1, 2 * kPool), node(1)), StoreCode::kSegmentAlreadyExists) << "another size";
    attach(node(2));
    EXPECT_EQ(mount(spec(1, kPool), node(2)), StoreCode::kSegmentAlreadyExists) << "another client";
    SegmentSpec overlapping = spec(1, kPool);
    overlapping.id = {9, 9};
    overlapping.base += kPool - 64;
    EXPECT_EQ(mount(overlapping, node(1)), StoreCode::kSegmentAlreadyExists);
    overlapping.base += 64;
    EXPECT_EQ(mount(overlapping, node(1)), StoreCode::kOk);
}

TEST_F(Segments, AMountThatWasNotAnsweredBeforeARestartFromTheLogIsOpened) {
    attach(node(1));
    ASSERT_EQ(mount(spec(1, kPool), node(1)), StoreCode::kOk);
    {
        auto t = transaction();
        t.apply(Restarted{.now = now_});
    }
    EXPECT_EQ(put("k"), StoreCode::kNoAvailableHandle) << "its node has not met this life yet";
    attach(node(1));
    ASSERT_EQ(mount(spec(1, kPool), node(1)), StoreCode::kOk);
    EXPECT_EQ(put("k"), StoreCode::kOk);
}

TEST_F(Segments, RefusesNonsense) {
    attach(node(1));
    SegmentSpec bad = spec(1, 63);
    EXPECT_EQ(mount(bad, node(1)), StoreCode::kInvalidParams) << "too small";
    bad.size = UINT64_MAX - 5;
    EXPECT_EQ(mount(bad, node(1)), StoreCode::kInvalidParams) << "too large";
    bad = spec(1, kPool);
    bad.name.clear();
    EXPECT_EQ(mount(bad, node(1)), StoreCode::kInvalidParams);
    bad = spec(1, kPool);
    bad.id = {};
    EXPECT_EQ(mount(bad, node(1)), StoreCode::kInvalidParams);
    bad = spec(1, kPool);
    bad.base = UINT64_MAX - 100;
    EXPECT_EQ(mount(bad, node(1)), StoreCode::kInvalidParams) << "past the end of all memory";
    auto t = transaction();
    const HeldSegment held{.segment = spec(1, kPool)};
    EXPECT_EQ(remount(t, {.client = {}, .segments = {&held, 1}}, now_).segments[0].code, StoreCode::kInvalidParams) << "no client";
}

TEST_F(Segments, UnmountTakesItsReplicasAlong) {
    add_node(1);
    add_node(2);
    put("one", 100, {.preferred_segments = {"node01:1"}});
    put("both", 100, {.replica_num = 2});
    EXPECT_EQ(unmount(1, 0s, kOther), StoreCode::kIllegalClient);
    EXPECT_EQ(unmount(1), StoreCode::kOk);
    EXPECT_EQ(unmount(1), StoreCode::kSegmentNotFound);
    EXPECT_EQ(get("one").code, StoreCode::kObjectNotFound);
    EXPECT_EQ(get("both").replica_count, 1u);
}

TEST_F(Segments, UnmountTakesUnfinishedWritesAlong) {
    add_node(1);
    const PutStartItem started = start("k");
    unmount(1);
    EXPECT_EQ(end("k", started.generation), StoreCode::kObjectNotFound);
    EXPECT_EQ(state().write_count(), 0u);
}

TEST_F(Segments, AnUpsertSurvivesTheLossOfTheOldValue) {
    add_node(1);
    add_node(2);
    put("k", 100, {.preferred_segments = {"node01:1"}});
    const PutStartItem started = upsert("k", 100, {.preferred_segments = {"node02:1"}});
    unmount(1);
    EXPECT_EQ(exists("k"), 0);
    EXPECT_EQ(end("k", started.generation), StoreCode::kOk);
    EXPECT_EQ(exists("k"), 1);
}

TEST_F(Segments, LosingAMemberLosesTheGroup) {
    add_node(1);
    add_node(2);
    put("a", 100, {.preferred_segments = {"node01:1"}}, "g");
    put("b", 100, {.preferred_segments = {"node02:1"}}, "g");
    put("c", 100, {.preferred_segments = {"node02:1"}});
    unmount(1);
    EXPECT_FALSE(holds("b"));
    EXPECT_TRUE(holds("c"));
    EXPECT_EQ(state().groups().size(), 0u);
}

TEST_F(Segments, GracefulUnmountStaysReadableAndTakesNothingNew) {
    add_node(1);
    put("k");
    EXPECT_EQ(unmount(1, 5s), StoreCode::kOk);
    EXPECT_EQ(get("k").code, StoreCode::kOk);
    EXPECT_EQ(start("n").code, StoreCode::kNoAvailableHandle);
    pass(4s);
    jobs();
    EXPECT_TRUE(holds("k"));
    pass(1s);
    jobs();
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(state().segments().size(), 0u);
}

TEST_F(Segments, MemoryMountedAgainKeepsWhatLeasedReadersAndWritersMayReach) {
    add_node(1);
    put("k", kPool / 4);
    get("k");
    ASSERT_EQ(start("w", kPool / 4).code, StoreCode::kOk);
    unmount(1);
    SegmentSpec again = spec(1, kPool);
    again.id = {9, 9};
    again.name = "node01:1";
    ASSERT_EQ(mount(again, node(1)), StoreCode::kOk);
    EXPECT_EQ(state().segments().used_bytes(), kPool / 2);
    EXPECT_EQ(put("n", kPool / 2), StoreCode::kOk) << "the rest is free at once";
    pass(10s);
    beat(node(1));
    beat(kClient);
    jobs();
    EXPECT_EQ(state().segments().used_bytes(), kPool / 2 + kPool / 4);
    auto t = transaction();
    goodbye(t, kClient, now_);
    EXPECT_EQ(state().segments().used_bytes(), kPool / 2 + kPool / 4) << "which memory it was writing to is not known any more";
    pass(600s);
    attach(node(1));
    EXPECT_EQ(state().segments().used_bytes(), kPool / 2);
}

TEST_F(Segments, SilentClientsEnd) {
    add_node(1);
    put("k");
    pass(9s);
    EXPECT_EQ(beat(node(1)), PingStatus::kOk);
    pass(9s);
    jobs();
    EXPECT_TRUE(holds("k"));
    pass(1s);
    jobs();
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(beat(node(1)), PingStatus::kNeedRemount);
    EXPECT_EQ(beat(ClientId{77, 77}), PingStatus::kNeedRemount);
}

TEST_F(Segments, WhoIsNotHeardOfAfterItsFeedBrokeEndsSoon) {
    add_node(1);
    put("k");
    follows(node(1), true);
    pass(1s);
    follows(node(1), false);
    pass(1900ms);
    jobs();
    EXPECT_TRUE(holds("k"));
    pass(100ms);
    jobs();
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(beat(node(1)), PingStatus::kNeedRemount);
}

TEST_F(Segments, WhoPingsAfterItsFeedBrokeLivesOn) {
    add_node(1);
    put("k");
    follows(node(1), true);
    pass(1s);
    follows(node(1), false);
    pass(1s);
    EXPECT_EQ(beat(node(1)), PingStatus::kOk);
    pass(9s);
    jobs();
    EXPECT_TRUE(holds("k"));
}

TEST_F(Segments, RangesOfAWriterThatEndedEarlyRestFromWhenItMustHaveStopped) {
    add_node(1);
    attach(kClient);
    start("k", kPool);
    follows(kClient, false);
    pass(2s);
    jobs();
    EXPECT_EQ(state().write_count(), 0u);
    EXPECT_EQ(state().quarantine().next(), now_ + 8s + 30s);
}

TEST_F(Segments, AWriterThatNeverAttachedIsAskedToWhenItPings) {
    add_node(1);
    start("k");
    EXPECT_EQ(beat(kClient), PingStatus::kNeedRemount);
    attach(kClient);
    EXPECT_EQ(beat(kClient), PingStatus::kOk);
    EXPECT_EQ(end("k"), StoreCode::kOk) << "it was alive all the time";
}

TEST_F(Segments, RangesOfASilentWriterRestForAWhile) {
    add_node(1);
    start("k", kPool);
    pass(10s);
    attach(node(1));
    jobs();
    EXPECT_EQ(state().write_count(), 0u);
    EXPECT_EQ(state().quarantine().next(), now_ + 30s);
}

TEST_F(Segments, GoodbyeFreesWhatTheClientWasWriting) {
    add_node(1);
    attach(kClient);
    start("a", 100);
    start("b", 100);
    pass(9s);
    beat(node(1));
    beat(kClient);
    const PutStartItem stolen = upsert("b", 100, {}, kOther);
    EXPECT_EQ(state().quarantine().size(), 1u);
    auto t = transaction();
    EXPECT_EQ(goodbye(t, kClient, now_), StoreCode::kOk);
    EXPECT_EQ(goodbye(t, kClient, now_), StoreCode::kClientNotFound);
    EXPECT_EQ(state().quarantine().size(), 0u) << "also what rested for fear of it";
    EXPECT_EQ(state().segments().used_bytes(), 128u);
    EXPECT_EQ(end("b", stolen.generation, kOther), StoreCode::kOk);
}

TEST_F(Segments, ARestartedNodeReplacesItsEarlierLifeAtOnce) {
    add_node(1);
    put("k");
    attach(node(51));
    SegmentSpec successor = spec(51, kPool);
    successor.name = "node01:1";
    EXPECT_EQ(mount(successor, node(51)), StoreCode::kOk);
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(beat(node(1)), PingStatus::kNeedRemount);
    EXPECT_EQ(state().segments().size(), 1u);
}

TEST_F(Segments, FailureReportsKeepNewWritesAway) {
    for (uint64_t n = 1; n <= 4; ++n) add_node(n);
    attach(kClient);
    const auto report = [&](uint64_t number) {
        const SegmentId id = spec(number, kPool).id;
        auto t = transaction();
        return report_failures(t, {.client = kClient, .segments = {&id, 1}}, now_);
    };
    const auto used_names = [&] {
        std::set<std::string> names;
        for (int i = 0; i < 100; ++i) {
            const std::string key = std::to_string(state().next_generation());
            names.insert(state().segments()[start({{.key = key, .length = 64}}).replicas.at(0).segment].spec.name);
        }
        return names;
    };
    EXPECT_EQ(report(1), StoreCode::kOk);
    EXPECT_FALSE(used_names().contains("node01:1"));
    pass(1s);
    EXPECT_TRUE(used_names().contains("node01:1"));
    report(1);
    pass(1s);
    EXPECT_FALSE(used_names().contains("node01:1")) << "twice as long the second time";
    report(2);
    report(3);
    report(4);
    EXPECT_EQ(used_names().size(), 2u) << "not the whole pool";
    auto t = transaction();
    EXPECT_EQ(report_failures(t, {.client = {8, 8}, .segments = {}}, now_), StoreCode::kClientNotFound);
}

TEST_F(Segments, WhoIsSilentGetsNothingNewUntilHeardAgain) {
    for (uint64_t n = 1; n <= 3; ++n) add_node(n);
    attach(kClient);
    const auto used_names = [&] {
        std::set<std::string> names;
        for (int i = 0; i < 60; ++i) {
            const std::string key = std::to_string(state().next_generation());
            const PutStartReply reply = start({{.key = key, .length = 64}}, {.replica_num = 3});
            for (const ReplicaLocation& replica : reply.replicas) names.insert(state().segments()[replica.segment].spec.name);
        }
        return names;
    };
    const std::set<std::string> all = {"node01:1", "node02:1", "node03:1"};
    pass(600ms);
    for (const uint64_t n : {1, 2}) beat(node(n));
    EXPECT_EQ(used_names(), all) << "it may have been a slow ping";
    pass(300ms);
    EXPECT_EQ(used_names(), (std::set<std::string>{"node01:1", "node02:1"}));
    EXPECT_EQ(put("asked for", 64, {.preferred_segments = {"node03:1"}}), StoreCode::kOk);
    EXPECT_NE(where("asked for").segment, state().segments().find(spec(3, kPool).id));
    beat(node(3));
    EXPECT_EQ(used_names(), all);
    pass(5s);
    EXPECT_EQ(used_names(), all) << "if nobody is heard the fault is ours";
    beat(node(1));
    EXPECT_EQ(used_names(), all) << "two of three";
    beat(node(2));
    EXPECT_EQ(used_names(), (std::set<std::string>{"node01:1", "node02:1"}));
}

TEST_F(Segments, ASilentOneIsBetterThanARefusal) {
    const SegmentNumber full = add_node(1), silent = add_node(2);
    attach(kClient);
    ASSERT_EQ(put("all", kPool, {.hard_pin = true, .preferred_segments = {"node01:1"}}), StoreCode::kOk);
    EXPECT_EQ(where("all").segment, full);
    pass(2s);
    beat(node(1));
    EXPECT_EQ(put("k"), StoreCode::kOk);
    EXPECT_EQ(where("k").segment, silent);
}

TEST_F(Segments, ReadersSeeSuspectReplicasLast) {
    add_node(1);
    add_node(2);
    attach(kClient);
    put("k", 100, {.replica_num = 2});
    const GetReply before = get_all({"k"});
    const SegmentId first = state().segments()[before.replicas[0].segment].spec.id;
    auto t = transaction();
    report_failures(t, {.client = kClient, .segments = {&first, 1}}, now_);
    const GetReply after = get_all({"k"});
    EXPECT_EQ(after.replicas[0], before.replicas[1]);
    EXPECT_EQ(after.replicas[1], before.replicas[0]);
}

class Adoption : public Segments {};

TEST_F(Adoption, BringsBackWhatANodeHolds) {
    const auto result = adopt(1, {held("a", 0, 5), held("b", 4096, 7, 2048)});
    EXPECT_EQ(result.code, StoreCode::kOk);
    EXPECT_EQ(result.adopted, 2u);
    const GetItem b = get("b");
    EXPECT_EQ(b.length, 2048u);
    EXPECT_EQ(b.checksum, 70u);
    EXPECT_EQ(where("b").offset, 4096u);
    EXPECT_EQ(state().next_generation(), 8u);
    EXPECT_EQ(beat(node(1)), PingStatus::kOk);
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
    EXPECT_EQ(state().quarantine().bytes(), 0u) << "who reports to us has stopped what others planned";
}

TEST_F(Adoption, DoesNotWaitForAWriterThatHasReportedAlready) {
    attach(kOther);
    adopt(1, {}, {{.offset = 0, .length = 64, .writer = kOther}, {.offset = 4096, .length = 64, .writer = node(1)}});
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
    const std::vector<HeldRest> rests{{.offset = kPool / 2, .length = kPool / 4, .left = 3s},
                                      {.offset = 0, .length = kPool / 2, .left = 1s},  // half of it is taken by now
                                      {.offset = UINT64_MAX - 63, .length = 640, .left = 3s},
                                      {.offset = 0, .length = UINT64_MAX, .left = 3s}};
    const HeldSegment segment{.segment = spec(1, kPool), .objects = objects, .rests = rests, .exact = true};
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
        EXPECT_EQ(remove_matching(t, {.force = true}, now_), 0u);
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
