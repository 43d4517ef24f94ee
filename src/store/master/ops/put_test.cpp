// SPDX-License-Identifier: Apache-2.0
#include "store/master/jobs/jobs.h"
#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class Put : public PoolTest {
protected:
    void SetUp() override { add_node(1); }
};

TEST_F(Put, MakesAnObjectReadableAtItsEndOnly) {
    const PutStartItem started = start("k", 1000);
    ASSERT_EQ(started.code, StoreCode::kOk);
    EXPECT_EQ(started.replica_count, 1u);
    EXPECT_EQ(exists("k"), 0);
    EXPECT_EQ(get("k").code, StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(end("k", started.generation, kClient, 77), StoreCode::kOk);
    EXPECT_EQ(exists("k"), 1);
    const GetItem item = get("k");
    EXPECT_EQ(item.code, StoreCode::kOk);
    EXPECT_EQ(item.length, 1000u);
    EXPECT_EQ(item.checksum, 77u);
    EXPECT_EQ(item.generation, started.generation);
    EXPECT_EQ(item.replica_count, 1u);
}

TEST_F(Put, RefusesWhatMakesNoSense) {
    EXPECT_EQ(start("", 1).code, StoreCode::kInvalidParams);
    EXPECT_EQ(start("k", 0).code, StoreCode::kInvalidParams);
    EXPECT_EQ(start("k", 1, {.replica_num = 0}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(start("k", 1, {.soft_pin_ttl = 1s}).code, StoreCode::kInvalidParams) << "a time without ENABLE";
    EXPECT_EQ(start("k", 1, {.soft_pin = SoftPinAction::kDisable, .soft_pin_ttl = 1s}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(start("k", 1, {.soft_pin = SoftPinAction::kEnable, .soft_pin_ttl = 25h}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(start("k", 1, {.soft_pin = SoftPinAction::kEnable, .soft_pin_ttl = -1s}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(start("k", 1, {}, ClientId{}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(end(""), StoreCode::kInvalidParams);
    const std::string long_key(kKeyBytesMax + 1, 'k'), long_group(kGroupBytesMax + 1, 'g');
    EXPECT_EQ(start(long_key, 1).code, StoreCode::kInvalidParams);
    EXPECT_EQ(end(long_key), StoreCode::kInvalidParams);
    EXPECT_EQ(get(long_key).code, StoreCode::kInvalidParams);
    EXPECT_EQ(exists(long_key), static_cast<int>(StoreCode::kInvalidParams));
    EXPECT_EQ(remove_key(long_key), StoreCode::kInvalidParams);
    EXPECT_EQ(start({{.key = "k", .length = 1, .group = long_group}}).items[0].code, StoreCode::kInvalidParams);
    EXPECT_EQ(state().objects().size(), 0u);
}

TEST_F(Put, OfAnExistingKeyIsRefusedAndChangesNothing) {
    ASSERT_EQ(put("k", 100), StoreCode::kOk);
    const uint64_t generation = get("k").generation;
    EXPECT_EQ(start("k", 200).code, StoreCode::kObjectAlreadyExists);
    EXPECT_EQ(get("k").generation, generation);
    EXPECT_EQ(get("k").length, 100u);
}

TEST_F(Put, OfAKeyBeingWrittenIsRefusedUntilTheDiscardTimeout) {
    const PutStartItem first = start("k");
    EXPECT_EQ(start("k", kKiB, {}, kOther).code, StoreCode::kReplicaIsNotReady);
    pass(29s);
    EXPECT_EQ(start("k", kKiB, {}, kOther).code, StoreCode::kReplicaIsNotReady);
    pass(1s);
    const PutStartItem second = start("k", kKiB, {}, kOther);
    ASSERT_EQ(second.code, StoreCode::kOk);
    EXPECT_GT(second.generation, first.generation);
    EXPECT_EQ(end("k", first.generation), StoreCode::kIllegalClient) << "the pre-empted writer";
    EXPECT_EQ(end("k", second.generation, kOther), StoreCode::kOk);
}

TEST_F(Put, OfAKeyWhoseWritersStreamIsDownIsStartedAnew) {
    start("k");
    follows(kClient, false);
    EXPECT_EQ(start("k", kKiB, {}, kOther).code, StoreCode::kReplicaIsNotReady) << "it may just be connecting again";
    pass(1s);
    EXPECT_EQ(start("k", kKiB, {}, kOther).code, StoreCode::kOk);
    EXPECT_EQ(state().quarantine().bytes(), kKiB) << "its bytes may still land";

    const PutStartItem again = start("l");
    follows(kClient, true);
    pass(2s);
    EXPECT_EQ(start("l", kKiB, {}, kOther).code, StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(end("l", again.generation), StoreCode::kOk);
}

TEST_F(Put, GivenUpWithBytesInDoubtFreesItsKeyAndLetsOnlyTheDoubtfulRangeBeInQuarantine) {
    const SegmentNumber other = add_node(2);
    const PutStartReply started = start({{.key = "k", .length = kKiB}}, {.replica_num = 2});
    ASSERT_EQ(started.replicas.size(), 2u);
    const Time began = now_;
    pass(2s);
    {
        auto t = transaction();
        const PutEndItem item{.key = "k", .generation = started.items[0].generation};
        EXPECT_EQ(put_revoke(t, {.client = kClient, .items = {&item, 1}, .in_doubt = {&other, 1}}, now_).codes[0], StoreCode::kOk);
    }
    EXPECT_EQ(state().quarantine().bytes(), kKiB);
    EXPECT_EQ(state().segments()[other].quarantined_bytes, kKiB);
    EXPECT_EQ(state().quarantine().next(), began + options_.put_release_timeout);
    EXPECT_EQ(put("k"), StoreCode::kOk) << "the key is free";
}

TEST_F(Put, PlacesNothingOnASuspectWhileAnotherHasOrCanMakeRoom) {
    const SegmentNumber suspect = add_node(2, 4 * kPool);
    suspected(suspect);
    for (int i = 0; i < 200; ++i) ASSERT_EQ(put(std::to_string(i), kKiB, {.replica_num = 2}), StoreCode::kOk);
    EXPECT_EQ(state().segments()[suspect].allocator.used_bytes(), 0u) << "rather evicts, rather one replica less";
    EXPECT_GT(state().totals().evicted_objects, 0u);
    ASSERT_EQ(put("large", 2 * kPool), StoreCode::kOk) << "which fits nowhere else";
    EXPECT_EQ(where("large").segment, suspect);
}

TEST_F(Put, EvictsNothingForAReplicaThatCanHaveNoPlace) {
    fill(kKiB);
    const uint64_t before = state().totals().evicted_objects;
    ASSERT_EQ(put("k", kKiB, {.replica_num = 3}), StoreCode::kOk);
    EXPECT_EQ(state().totals().evicted_objects, before + 1);
}

TEST_F(Put, AvoidsWhatItsWriterCannotReach) {
    const SegmentNumber other = add_node(2);
    for (int i = 0; i < 20; ++i) {
        const std::string key = std::to_string(i);
        auto t = transaction();
        const PutItem item{.key = key, .length = kKiB};
        const PutStartReply reply = put_start(
            t, {.client = kClient, .config = {.replica_num = 2}, .items = {&item, 1}, .unreachable = {&other, 1}}, now_);
        ASSERT_EQ(reply.replicas.size(), 1u);
        EXPECT_NE(reply.replicas[0].segment, other);
    }
}

TEST_F(Put, PrefersSegmentsWhoseOwnerFollows) {
    const SegmentNumber unheard = add_node(2);
    follows(node(2), false);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(put(std::to_string(i)), StoreCode::kOk);
    EXPECT_EQ(state().segments()[unheard].allocator.used_bytes(), 0u);
    follows(node(2), true);
    for (int i = 20; i < 60; ++i) ASSERT_EQ(put(std::to_string(i)), StoreCode::kOk);
    EXPECT_GT(state().segments()[unheard].allocator.used_bytes(), 0u);
}

TEST_F(Put, TheRangeOfAWriteThatTookTooLongIsInQuarantineUntilWhatHadBegunMustHaveEnded) {
    const PutStartReply started = start({{.key = "k", .length = kPool}});
    EXPECT_EQ(started.release, options_.put_release_timeout) << "the writer is told";
    pass(600s - 1ns);
    auto t = transaction();
    EXPECT_EQ(expire_writes(t, now_), 0u);
    pass(1ns);
    EXPECT_EQ(expire_writes(t, now_), 1u);
    EXPECT_EQ(state().write_count(), 0u);
    EXPECT_EQ(state().quarantine().bytes(), kPool) << "a part of it may just be on its way";
    EXPECT_EQ(state().quarantine().next(), now_ + options_.release_margin(kPool));
}

TEST_F(Put, RangesOfAPreemptedWriteAreInQuarantineUntilTheReleaseTimeout) {
    const Time started = now_;
    start("k", kPool);
    pass(30s);
    EXPECT_EQ(start("k", kKiB, {}, kOther).code, StoreCode::kNoAvailableHandle) << "the whole pool may still be written to";
    EXPECT_EQ(state().quarantine().bytes(), kPool);
    const Time over = started + 600s + options_.release_margin(kPool);
    EXPECT_EQ(state().quarantine().next(), over);
    now_ = over;
    EXPECT_EQ(start("k", kKiB, {}, kOther).code, StoreCode::kOk);
}

TEST_F(Put, IsAnsweredTheSameWhenTheRequestIsRepeated) {
    const std::vector<PutItem> items{{.key = "a", .length = 100}, {.key = "b", .length = 200}};
    const PutStartReply first = start(items, {}, kClient, 7);
    const uint64_t used = state().segments().used_bytes();
    const PutStartReply again = start(items, {}, kClient, 7);
    EXPECT_EQ(again.replicas, first.replicas);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(again.items[i].generation, first.items[i].generation);
    EXPECT_EQ(state().segments().used_bytes(), used);
    EXPECT_EQ(start(items, {}, kClient, 8).items[0].code, StoreCode::kReplicaIsNotReady) << "another request";
    EXPECT_EQ(start(items, {}, kOther, 7).items[0].code, StoreCode::kReplicaIsNotReady) << "another client";
}

TEST_F(Put, CannotStartLateAfterItWasRevoked) {
    EXPECT_EQ(revoke("k", 0, kClient, 7), StoreCode::kObjectNotFound) << "the client is not even known";
    start("other");
    EXPECT_EQ(revoke("k", 0, kClient, 7), StoreCode::kObjectNotFound);
    EXPECT_EQ(start(std::vector<PutItem>{{.key = "k", .length = 1}}, {}, kClient, 7).items[0].code, StoreCode::kInvalidWrite);
    EXPECT_EQ(start(std::vector<PutItem>{{.key = "k", .length = 1}}, {}, kClient, 8).items[0].code, StoreCode::kOk);
}

TEST_F(Put, EndIsTheStartersAloneAndMayBeRepeated) {
    const PutStartItem started = start("k");
    EXPECT_EQ(end("k", started.generation, kOther), StoreCode::kIllegalClient);
    EXPECT_EQ(end("missing"), StoreCode::kObjectNotFound);
    EXPECT_EQ(end("k", started.generation + 1), StoreCode::kInvalidWrite);
    EXPECT_EQ(end("k"), StoreCode::kOk);
    EXPECT_EQ(end("k"), StoreCode::kOk);
    EXPECT_EQ(end("k", started.generation), StoreCode::kOk);
    EXPECT_EQ(end("k", 0, kOther), StoreCode::kIllegalClient);
    EXPECT_EQ(end("k", started.generation + 1), StoreCode::kInvalidWrite);
}

TEST_F(Put, ARevokeWithoutAGenerationMeansItsOwnRequestOnly) {
    ASSERT_EQ(start({{.key = "k", .length = 64}}, {}, kClient, 8).items[0].code, StoreCode::kOk);
    EXPECT_EQ(revoke("k", 0, kClient, 7), StoreCode::kInvalidWrite) << "of a start whose answer never came";
    EXPECT_EQ(revoke("k", 0, kClient, 8), StoreCode::kOk);
}

TEST_F(Put, RevokeFreesTheRangeAtOnce) {
    const PutStartItem started = start("k", kPool);
    EXPECT_EQ(revoke("k", started.generation, kOther), StoreCode::kIllegalClient);
    EXPECT_EQ(revoke("k", started.generation), StoreCode::kOk);
    EXPECT_EQ(state().segments().used_bytes(), 0u);
    EXPECT_EQ(revoke("k", started.generation), StoreCode::kObjectNotFound);
    EXPECT_EQ(put("k", kPool), StoreCode::kOk);
    EXPECT_EQ(revoke("k"), StoreCode::kInvalidWrite) << "it is finished";
    EXPECT_TRUE(holds("k"));
}

TEST_F(Put, BatchKeysSeeEachOther) {
    const PutStartReply reply = start({{.key = "a", .length = kPool / 2},
                                       {.key = "a", .length = kPool / 2},
                                       {.key = "b", .length = kPool / 2},
                                       {.key = "c", .length = 64}});
    EXPECT_EQ(reply.items[0].code, StoreCode::kOk);
    EXPECT_EQ(reply.items[1].code, StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(reply.items[2].code, StoreCode::kOk);
    EXPECT_EQ(reply.items[3].code, StoreCode::kNoAvailableHandle) << "the first two took it all";
    EXPECT_NE(reply.replicas[0], reply.replicas[1]);
}

TEST_F(Put, PlacesReplicasOnDifferentNodesAsFarAsThereAre) {
    add_node(2);
    add_node(3);
    const PutStartReply two = start({{.key = "two", .length = 100}}, {.replica_num = 2});
    ASSERT_EQ(two.items[0].replica_count, 2u);
    EXPECT_NE(two.replicas[0].segment, two.replicas[1].segment);
    EXPECT_EQ(start({{.key = "nine", .length = 100}}, {.replica_num = 9}).items[0].replica_count, 3u) << "best effort";
}

TEST_F(Put, WithAbsurdlyManyReplicasTakesNoMoreThanThereAre) {
    std::vector<std::string> keys;
    for (int i = 0; i < 1000; ++i) keys.push_back(std::to_string(i));
    std::vector<PutItem> items;
    for (const std::string& key : keys) items.push_back({.key = key, .length = 1, .group = {}});
    const PutStartReply reply = start(items, {.replica_num = kReplicasMax});
    EXPECT_EQ(reply.items[0].code, StoreCode::kOk);
    EXPECT_EQ(reply.items[0].replica_count, 1u);
    EXPECT_LE(reply.replicas.capacity(), 2 * items.size()) << "nothing is made ready for replicas that can have no place";
    EXPECT_EQ(start("k", 1, {.replica_num = kReplicasMax + 1}).code, StoreCode::kInvalidParams);
}

TEST_F(Put, OfMoreReplicasThanAnAnswerCanNameIsRefused) {
    for (uint64_t number = 2; number <= 100; ++number) add_node(number);
    const std::vector<PutItem> items(100'000, PutItem{.key = "k", .length = 1, .group = {}});
    const PutStartReply reply = start(items, {.replica_num = 100});
    EXPECT_EQ(reply.items[0].code, StoreCode::kInvalidParams);
    EXPECT_EQ(reply.items.back().code, StoreCode::kInvalidParams);
    EXPECT_EQ(state().objects().size(), 0u);
}

TEST_F(Put, GoesToThePreferredSegment) {
    for (uint64_t n = 2; n < 10; ++n) add_node(n);
    for (int i = 0; i < 8; ++i) {
        const PutStartReply reply = start({{.key = std::to_string(i), .length = 100}}, {.preferred_segments = {"unknown", "node05:1"}});
        EXPECT_EQ(state().segments()[reply.replicas[0].segment].spec.name, "node05:1");
    }
}

TEST_F(Put, IntoAnEmptyPoolIsRefusedWithoutAHint) {
    auto t = transaction();
    ASSERT_EQ(unmount_segment(t, {.client = node(1), .segment = spec(1, kPool).id}, now_), StoreCode::kOk);
    const PutStartReply reply = start({{.key = "k", .length = 1}});
    EXPECT_EQ(reply.items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(reply.retry_after, 0s);
}

TEST_F(Put, LargerThanAnySegmentIsRefusedAndEvictsNothing) {
    fill(kPool / 4);
    EXPECT_EQ(start("huge", kPool + 1).code, StoreCode::kNoAvailableHandle);
    for (const char* key : {"0", "1", "2", "3"}) EXPECT_TRUE(holds(key));
}

TEST_F(Put, WriteOfADeadClientIsPreemptedAtOnce) {
    start("k", kKiB, {}, kOther);
    pass(9s);
    beat(node(1));
    pass(2s);
    jobs();
    EXPECT_EQ(start("k", kKiB).code, StoreCode::kOk);
}

class Upsert : public Put {};

TEST_F(Upsert, KeepsTheOldValueReadableUntilItsEnd) {
    ASSERT_EQ(put("k", 100), StoreCode::kOk);
    const GetItem old = get("k");
    const PutStartItem started = upsert("k", 100);
    ASSERT_EQ(started.code, StoreCode::kOk);
    EXPECT_EQ(get("k").generation, old.generation);
    EXPECT_EQ(exists("k"), 1);
    ASSERT_EQ(end("k", started.generation), StoreCode::kOk);
    EXPECT_EQ(get("k").generation, started.generation);
}

TEST_F(Upsert, NeverWritesIntoTheOldRangeWhileItIsLeased) {
    ASSERT_EQ(put("k", 100), StoreCode::kOk);
    const ReplicaLocation old = where("k");
    const PutStartItem started = upsert("k", 100);
    end("k", started.generation);
    EXPECT_NE(where("k"), old);
    EXPECT_EQ(state().quarantine().size(), 1u);
    for (int i = 0; i < 20; ++i) {
        const std::string key = "x" + std::to_string(i);
        put(key, 100);
        EXPECT_NE(where(key), old);
    }
    pass(10s);
    jobs();
    EXPECT_EQ(state().quarantine().size(), 0u);
}

TEST_F(Upsert, OfAMissingKeyIsAPut) {
    const PutStartItem started = upsert("k");
    EXPECT_EQ(started.code, StoreCode::kOk);
    EXPECT_EQ(end("k", started.generation), StoreCode::kOk);
}

TEST_F(Upsert, LosesNothingWhenThereIsNoSpace) {
    ASSERT_EQ(put("k", kPool / 2 + 64), StoreCode::kOk);
    EXPECT_EQ(upsert("k", kPool / 2 + 64).code, StoreCode::kNoAvailableHandle) << "its own old value is not a victim";
    EXPECT_TRUE(holds("k"));
}

TEST_F(Upsert, PreemptsAnUnfinishedWriteAtOnce) {
    const PutStartItem first = start("k");
    const PutStartItem second = upsert("k", kKiB, {}, kOther);
    ASSERT_EQ(second.code, StoreCode::kOk);
    EXPECT_EQ(end("k", second.generation, kOther), StoreCode::kOk);
    EXPECT_EQ(state().quarantine().size(), 1u) << "the first one may still write";
    EXPECT_EQ(end("k", first.generation), StoreCode::kIllegalClient);
}

TEST_F(Upsert, ARangeThatItTookFromAWriterIsFreeWhenThatOneHasStopped) {
    for (const bool by_end : {true, false}) {
        const PutStartItem lost = upsert("k", kKiB, {}, kOther);
        const PutStartItem won = upsert("k");
        ASSERT_EQ(state().quarantine().size(), 1u);
        EXPECT_EQ(end("k", lost.generation, {7, 7}), StoreCode::kIllegalClient);
        EXPECT_EQ(end("k", 0, kOther), StoreCode::kIllegalClient);
        EXPECT_EQ(state().quarantine().size(), 1u) << "somebody else, or about something else";
        EXPECT_EQ(by_end ? end("k", lost.generation, kOther) : revoke("k", lost.generation, kOther), StoreCode::kIllegalClient);
        EXPECT_EQ(state().quarantine().size(), 0u);
        EXPECT_EQ(end("k", won.generation), StoreCode::kOk);
        EXPECT_EQ(remove_key("k", true), StoreCode::kOk);
        EXPECT_EQ(end("k", lost.generation, kOther), StoreCode::kObjectNotFound) << "once more";
    }
}

TEST_F(Upsert, ARangeThatItTookFromAWriterIsInQuarantineWhereThatOnesBytesAreInDoubt) {
    add_node(2);
    const PutStartReply lost = start({{.key = "k", .length = kKiB}}, {.replica_num = 2}, kOther);
    upsert("k");
    ASSERT_EQ(state().quarantine().size(), 2u);
    const PutEndItem item{.key = "k", .generation = lost.items[0].generation};
    const uint32_t doubtful = lost.replicas[1].segment;
    auto t = transaction();
    put_revoke(t, {.client = kOther, .tenant = tenant_, .items = {&item, 1}, .in_doubt = {&doubtful, 1}}, now_);
    ASSERT_EQ(state().quarantine().size(), 1u);
    EXPECT_EQ(state().segments()[doubtful].quarantined_bytes, kKiB);
}

TEST_F(Upsert, TwoThatRaceForOneKeyLeaveNothingInQuarantine) {
    uint64_t first = upsert("k").generation;
    for (int i = 0; i < 1000; ++i) {
        const ClientId loser = i % 2 == 0 ? kClient : kOther, winner = i % 2 == 0 ? kOther : kClient;
        const PutStartItem second = upsert("k", kKiB, {}, winner);
        ASSERT_EQ(second.code, StoreCode::kOk) << i;
        end("k", first, loser);
        first = second.generation;
    }
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Upsert, RevokeBringsBackTheOldValue) {
    put("k", 100);
    const uint64_t old = get("k").generation;
    const PutStartItem started = upsert("k", 200);
    EXPECT_EQ(revoke("k", started.generation), StoreCode::kOk);
    EXPECT_EQ(get("k").generation, old);
}

TEST_F(Upsert, KeepsPinsAndRefusesAnotherGroup) {
    ASSERT_EQ(put("k", 100, {.soft_pin = SoftPinAction::kEnable, .hard_pin = true}, "g"), StoreCode::kOk);
    const Time pin = object("k").soft_pin_end;
    EXPECT_EQ(pin, now_ + 30min);
    const auto other_group = start(std::vector<PutItem>{{.key = "k", .length = 100, .group = "h"}}, {}, kClient, 0, true);
    EXPECT_EQ(other_group.items[0].code, StoreCode::kInvalidParams);
    pass(1s);
    end("k", upsert("k", 100).generation);
    EXPECT_TRUE(object("k").hard_pin);
    EXPECT_EQ(object("k").soft_pin_end, pin) << "PRESERVE";
    end("k", upsert("k", 100, {.soft_pin = SoftPinAction::kDisable}).generation);
    EXPECT_EQ(object("k").soft_pin_end, Time{});
}

TEST_F(Upsert, LateEndOfAnEarlierUpsertDoesNotCommitALaterOne) {
    put("k", 100);
    const PutStartItem first = upsert("k", 100);
    const PutStartItem second = upsert("k", 100);
    EXPECT_EQ(end("k", first.generation), StoreCode::kInvalidWrite);
    EXPECT_EQ(end("k", second.generation), StoreCode::kOk);
}

}  // namespace
}  // namespace mooncake::store
