// SPDX-License-Identifier: Apache-2.0
// Nodes that come back to the same master after it has given them up, and what became of their values meanwhile.
#include "store/master/ops/evictor.h"
#include "store/master/ops/removal.h"
#include "store/master/testing/pool_segments.h"

namespace mooncake::store {
namespace {

class Absence : public PoolSegmentsTest {
protected:
    Absence() { options_.first_generation = 1000; }

    void end_node(uint64_t number, ClientEnd how = ClientEnd::kSilent) {
        auto t = transaction();
        end_client(t, state().clients().find(node(number)), how, now_);
    }
    void evict(std::string_view key) {
        pass(11s);  // leases
        auto t = transaction();
        t.advance(now_);
        Evictor(t, now_).evict(state().objects().find(TenantTable::kDefault, key));
        ASSERT_FALSE(holds(key));
    }
    void put_on(uint64_t number, std::string_view key) {
        ASSERT_EQ(put(key, kKiB, {.preferred_segments = {spec(number, kPool).name}}), StoreCode::kOk);
        ASSERT_EQ(object(key).replicas[0].segment, state().segments().find(spec(number, kPool).id));
    }
    void remove_everything(std::optional<std::string_view> tenant = {}) { remove_all_that({}, /*force=*/true, tenant); }
    void remove_matching(std::string prefix, bool force, std::optional<std::string_view> tenant = {}) {
        remove_all_that([prefix](std::string_view key) { return key.starts_with(prefix); }, force, tenant);
    }
    void remove_all_that(Removal::Matches matches, bool force, std::optional<std::string_view> tenant) {
        auto t = transaction();
        Removal removal(
            t, {.tenant = tenant ? std::optional<std::string>(*tenant) : std::nullopt, .matches = std::move(matches), .force = force});
        removal.start(t, now_);
        while (!removal.done()) removal.remove(t, removal.choose(removal.look(t.state())), now_);
    }
    /// As the node would report it.
    HeldObject held_of(std::string_view key) {
        const Object& known = object(key);
        HeldObject result = held(key, known.replicas[0].offset, known.generation, known.length);
        result.checksum = known.checksum;
        return result;
    }
    /// Nobody of an earlier life is waited for any more.
    void grow_old() {
        put_on(9, "old times");
        pass(AbsentNodes::kReturnWindow);
        put_on(9, "these times");
        ASSERT_FALSE(state().absent().believes_earlier_lives());
    }
};

TEST_F(Absence, AReplacedValueStaysAwayAlsoWhenTheNewOneWasEvicted) {
    add_node(9);
    grow_old();
    add_node(1);
    put_on(1, "price");
    const HeldObject price = held_of("price");
    end_node(1);
    ASSERT_EQ(put("price"), StoreCode::kOk);
    evict("price");
    EXPECT_EQ(adopt(1, {price}).stale, 1u);
    EXPECT_FALSE(holds("price"));
}

TEST_F(Absence, AReplacedValueStaysAwayAlsoWhenTheNewOneWasLostWithItsNode) {
    add_node(1);
    put_on(1, "price");
    const HeldObject price = held_of("price");
    end_node(1);
    add_node(2);
    ASSERT_EQ(upsert("price").code, StoreCode::kOk);
    ASSERT_EQ(end("price"), StoreCode::kOk);
    const HeldObject later = held_of("price");
    end_node(2);
    EXPECT_EQ(adopt(1, {price}).stale, 1u);
    EXPECT_FALSE(holds("price"));
    EXPECT_EQ(adopt(2, {later}).adopted, 1u) << "this is its value";
}

TEST_F(Absence, AnEvictedValueOfAnAbsentNodeIsStillTheValueOfItsKey) {
    add_node(1);
    add_node(2);
    ASSERT_EQ(put("k", kKiB, {.replica_num = 2}), StoreCode::kOk);
    HeldObject there = held_of("k");
    there.offset = object("k").replicas[0].segment == state().segments().find(spec(1, kPool).id) ? object("k").replicas[0].offset
                                                                                                 : object("k").replicas[1].offset;
    end_node(1);
    evict("k");
    EXPECT_EQ(adopt(1, {there}).adopted, 1u);
}

TEST_F(Absence, AWholePoolThatIsGivenUpAndComesBackHasAllItsValues) {
    constexpr uint64_t kNodes = 6, kEach = 20;
    for (uint64_t number = 1; number <= kNodes; ++number) add_node(number);
    add_node(9);
    grow_old();
    std::vector<std::string> names;
    std::vector<std::vector<HeldObject>> reports(kNodes + 1);
    names.reserve(2 * kNodes * kEach);
    for (uint64_t i = 0; i < kNodes * kEach; ++i) {
        names.push_back(format_text("k{}", i));
        put_on(1 + i % kNodes, names.back());
        reports[1 + i % kNodes].push_back(held_of(names.back()));
    }
    for (uint64_t number = 1; number <= kNodes; ++number) {  // some while the others are there still, some when nobody is
        end_node(number);
        pass(1min);
        put_on(9, format_text("meanwhile{}", number));
    }
    put_on(9, "k7");  // on node 2 before
    for (uint64_t number = kNodes; number > 0; --number) {
        HeldSegment held{.segment = spec(number, kPool), .objects = {reports[number].data(), kEach / 2}, .exact = true, .more = true};
        auto t = transaction();
        EXPECT_EQ(remount(t, {.client = node(number), .segments = {&held, 1}}, now_).segments[0].stale, number == 2 ? 1u : 0u);
        ASSERT_EQ(put(format_text("between{}", number)), StoreCode::kOk);
        held.objects = {reports[number].data() + kEach / 2, kEach / 2};
        held.more = false;
        EXPECT_EQ(remount(t, {.client = node(number), .segments = {&held, 1}}, now_).segments[0].adopted, kEach / 2);
    }
    for (const std::string& name : names) EXPECT_TRUE(holds(name)) << name;
    EXPECT_EQ(state().absent().size(), 0u);
}

TEST_F(Absence, OneThatWasAwayForTooLongIsBelievedOnlyWhatIsKnownAnyhow) {
    add_node(1);
    add_node(2);
    add_node(9);
    ASSERT_EQ(put("both", kKiB, {.replica_num = 2, .preferred_segments = {spec(1, kPool).name, spec(2, kPool).name}}), StoreCode::kOk);
    ASSERT_EQ(object("both").replicas.size(), 2u);
    HeldObject both = held_of("both");
    for (size_t i = 0; i < 2; ++i)
        if (object("both").replicas[i].segment == state().segments().find(spec(1, kPool).id))
            both.offset = object("both").replicas[i].offset;
    put_on(1, "alone");
    const HeldObject alone = held_of("alone");
    end_node(1);
    pass(AbsentNodes::kReturnWindow);
    put_on(9, "another");  // not watched
    const auto reply = adopt(1, {both, alone});
    EXPECT_EQ(reply.code, StoreCode::kOk) << "its memory is welcome";
    EXPECT_EQ(reply.adopted, 1u);
    EXPECT_EQ(reply.stale, 1u);
    EXPECT_EQ(object("both").replicas.size(), 2u);
    EXPECT_FALSE(holds("alone"));
}

TEST_F(Absence, HoweverLongItWasAwayItIsBelievedIfNothingWasWritten) {
    add_node(1);
    add_node(9);
    put_on(1, "k");
    const HeldObject k = held_of("k");
    end_node(1);
    pass(24h);
    EXPECT_EQ(adopt(1, {k}).adopted, 1u);
}

TEST_F(Absence, OneThatWasReplacedUnderItsNameMayComeBackToo) {
    add_node(1);
    add_node(9);
    put_on(1, "k");
    const HeldObject k = held_of("k");
    end_node(1, ClientEnd::kReplaced);
    put_on(9, "k");
    evict("k");
    EXPECT_EQ(adopt(1, {k}).stale, 1u);
}

TEST_F(Absence, OneThatSaidGoodbyeIsNotWaitedFor) {
    add_node(1);
    add_node(9);
    grow_old();
    const size_t before = state().tombstones().size();
    end_node(1, ClientEnd::kGoodbye);
    put_on(9, "k");
    EXPECT_EQ(state().tombstones().size(), before);
}

TEST_F(Absence, AValueOfAnEarlierLifeStaysAwayWhenItsSuccessorWasEvicted) {
    add_node(9);
    ASSERT_EQ(put("price"), StoreCode::kOk);
    evict("price");
    const auto reply = adopt(1, {held("price", 0, 5), held("other", 4096, 6)});
    EXPECT_EQ(reply.stale, 1u);
    EXPECT_EQ(reply.adopted, 1u);
    EXPECT_FALSE(holds("price"));
}

TEST_F(Absence, WhoComesTooLateWithValuesOfAnEarlierLifeIsNotBelieved) {
    adopt(1, {held("early", 0, 5)});
    pass(11s);
    add_node(9);
    grow_old();
    EXPECT_EQ(adopt(2, {held("late", 0, 5), held("early", 4096, 5)}).stale, 1u);
    EXPECT_FALSE(holds("late"));
    EXPECT_EQ(object("early").replicas.size(), 2u) << "somebody else had told of it in time";
    const HeldObject early = held_of("early");
    end_node(1);
    end_node(2);
    EXPECT_EQ(adopt(1, {early}).adopted, 1u) << "we know what became of it since";
}

TEST_F(Absence, WhatMatchesAForcedRemovalStaysAway) {
    add_node(1);
    add_node(9);
    grow_old();
    put_on(1, "a1");
    put_on(1, "a2");
    put_on(1, "b1");
    const std::vector<HeldObject> report{held_of("a1"), held_of("a2"), held_of("b1")};
    end_node(1);
    remove_matching("a", /*force=*/true);
    put_on(9, "a2");
    end_node(9);
    EXPECT_EQ(adopt(1, report).stale, 2u);
    EXPECT_FALSE(holds("a1"));
    EXPECT_TRUE(holds("b1"));
    pass(options_.lease_ttl);  // the report was not exact: its free space may be leased
    put_on(1, "a3");
    EXPECT_TRUE(holds("a3")) << "a new value is another matter";
}

TEST_F(Absence, WhatMatchesAForcedRemovalThatNobodyWatchedStaysAwayWithAllTheRest) {
    add_node(1);
    add_node(9);
    put_on(1, "a1");
    put_on(1, "b1");
    const std::vector<HeldObject> report{held_of("a1"), held_of("b1")};
    end_node(1);
    pass(AbsentNodes::kReturnWindow);
    remove_matching("a", /*force=*/true);
    EXPECT_EQ(adopt(1, report).stale, 2u);
}

TEST_F(Absence, WithoutForceWhatIsYetToBeReportedCountsAsLeased) {
    add_node(1);
    put_on(1, "a1");
    const std::vector<HeldObject> report{held_of("a1")};
    end_node(1);
    remove_matching("a", /*force=*/false);
    EXPECT_EQ(adopt(1, report).adopted, 1u);
}

TEST_F(Absence, OfTwoValuesOfEarlierLivesTheOlderStaysAwayWhenTheNewerWasEvicted) {
    add_node(9);
    ASSERT_EQ(adopt(2, {held("price", 0, 7)}).adopted, 1u);
    evict("price");
    const auto reply = adopt(1, {held("price", 0, 5), held("other", 4096, 6)});
    EXPECT_EQ(reply.stale, 1u);
    EXPECT_EQ(reply.adopted, 1u);
    EXPECT_FALSE(holds("price"));
    EXPECT_EQ(adopt(3, {held("price", 0, 7)}).adopted, 1u) << "this is its value";
}

TEST_F(Absence, OfTwoValuesOfEarlierLivesTheOlderStaysAwayWhenTheNewerWasLostWithItsNode) {
    ASSERT_EQ(adopt(2, {held("price", 0, 7)}).adopted, 1u);
    end_node(2);
    EXPECT_EQ(adopt(1, {held("price", 0, 5)}).stale, 1u);
    EXPECT_FALSE(holds("price"));
    EXPECT_EQ(adopt(2, {held("price", 0, 7)}).adopted, 1u);
}

TEST_F(Absence, OfTwoValuesOfEarlierLivesTheOlderStaysAwayWhenTheNewerWentWithItsGroup) {
    HeldObject a = held("a", 0, 7), b = held("b", 0, 8);
    a.group = b.group = "g";
    ASSERT_EQ(adopt(2, {a}).adopted, 1u);
    ASSERT_EQ(adopt(3, {b}).adopted, 1u);
    end_node(3);
    ASSERT_FALSE(holds("a"));
    EXPECT_EQ(adopt(1, {held("a", 0, 5), held("b", 4096, 6)}).stale, 2u);
}

TEST_F(Absence, AnOlderValueOfAnEarlierLifeStaysAwayAlsoIfItWasToldFirst) {
    ASSERT_EQ(adopt(1, {held("price", 0, 5)}).adopted, 1u);
    end_node(1);
    ASSERT_EQ(adopt(2, {held("price", 0, 7)}).adopted, 1u);
    evict("price");
    EXPECT_EQ(adopt(1, {held("price", 0, 5)}).stale, 1u);
}

TEST_F(Absence, AValueOfAnEarlierLifeThatWasLostIsOlderThanOursWhateverTheClockSaidThen) {
    add_node(9);
    put_on(9, "ours");
    const HeldObject ours = held_of("ours");
    ASSERT_EQ(adopt(2, {held("ours", 0, 5000), held("other", 4096, 5001)}).stale, 1u);
    evict("other");
    EXPECT_EQ(adopt(1, {held("other", 0, 4999)}).stale, 1u);
    end_node(9);
    EXPECT_EQ(adopt(9, {ours}).adopted, 1u);
}

TEST_F(Absence, WhatIsPutWhileAllIsRemovedByForceStays) {
    add_node(1);
    put_on(1, "before");
    const HeldObject before = held_of("before");
    end_node(1);
    add_node(2);
    const WriteConfig there{.preferred_segments = {spec(2, kPool).name}};
    for (const bool by_pattern : {false, true}) {
        const std::string key = by_pattern ? "put by pattern" : "put";
        const PutStartItem started = start(key, kKiB, there);
        by_pattern ? remove_matching("put by", /*force=*/true) : remove_everything();
        ASSERT_EQ(end(key, started.generation), StoreCode::kOk);
        ASSERT_TRUE(holds(key));
    }
    const std::vector<HeldObject> report{held_of("put"), held_of("put by pattern")};
    end_node(2);
    EXPECT_EQ(adopt(2, report).adopted, 2u) << "it was acknowledged after the removal";
    EXPECT_EQ(adopt(1, {before}).stale, 1u) << "this one was not";
    end_node(2);
    remove_everything();
    EXPECT_EQ(adopt(2, report).stale, 2u) << "now they are";
}

TEST_F(Absence, WhatMatchesALaterPatternIsGoneAlsoIfItWasPutWhileAnEarlierOneWasRemoved) {
    add_node(2);
    const PutStartItem started = start("ab");
    remove_matching("a", /*force=*/true);
    ASSERT_EQ(end("ab", started.generation), StoreCode::kOk);
    const HeldObject there = held_of("ab");
    end_node(2);
    remove_matching("ab", /*force=*/true);
    EXPECT_EQ(adopt(2, {there}).stale, 1u);
}

TEST_F(Absence, APutThatARemovalOfItsKeyHasEndedIsNotAcknowledgedAndStaysAway) {
    add_node(1);
    const PutStartItem started = start("k");
    EXPECT_EQ(remove_key("k", true), StoreCode::kReplicaIsNotReady);
    pass(options_.put_discard_timeout);
    EXPECT_EQ(remove_key("k", true), StoreCode::kObjectNotFound);
    EXPECT_EQ(end("k", started.generation), StoreCode::kObjectNotFound);
    end_node(1);
    EXPECT_EQ(adopt(1, {held("k", 0, started.generation)}).stale, 1u);
}

/// With tenants, of which the master knows only those that have a quota or values.
class AbsentTenants : public Absence {
protected:
    AbsentTenants() { options_.tenants = true; }

