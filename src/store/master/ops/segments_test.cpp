// SPDX-License-Identifier: Apache-2.0
#include "store/master/testing/pool_segments.h"

namespace mooncake::store {
namespace {

using Segments = PoolSegmentsTest;

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

TEST_F(Segments, MemoryLentAgainByAnotherClientOfItsEngineKeepsWhatLeasedReadersAndWritersMayReach) {
    const Incarnation engine{77};
    SegmentSpec first = spec(1, kPool);
    first.incarnation = engine;
    attach(node(1));
    ASSERT_EQ(mount(first, node(1)), StoreCode::kOk);
    put("k", kPool / 4);
    get("k");
    ASSERT_EQ(start("w", kPool / 4).code, StoreCode::kOk);
    {
        auto t = transaction();
        goodbye(t, node(1), now_);
    }
    ASSERT_EQ(state().segments().size(), 0u);
    attach(node(2));
    SegmentSpec elsewhere = spec(2, kPool);  // another engine: nobody writes there by mistake
    elsewhere.base = first.base;
    elsewhere.incarnation = Incarnation{78};
    ASSERT_EQ(mount(elsewhere, node(2)), StoreCode::kOk);
    EXPECT_EQ(state().segments().used_bytes(), 0u);
    attach(node(3));
    SegmentSpec again = spec(3, kPool);
    again.base = first.base;
    again.incarnation = engine;
    ASSERT_EQ(mount(again, node(3)), StoreCode::kOk);
    EXPECT_EQ(state().segments().used_bytes(), kPool / 2);
    pass(600s);
    attach(node(3));
    EXPECT_EQ(state().segments().used_bytes(), 0u);
}

TEST_F(Segments, MemoryLentAgainKeepsNothingForAWriterThatSaidGoodbye) {
    SegmentSpec first = spec(1, kPool);
    first.incarnation = Incarnation{77};
    attach(node(1));
    attach(kClient);
    ASSERT_EQ(mount(first, node(1)), StoreCode::kOk);
    ASSERT_EQ(start("w", kPool / 4).code, StoreCode::kOk);
    {
        auto t = transaction();
        goodbye(t, node(1), now_);
        goodbye(t, kClient, now_);
    }
    attach(node(3));
    SegmentSpec again = spec(3, kPool);
    again.base = first.base;
    again.incarnation = first.incarnation;
    ASSERT_EQ(mount(again, node(3)), StoreCode::kOk);
    EXPECT_EQ(state().segments().used_bytes(), 0u);
}

TEST_F(Segments, SilentClientsEnd) {
    add_node(1);
    put("k");
    pass(9s);
    EXPECT_EQ(beat(node(1)), HeartbeatStatus::kOk);
    pass(9s);
    jobs();
    EXPECT_TRUE(holds("k"));
    pass(1s);
    jobs();
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(beat(node(1)), HeartbeatStatus::kNeedRemount);
    EXPECT_EQ(beat(ClientId{77, 77}), HeartbeatStatus::kNeedRemount);
}

TEST_F(Segments, WhoIsNotHeardOfAfterItsEventStreamBrokeEndsSoon) {
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
    EXPECT_EQ(beat(node(1)), HeartbeatStatus::kNeedRemount);
}

TEST_F(Segments, WhoSendsHeartbeatsAfterItsEventStreamBrokeLivesOn) {
    add_node(1);
    put("k");
    follows(node(1), true);
    pass(1s);
    follows(node(1), false);
    pass(1s);
    EXPECT_EQ(beat(node(1)), HeartbeatStatus::kOk);
    pass(9s);
    jobs();
    EXPECT_TRUE(holds("k"));
}

TEST_F(Segments, RangesOfAWriterThatEndedEarlyAreInQuarantineFromWhenItMustHaveStopped) {
    add_node(1);
    attach(kClient);
    start("k", kPool);
    follows(kClient, false);
    pass(2s);
    jobs();
    EXPECT_EQ(state().write_count(), 0u);
    EXPECT_EQ(state().quarantine().next(), now_ + 8s + 30s);
}

TEST_F(Segments, AWriterThatNeverAttachedIsAskedToWhenItSendsAHeartbeat) {
    add_node(1);
    start("k");
    EXPECT_EQ(beat(kClient), HeartbeatStatus::kNeedRemount);
    attach(kClient);
    EXPECT_EQ(beat(kClient), HeartbeatStatus::kOk);
    EXPECT_EQ(end("k"), StoreCode::kOk) << "it was alive all the time";
}

TEST_F(Segments, RangesOfAStoppedWriterAreInQuarantineUntilItReports) {
    add_node(1);
    attach(kOther);
    follows(kOther, true);
    start("k", kKiB, {}, kOther);
    auto t = transaction();
    end_client(t, state().clients().find(kOther), ClientEnd::kSilent, now_);
    ASSERT_EQ(state().quarantine().bytes(), kKiB);
    EXPECT_GE(state().quarantine().next(), now_ + options_.stopped_writer_quarantine)
        << "its connection is up, so it is stopped, perhaps in the middle of a copy";
    pass(60s);
    EXPECT_EQ(state().quarantine().bytes(), kKiB);
    attach(kOther);
    EXPECT_EQ(state().quarantine().bytes(), 0u) << "who reports has ended its writes";
}

TEST_F(Segments, RangesOfAWriterThatWasReplacedUnderItsNameAreInQuarantineForAWhile) {
    add_node(1);
    attach(kOther);
    start("k", kKiB, {}, kOther);
    auto t = transaction();
    end_client(t, state().clients().find(kOther), ClientEnd::kReplaced, now_);
    EXPECT_EQ(state().quarantine().bytes(), kKiB) << "whoever took its name need not have stopped it";
}

TEST_F(Segments, RangesOfASilentWriterAreInQuarantineForAWhile) {
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

TEST_F(Segments, OfANameWhoseOwnerIsAliveAreRefused) {
    add_node(1);
    put("k");
    attach(node(51));
    SegmentSpec namesake = spec(51, kPool);
    namesake.name = "node01:1";
    EXPECT_EQ(mount(namesake, node(51)), StoreCode::kSegmentAlreadyExists);
    const HeldSegment held{.segment = namesake};
    {
        auto t = transaction();
        const RemountReply reply = remount(t, {.client = node(51), .segments = {&held, 1}}, now_);
        EXPECT_EQ(reply.segments[0].code, StoreCode::kSegmentAlreadyExists);
    }
    EXPECT_TRUE(holds("k"));
    pass(1s);
    EXPECT_EQ(mount(namesake, node(51)), StoreCode::kOk) << "nobody has heard of the other one lately";
    EXPECT_FALSE(holds("k"));
    beat(node(51));
    attach(node(1));
    EXPECT_EQ(mount(spec(1, kPool), node(1)), StoreCode::kSegmentAlreadyExists) << "nor does that one come back";
}

TEST_F(Segments, ThatWereUnmountedAreNotMountedByALateMessage) {
    attach(node(1));
    EXPECT_EQ(unmount(1), StoreCode::kSegmentNotFound) << "it was quicker than the mount";
    EXPECT_EQ(mount(spec(1, kPool), node(1)), StoreCode::kSegmentNotFound);
    add_node(2);
    EXPECT_EQ(unmount(2), StoreCode::kOk);
    EXPECT_EQ(mount(spec(2, kPool), node(2)), StoreCode::kSegmentNotFound) << "the same mount once more";
    add_node(3);
    EXPECT_EQ(unmount(3, 1s), StoreCode::kOk);
    pass(1s);
    jobs();
    EXPECT_EQ(mount(spec(3, kPool), node(3)), StoreCode::kSegmentNotFound);
    EXPECT_EQ(state().segments().size(), 0u);
}

TEST_F(Segments, ARestartedNodeReplacesItsEarlierLifeAtOnce) {
    add_node(1);
    put("k");
    follows(node(1), false);  // its connection ended with it
    attach(node(51));
    SegmentSpec successor = spec(51, kPool);
    successor.name = "node01:1";
    EXPECT_EQ(mount(successor, node(51)), StoreCode::kOk);
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(beat(node(1)), HeartbeatStatus::kNeedRemount);
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
    EXPECT_EQ(used_names(), all) << "it may have been a slow heartbeat";
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

}  // namespace
}  // namespace mooncake::store
