// SPDX-License-Identifier: Apache-2.0
// What must not depend on how much else there is: counted in steps, not in time.
#include "store/master/ops/put_start.h"
#include "store/master/testing/pool.h"
#include "store/master/walk_counter.h"

namespace mooncake::store {
namespace {

class Costs : public PoolTest {
protected:
    template <typename Operation>
    static uint64_t steps(Operation&& operation) {
        const uint64_t before = steps_walked();
        operation();
        return steps_walked() - before;
    }
    static std::vector<std::string> names(std::string_view prefix, size_t count) {
        std::vector<std::string> list;
        for (size_t i = 0; i < count; ++i) list.push_back(format_text("{}{}", prefix, i));
        return list;
    }
    void put_group(const std::vector<std::string>& keys, std::string_view group) {
        std::vector<PutItem> items;
        for (const std::string& key : keys) items.push_back({.key = key, .length = 64, .group = group});
        const PutStartReply reply = start(items);
        for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(end(keys[i], reply.items[i].generation), StoreCode::kOk);
    }
};

TEST_F(Costs, AskingForAWholeGroupPastAnUnreachableNodeLooksAtEachMemberOnce) {
    add_node(1);
    const SegmentNumber hung = add_node(2, 64);  // holds none of them
    ASSERT_EQ(put("filler", 64, {.preferred_segments = {spec(2, 64).name}}), StoreCode::kOk);
    const std::vector<std::string> keys = names("member", 500), others = names("other", 400);
    put_group(keys, "g");
    put_group(others, "h");
    std::vector<std::string_view> asked;
    for (size_t i = 0; i < keys.size(); ++i) {  // by turns
        asked.push_back(keys[i]);
        if (i < others.size()) asked.push_back(others[i]);
    }
    auto t = transaction();
    const KeysRequest request{.keys = asked, .unreachable = {&hung, 1}};
    const uint64_t probing = steps([&] {
        for (const int32_t there : exist(t, request, now_).results) EXPECT_EQ(there, 1);
    });
    const uint64_t reading = steps([&] {
        for (const GetItem& item : get_replicas(t, request, now_).items) EXPECT_EQ(item.code, StoreCode::kOk);
    });
    EXPECT_LE(probing, asked.size());
    EXPECT_LE(reading, asked.size());
}

TEST_F(Costs, EvictingBesideALargeGroupLooksAtItsMembersOnce) {
    add_node(1);
    const std::vector<std::string> keys = names("member", 600);
    put_group(keys, "g");
    const int others = fill(64);
    ASSERT_GT(others, 200);
    get(keys[0]);
    get(keys[1]);
    const uint64_t spent = steps([&] {
        ASSERT_EQ(remove_key(keys[1], true), StoreCode::kOk) << "its lease may have been the last to end: the others must be looked at";
        for (int i = 0; i < 50; ++i) ASSERT_EQ(put(format_text("new{}", i), 256), StoreCode::kOk);
    });
    EXPECT_TRUE(holds(keys[0]));
    EXPECT_LE(spent, 2 * keys.size());
}

TEST_F(Costs, TheHoldsOfAGroupEndWithTheMemberThatHadThem) {
    add_node(1);
    for (const char* key : {"a", "b"}) ASSERT_EQ(put(key, kPool / 4, {}, "g"), StoreCode::kOk);
    get("a");
    ASSERT_EQ(remove_key("a", true), StoreCode::kOk);
    EXPECT_EQ(remove_key("b"), StoreCode::kOk) << "nobody has read this one";

    const WriteConfig pinned{.soft_pin = SoftPinAction::kEnable, .soft_pin_ttl = 60s};
    ASSERT_EQ(put("c", kPool / 4, pinned, "h"), StoreCode::kOk);
    ASSERT_EQ(put("d", kPool / 4, {}, "h"), StoreCode::kOk);
    const ObjectId unit = state().unit(state().objects().find(state().tenant(""), "c"));
    EXPECT_EQ(state().soft_pin_end(unit, now_), now_ + 60s);
    const PutStartItem again = upsert("c", kPool / 4, {.soft_pin = SoftPinAction::kDisable});
    ASSERT_EQ(end("c", again.generation), StoreCode::kOk);
    EXPECT_EQ(state().soft_pin_end(unit, now_), Time{});
    EXPECT_EQ(state().bytes_of(unit), state().rounded(kPool / 4) * 2);
}

TEST_F(Costs, GroupsThatAreRefusedCostNoMoreThanTheirItems) {
    add_node(1);
    ASSERT_EQ(put("pinned", kPool / 2, {.hard_pin = true}), StoreCode::kOk);
    constexpr size_t kGroups = 2000;  // of two each; a quarter of them fits
    const std::vector<std::string> keys = names("k", 2 * kGroups), groups = names("g", kGroups);
    std::vector<PutItem> items;
    for (size_t i = 0; i < keys.size(); ++i) items.push_back({.key = keys[i], .length = 64, .group = groups[i % kGroups]});
    const uint64_t spent = steps([&] {
        const PutStartReply reply = start(items);
        for (size_t i = 0; i < kGroups; ++i) ASSERT_EQ(reply.items[i].code, reply.items[i + kGroups].code) << i;
    });
    EXPECT_LE(spent, items.size());
}

TEST_F(Costs, ItemsThatNoWaitingWillHelpDoNotSearchTheQuarantine) {
    add_node(1);
    ASSERT_EQ(put("pinned", kPool / 2, {.hard_pin = true}), StoreCode::kOk);
    for (int i = 0; i < 100; ++i) {  // quarantined ranges of 64 bytes
        ASSERT_EQ(start(format_text("w{}", i), 64).code, StoreCode::kOk);
        pass(1ms);
        const PutStartItem other = upsert(format_text("w{}", i), 64, {}, kOther);
        ASSERT_EQ(revoke(format_text("w{}", i), other.generation, kOther), StoreCode::kOk);
    }
    ASSERT_EQ(state().quarantine().size(), 100u);
    const std::vector<std::string> keys = names("k", 300);
    std::vector<PutItem> items;
    for (const std::string& key : keys) items.push_back({.key = key, .length = kPool / 2 + 64});
    const uint64_t spent = steps([&] {
        for (const PutStartItem& item : start(items).items) EXPECT_EQ(item.code, StoreCode::kNoAvailableHandle);
    });
    EXPECT_LE(spent, 100u) << "once at most";
}

TEST_F(Costs, WritersThatVanishTogetherCostWhatTheyLeave) {
    add_node(1);
    beat(node(1));
    constexpr uint64_t kClients = 50, kWrites = 15;
    for (uint64_t c = 0; c < kClients; ++c) {
        attach({7, c + 1});
        for (uint64_t w = 0; w < kWrites; ++w) ASSERT_EQ(start(format_text("{}/{}", c, w), 64, {}, {7, c + 1}).code, StoreCode::kOk);
    }
    pass(options_.client_ttl / 2);
    beat(node(1));
    pass(options_.client_ttl / 2);
    const uint64_t spent = steps([&] {
        for (int i = 0; i < 100 && state().write_count() != 0; ++i) jobs();
    });
    EXPECT_EQ(state().write_count(), 0u);
    EXPECT_LE(spent, 3 * kClients * kWrites);
    EXPECT_EQ(state().quarantine().size(), kClients * kWrites) << "none of them has said that it stopped";
    pass(options_.silent_writer_quarantine);
    beat(node(1));
    jobs();
    EXPECT_EQ(state().quarantine().size(), 0u);
}

TEST_F(Costs, ManyVanishedWritersAreEndedAFewPerRun) {
    add_node(1, 1 << 20);
    constexpr uint64_t kClients = 120, kWrites = 50;
    for (uint64_t c = 0; c < kClients; ++c) {
        attach({7, c + 1});
        for (uint64_t w = 0; w < kWrites; ++w) ASSERT_EQ(start(format_text("{}/{}", c, w), 64, {}, {7, c + 1}).code, StoreCode::kOk);
    }
    pass(options_.client_ttl);
    beat(node(1));
    EXPECT_TRUE(jobs().more);
    EXPECT_GT(state().write_count(), 0u);
    EXPECT_LE(state().write_count(), kClients * kWrites / 2);
    int runs = 1;
    while (jobs().more) ASSERT_LT(++runs, 10);
    EXPECT_EQ(state().write_count(), 0u);
}

class ManySegments : public Costs {
protected:
    static constexpr uint64_t kSegments = 2200, kOthers = 100;