    static HeldObject of(std::string_view tenant, std::string_view key, uint64_t offset, uint64_t generation) {
        HeldObject result = held(key, offset, generation);
        result.tenant = tenant;
        return result;
    }
    bool holds_of(std::string_view tenant, std::string_view key) {
        tenant_ = tenant;
        return state().tenant(tenant) != 0 && holds(key);
    }
};

TEST_F(AbsentTenants, WhatIsRemovedOfAnUnknownTenantStaysAway) {
    tenant_ = "a";
    EXPECT_EQ(remove_key("k"), StoreCode::kObjectNotFound);
    remove_everything("b");
    remove_matching("k", /*force=*/true, "c");
    EXPECT_EQ(adopt(1, {of("a", "k", 0, 5), of("b", "k", 4096, 6), of("c", "k", 8192, 7)}).stale, 3u);
    EXPECT_EQ(adopt(2, {of("a", "l", 0, 5), of("c", "l", 8192, 7), of("d", "k", 16384, 8)}).adopted, 3u) << "nobody removed these";
}

TEST_F(AbsentTenants, WhatWasRemovedStaysAwayAlsoIfItsTenantHasGoneMeanwhile) {
    ASSERT_EQ(adopt(1, {of("a", "k", 0, 5)}).adopted, 1u);
    ASSERT_EQ(adopt(2, {of("b", "k", 0, 6)}).adopted, 1u);
    tenant_ = "a";
    ASSERT_EQ(remove_key("k", true), StoreCode::kOk);
    ASSERT_EQ(state().tenant("a"), 0u) << "there is nothing of it";
    remove_everything("b");
    ASSERT_EQ(state().tenant("b"), 0u);
    EXPECT_EQ(adopt(3, {of("a", "k", 0, 5), of("b", "k", 4096, 6)}).stale, 2u);
    EXPECT_EQ(adopt(4, {of("c", "k", 0, 5), of("d", "k", 4096, 6)}).adopted, 2u) << "they may have the numbers of those that went";
    EXPECT_FALSE(holds_of("a", "k"));
}

TEST_F(Absence, OneThatHadNotToldAllWhenItWasGivenUpIsNotBelievedMoreForThat) {
    add_node(9);
    adopt(8, {held("earlier life", 0, 4)});
    const std::vector<HeldObject> objects{held("a", 0, 5), held("b", 4096, 6)};
    HeldSegment part{.segment = spec(1, kPool), .objects = {objects.data(), 1}, .exact = true, .more = true};
    {
        auto t = transaction();
        EXPECT_EQ(remount(t, {.client = node(1), .segments = {&part, 1}}, now_).segments[0].adopted, 1u);
    }
    grow_old();
    put_on(9, "b");
    evict("b");
    end_node(1);
    EXPECT_EQ(adopt(1, objects).stale, 2u);
}

// ---- a node that restarts with its memory

class OtherLife : public Absence {
protected:
    static constexpr Incarnation kFirst{11}, kSecond{12};

    RemountReply introduce(uint64_t number, Incarnation life, uint64_t remembered = 0) {
        auto t = transaction();
        return remount(t, {.client = node(number), .segments = {}, .life = life, .remembered_update = remembered}, now_);
    }
    SegmentSpec spec_in(uint64_t number, Incarnation life, uint64_t moved = 0) {
        SegmentSpec result = spec(number, kPool);
        result.base += moved;
        result.incarnation = life;
        return result;
    }
    RemountReply::Segment tell(const SegmentSpec& segment, uint64_t number, Incarnation life, const std::vector<HeldObject>& objects,
                               const std::vector<HeldWrite>& writes = {}) {
        const HeldSegment held{.segment = segment, .objects = objects, .writes = writes, .exact = true};
        auto t = transaction();
        return remount(t, {.client = node(number), .segments = {&held, 1}, .life = life}, now_).segments[0];
    }
    void add_first() {
        introduce(1, kFirst);
        ASSERT_EQ(mount(spec_in(1, kFirst), node(1)), StoreCode::kOk);
    }
};

TEST_F(OtherLife, EndsTheEarlierOneAndBringsItsValuesBackAtOtherAddresses) {
    add_first();
    put_on(1, "k");
    const HeldObject there = held_of("k");
    introduce(1, kFirst);
    EXPECT_TRUE(holds("k")) << "the same life";
    introduce(1, kSecond, 1);
    EXPECT_FALSE(holds("k"));
    EXPECT_TRUE(state().clients().alive(state().clients().find(node(1))));
    EXPECT_EQ(tell(spec_in(1, kSecond, 1 << 30), 1, kSecond, {there}).adopted, 1u);
    EXPECT_TRUE(holds("k"));
}

TEST_F(OtherLife, LateWordsOfTheEarlierOneAreRefused) {
    add_first();
    put_on(1, "k");
    const HeldObject there = held_of("k");
    introduce(1, kSecond, 1);
    EXPECT_EQ(tell(spec_in(1, kFirst), 1, kFirst, {there}).code, StoreCode::kInvalidVersion);
    EXPECT_EQ(mount(spec_in(1, kFirst), node(1)), StoreCode::kClientNotFound);
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(tell(spec_in(1, kSecond), 1, kSecond, {there}).adopted, 1u);
}

TEST_F(OtherLife, WhatWasRemovedMeanwhileDoesNotComeBack) {
    add_first();
    put_on(1, "a");
    put_on(1, "b");
    const HeldObject a = held_of("a"), b = held_of("b");
    introduce(1, kSecond, 1);
    remove_everything();
    EXPECT_EQ(tell(spec_in(1, kSecond, 1 << 30), 1, kSecond, {a, b}).stale, 2u);
}

TEST_F(OtherLife, AWriteThatWasUnderWayKeepsItsPlaceWhereverTheMemoryIsNow) {
    add_first();
    ASSERT_EQ(start("k", kPool / 2).code, StoreCode::kOk);
    introduce(1, kSecond, 1);
    tell(spec_in(1, kSecond, 1 << 30), 1, kSecond, {});
    EXPECT_EQ(start("large", kPool / 4 * 3).code, StoreCode::kNoAvailableHandle) << "bytes may still land there";
    EXPECT_EQ(start("small", kPool / 4).code, StoreCode::kOk);
    pass(options_.put_release_timeout + 1s);
    EXPECT_EQ(start("again", kPool / 2).code, StoreCode::kOk);
}

TEST_F(OtherLife, WhatItsPredecessorWroteToOthersIsNotStoppedByIt) {
    add_first();
    add_node(2);
    const HeldWrite write{.offset = 0, .length = kPool / 2, .writer = node(1)};
    EXPECT_EQ(tell(spec_in(2, {}), 2, {}, {}, {write}).code, StoreCode::kOk);
    end_node(2);
    introduce(1, kSecond, 1);
    const HeldSegment held{.segment = spec_in(2, {}), .writes = {&write, 1}, .exact = true};
    auto t = transaction();
    ASSERT_EQ(remount(t, {.client = node(2), .segments = {&held, 1}}, now_).segments[0].code, StoreCode::kOk);
    EXPECT_EQ(state().quarantine().size(), 1u) << "its bytes may be on their way";
}

}  // namespace
}  // namespace mooncake::store