    /// The one client has so many segments under one name, with a value in each; others have one each.
    void SetUp() override {
        attach(kOther);
        for (uint64_t i = 0; i < kSegments; ++i) {
            auto t = transaction();
            ASSERT_EQ(mount_segment(t, {.client = kOther, .segment = one(i)}, now_), StoreCode::kOk);
        }
        for (uint64_t i = 1; i <= kOthers; ++i) add_node(i, 64);
        ASSERT_EQ(fill(64), static_cast<int>(kSegments + kOthers));
    }
    static SegmentSpec one(uint64_t i) {
        return {.id = {8, i + 1}, .name = "many:1", .base = (1ULL << 40) + 64 * i, .size = 64, .endpoint = "m", .protocol = "tcp"};
    }
};

TEST_F(ManySegments, LeaveAtTheCostOfWhatLeaves) {
    const uint64_t spent = steps([&] {
        auto t = transaction();
        ASSERT_EQ(goodbye(t, kOther, now_), StoreCode::kOk);
    });
    EXPECT_EQ(state().segments().size(), kOthers);
    EXPECT_EQ(state().values(), kOthers);
    EXPECT_LE(spent, 2 * (kSegments + kOthers)) << "the view is made once, not for each";
}

TEST_F(ManySegments, LeaveInPartsDuringWhichTheirClientIsGoneForEverybody) {
    StoreCode code = StoreCode::kClientNotFound;
    uint64_t parts = 0;
    for (bool gone = false; !gone; ++parts) {
        ASSERT_LT(parts, 100u);
        const size_t before = state().segments().size();
        auto t = transaction();
        gone = goodbye_some(t, kOther, now_, code);
        EXPECT_LE(before - state().segments().size(), kLeaveAtOnce);
        if (gone) break;
        EXPECT_TRUE(check_state(state()));
        EXPECT_EQ(beat(kOther), HeartbeatStatus::kNeedRemount);
        auto other = transaction();
        EXPECT_EQ(mount_segment(other, {.client = kOther, .segment = one(kSegments)}, now_), StoreCode::kClientNotFound);
        for (const SegmentView& view : state().segments().view().segments)
            ASSERT_NE(state().clients()[state().segments()[view.segment].client].id, kOther) << "nothing new goes there";
    }
    EXPECT_EQ(code, StoreCode::kOk);
    EXPECT_GE(parts, 1u);
    EXPECT_EQ(state().segments().size(), kOthers);
}

TEST_F(ManySegments, VanishAFewPerRun) {
    pass(options_.client_ttl);
    for (uint64_t i = 1; i <= kOthers; ++i) beat(node(i));
    EXPECT_TRUE(jobs().more);
    EXPECT_GT(state().segments().size(), kOthers);
    EXPECT_TRUE(check_state(state()));
    const uint64_t spent = steps([&] {
        for (int i = 0; i < 100 && jobs().more; ++i) continue;
    });
    EXPECT_EQ(state().segments().size(), kOthers);
    EXPECT_LE(spent, 2 * (kSegments + kOthers));
}

TEST_F(ManySegments, AreAllGoneWhenTheirClientIsBack) {
    StoreCode code = StoreCode::kClientNotFound;
    {
        auto t = transaction();
        ASSERT_FALSE(goodbye_some(t, kOther, now_, code));
    }
    attach(kOther);
    EXPECT_EQ(state().segments().size(), kOthers);
    EXPECT_EQ(beat(kOther), HeartbeatStatus::kOk);
}

TEST_F(ManySegments, MakeWayForTheirSuccessorInParts) {
    follows(kOther, false);  // it was killed
    attach(kClient);
    const SegmentSpec successor = one(kSegments);
    uint64_t parts = 0;
    for (bool made = false; !made; ++parts) {
        ASSERT_LT(parts, 100u);
        auto t = transaction();
        made = make_way(t, kClient, &successor, now_);
    }
    EXPECT_GE(parts, 2u);
    EXPECT_EQ(state().segments().size(), kOthers);
    auto t = transaction();
    EXPECT_EQ(mount_segment(t, {.client = kClient, .segment = successor}, now_), StoreCode::kOk);
}

TEST_F(ManySegments, AreNotTakenFromTheLivingNorForStrangers) {
    const SegmentSpec successor = one(kSegments);
    auto t = transaction();
    EXPECT_TRUE(make_way(t, {9, 9}, &successor, now_)) << "nobody knows it";
    attach(kClient);
    EXPECT_TRUE(make_way(t, kClient, &successor, now_)) << "the name is taken";
    EXPECT_EQ(state().segments().size(), kSegments + kOthers);
}

TEST_F(ManySegments, AreReportedFailingAtTheCostOfOneLook) {
    attach(kClient);
    std::vector<SegmentId> all;
    for (uint64_t i = 0; i < kSegments; ++i) all.push_back(one(i).id);
    const uint64_t spent = steps([&] {
        auto t = transaction();
        ASSERT_EQ(report_failures(t, {.client = kClient, .segments = all}, now_), StoreCode::kOk);
    });
    EXPECT_LE(spent, kSegments + kOthers);
    const auto view = state().segments().view().segments;
    const auto suspects = std::count_if(view.begin(), view.end(), [](const SegmentView& one) { return one.suspect; });
    EXPECT_EQ(suspects, static_cast<std::ptrdiff_t>(view.size() / 2)) << "no more than half of the pool is believed to be ill";
    pass(options_.suspect_min);
    for (uint64_t i = 1; i <= kOthers; ++i) beat(node(i));
    beat(kOther);
    jobs();
    for (const SegmentView& one : state().segments().view().segments) EXPECT_FALSE(one.suspect);
}

/// A put_start in parts of one step each; `between` is called after each part.
class Parts : public Costs {
protected:
    void SetUp() override { add_node(1); }
    template <typename Between>
    PutStartReply in_parts(const std::vector<PutItem>& items, Between&& between, uint64_t request_id = 5) {
        const PutStartRequest request{.client = kClient, .request_id = request_id, .config = {}, .items = items};
        PutStarter starter(request, false);
        for (size_t part = 1;; ++part) {
            auto t = transaction();
            if (starter.run(t, now_, 1)) return starter.take_reply();
            between(part);
        }
    }
    static std::vector<StoreCode> codes(const PutStartReply& reply) {
        std::vector<StoreCode> list;
        for (const PutStartItem& item : reply.items) list.push_back(item.code);
        return list;
    }
};

TEST_F(Parts, GiveTheSameAsOnePiece) {
    const PutStartReply reply = in_parts({{.key = "a", .length = 64, .group = "g"},
                                          {.key = "x", .length = 64},
                                          {.key = "a2", .length = 64, .group = "g"},
                                          {.key = "b", .length = 2 * kPool, .group = "g"},
                                          {.key = "c", .length = 64, .group = "g"},
                                          {.key = "d", .length = 64, .group = "h"}},
                                         [](size_t) {});
    constexpr StoreCode kNo = StoreCode::kNoAvailableHandle, kYes = StoreCode::kOk;
    EXPECT_EQ(codes(reply), (std::vector<StoreCode>{kNo, kYes, kNo, kNo, kNo, kYes}));
    EXPECT_EQ(state().segments().used_bytes(), 128u);
    EXPECT_EQ(state().quarantine().size(), 0u) << "nobody was told of those ranges";
    EXPECT_EQ(reply.items[5].replica_count, 1u);
    EXPECT_EQ(end("d", reply.items[5].generation), StoreCode::kOk);
}

TEST_F(Parts, LeaveAloneWhatOthersMadeOfTheirGroupMeanwhile) {
    PutStartItem other;
    const PutStartReply reply = in_parts({{.key = "a", .length = 64, .group = "g"},
                                          {.key = "b", .length = 64, .group = "g"},
                                          {.key = "c", .length = 2 * kPool, .group = "g"}},
                                         [&](size_t part) {
                                             if (part == 1) other = upsert("a", 128, {}, kOther);
                                         });
    for (const StoreCode code : codes(reply)) EXPECT_EQ(code, StoreCode::kNoAvailableHandle);
    ASSERT_EQ(other.code, StoreCode::kOk);
    EXPECT_EQ(end("a", other.generation, kOther), StoreCode::kOk);
    EXPECT_EQ(get("a").length, 128u);
    EXPECT_FALSE(holds("b"));
}

TEST_F(Parts, StartNothingMoreOnceTheRequestIsRevoked) {
    const PutStartReply reply = in_parts(
        {{.key = "a", .length = 64, .group = "g"}, {.key = "b", .length = 64, .group = "g"}, {.key = "c", .length = 64}}, [&](size_t part) {
            if (part == 1) revoke("a", 0, kClient, 5);
        });
    for (const StoreCode code : codes(reply)) EXPECT_EQ(code, StoreCode::kInvalidWrite);
    EXPECT_EQ(state().segments().used_bytes(), 0u);
}

TEST_F(Parts, RefuseAKeyThatIsTwiceInAGroupBothTimes) {
    const PutStartReply reply = in_parts({{.key = "a", .length = 64, .group = "g"},
                                          {.key = "a", .length = 64, .group = "g"},
                                          {.key = "b", .length = 2 * kPool, .group = "g"}},
                                         [](size_t) {});
    for (const StoreCode code : codes(reply)) EXPECT_EQ(code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(state().segments().used_bytes(), 0u);
}

}  // namespace
}  // namespace mooncake::store
