// SPDX-License-Identifier: Apache-2.0
#include "store/service/unheard_events.h"

#include <gtest/gtest.h>

#include "store/service/testing/followed_master.h"
#include "store/service/testing/served_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;

std::vector<std::byte> drop_of(uint64_t generation) {
    EventWriter writer;
    writer.dropped({.segment = {9, 1}, .generation = generation});
    return writer.encode({});
}
std::vector<uint64_t> generations(const UnheardEvents::Missed& missed) {
    std::vector<uint64_t> all;
    for (const auto& body : missed.updates) {
        const EventUpdate update = decode_event_update(body).value();
        for (const RangeDropped& one : update.dropped) all.push_back(one.generation);
    }
    return all;
}
using Generations = std::vector<uint64_t>;

TEST(UnheardEvents, WhoRemembersLessThanItHasToldHasLostSomething) {
    UnheardEvents events(1 << 20);
    for (uint64_t i = 1; i <= 5; ++i) events.keep(events.next(), i, drop_of(i));
    events.heard(3);
    EXPECT_FALSE(events.after(3, 3 + 1).lost);
    EXPECT_EQ(generations(events.after(3, 3 + 1)), (Generations{4, 5}));
    EXPECT_FALSE(events.after(3, 4 + 1).lost) << "what it heard last it has not told";
    EXPECT_TRUE(events.after(2, 2 + 1).lost);
    EXPECT_TRUE(events.after(0, 0 + 1).lost);
    EXPECT_TRUE(events.after(0, 6 + 1).lost) << "it was forgotten, and counted anew";
    EXPECT_FALSE(events.after(2).lost) << "who is alive knows what it has heard";
}

TEST(UnheardEvents, KeepsWhatWasNotHeardInTheOrderOfItsNumbers) {
    UnheardEvents events(1 << 20);
    for (int i = 0; i < 3; ++i) events.next();
    events.keep(1, 1, drop_of(1));
    events.keep(3, 3, drop_of(3));
    events.keep(2, 2, drop_of(2));  // of an event stream that had ended when it was sent
    EXPECT_EQ(generations(events.after(0)), (Generations{1, 2, 3}));
    EXPECT_EQ(generations(events.after(2)), (Generations{3}));
    EXPECT_EQ(events.heard(2), 2u);
    EXPECT_EQ(generations(events.after(0)), (Generations{3}));
    EXPECT_FALSE(events.after(0).lost);
}

TEST(UnheardEvents, WhatWasHeardBeforeItCouldBeKeptIsNot) {
    UnheardEvents events(1 << 20);
    EXPECT_EQ(events.heard(events.next()), 0u);
    events.keep(1, 1, drop_of(1));
    EXPECT_TRUE(events.after(0).updates.empty());
    EXPECT_FALSE(events.concerns(1));
}

TEST(UnheardEvents, WhatHappenedWhileNobodyFollowedComesBeforeWhatIsSentLater) {
    UnheardEvents events(1 << 20);
    events.keep(events.next(), 1, drop_of(1));
    events.unsent().dropped({.segment = {9, 1}, .generation = 2});
    events.seal();
    events.keep(events.next(), 5, drop_of(3));
    EXPECT_EQ(generations(events.after(1)), (Generations{2, 3}));
}

TEST(UnheardEvents, MoreThanCanBeKeptIsLostUntilAllWasHeardAgain) {
    UnheardEvents events(3 * drop_of(1).size());
    for (uint64_t i = 1; i <= 4; ++i) events.keep(events.next(), i, drop_of(i));
    EXPECT_TRUE(events.after(3).lost);
    EXPECT_LE(events.bytes(), drop_of(1).size());
    const uint64_t later = events.next();
    events.keep(later, 9, drop_of(9));
    EXPECT_TRUE(events.after(3).lost) << "a part of it is of no use";
    events.heard(later);
    EXPECT_FALSE(events.after(later).lost);
}

TEST(UnheardEvents, TooMuchWhileNobodyFollowsIsLostAsWell) {
    UnheardEvents events(3 * drop_of(1).size());
    for (uint64_t i = 1; i <= 50; ++i) events.unsent().dropped({.segment = {9, 1}, .generation = i});
    EXPECT_TRUE(events.after(0).lost);
}

TEST(UnheardEvents, WhoHasHeardAllThatWasTooMuchHasLostNothing) {
    UnheardEvents events(3 * drop_of(1).size());
    for (uint64_t i = 1; i <= 4; ++i) events.keep(events.next(), i, drop_of(i));
    EXPECT_TRUE(events.after(3).lost);
    EXPECT_FALSE(events.after(4).lost) << "it may not have said so";
    events.heard(4);
    EXPECT_FALSE(events.after(4).lost);
    EXPECT_EQ(events.sequence(), 4u) << "no number is used up that nobody is ever sent";
}

TEST(UnheardEvents, WhatComesAfterTooMuchIsMissedByWhoHasHeardTheRest) {
    UnheardEvents events(3 * drop_of(1).size());
    for (uint64_t i = 1; i <= 5; ++i) events.keep(events.next(), i, drop_of(i));
    EXPECT_EQ(generations(events.after(4)), (Generations{5}));
    events.unsent().dropped({.segment = {9, 1}, .generation = 6});
    events.give_up();
    EXPECT_TRUE(events.after(5).lost) << "nobody was sent that";
    events.keep(events.next(), 7, drop_of(7));
    events.heard(events.sequence());
    EXPECT_FALSE(events.after(events.sequence()).lost);
}

// ---- in the hub

class UnheardTest : public EventHubTest {
protected:
    std::vector<EventUpdate> missed(const ClientId& client, uint64_t heard) {
        std::vector<EventUpdate> updates;
        const UnheardEvents::Missed missed = hub_.missed(client, heard);
        EXPECT_FALSE(missed.lost);
        for (const auto& body : missed.updates) updates.push_back(decode_event_update(body).value());
        return updates;
    }
    /// The node follows and has heard everything so far. Returns the number of the last update.
    uint64_t hear_all(Told& told) {
        const uint64_t last = told.updates().back().sequence;
        hub_.acknowledge(kNode, last);
        return last;
    }
    void look_for_lost() {
        master_.look([&](const MasterState& state, Time) { return hub_.take_lost(state); });
    }
};

TEST_F(UnheardTest, WhatWasSentIsMissedUntilItWasAcknowledged) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    const uint64_t before = hear_all(told);
    put("k");
    const auto updates = missed(kNode, before);
    ASSERT_EQ(updates.size(), 2u);
    ASSERT_EQ(updates[0].planned.size(), 1u);
    EXPECT_EQ(updates[0].planned[0].key, "k");
    EXPECT_EQ(updates[0].sequence, before + 1);
    ASSERT_EQ(updates[1].filled.size(), 1u);
    EXPECT_EQ(missed(kNode, before + 1).size(), 1u) << "it has heard the first";
    const uint64_t after = hear_all(told);
    EXPECT_TRUE(missed(kNode, after).empty());
    EXPECT_TRUE(missed(kNode, before).empty()) << "it has said so";
}

TEST_F(UnheardTest, WhatHappensWhileNobodyFollowsIsMissedAndAnotherStreamTellsItOnlyWhenItIsComplete) {
    join(kNode, 1);
    Told first;
    follow(kNode, first);
    const uint64_t before = hear_all(first);
    const PutStartItem started = start("k");
    first.vanish();
    look_for_lost();
    end("k");
    remove_by_force("k");
    const auto in_order = [&](const std::vector<EventUpdate>& updates) {
        ASSERT_EQ(updates.size(), 2u);
        EXPECT_EQ(updates[0].planned.size(), 1u);
        EXPECT_EQ(updates[1].filled.size(), 1u);
        ASSERT_EQ(updates[1].dropped.size(), 1u);
        EXPECT_EQ(updates[1].dropped[0].generation, started.generation);
    };
    in_order(missed(kNode, before));
    Told second;
    follow(kNode, second, /*report=*/false);
    hub_.acknowledge(kNode, second.updates().back().sequence);
    in_order(missed(kNode, before));
    report(kNode);
    const uint64_t complete = second.updates().back().sequence;
    ASSERT_TRUE(second.updates().back().complete);
    hub_.acknowledge(kNode, complete);
    EXPECT_TRUE(missed(kNode, before).empty());
}

TEST_F(UnheardTest, WhatWasNotEvenSentIsMissed) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    const uint64_t before = hear_all(told);
    told.clog();
    put("k");
    EXPECT_EQ(hub_.followers(), 0u) << "cut off";
    size_t planned = 0, filled = 0;
    for (const EventUpdate& update : missed(kNode, before)) {
        planned += update.planned.size();
        filled += update.filled.size();
    }
    EXPECT_EQ(planned, 1u);
    EXPECT_EQ(filled, 1u);
}

TEST_F(UnheardTest, AClientThatIsUnknownHasMissedNothingUnlessItSaysThatItFollowed) {
    EXPECT_FALSE(hub_.missed(kNode, 0).lost);
    EXPECT_TRUE(hub_.missed(kNode, 5).lost);
    EXPECT_TRUE(hub_.missed(kNode, 5).lost) << "also if it did not get the first answer";
}

TEST_F(UnheardTest, WhatIsDoubtedIsWaitedForUntilItsNodeHasHeardIt) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    hear_all(told);
    told.take();
    EventHub::Caused caused = start_on(1, "k");
    EXPECT_TRUE(hub_.told(caused)) << "the kernel has it";
    master_.run([&](Transaction& transaction, Time) {
        hub_.range_filled(transaction.state(), transaction.state().segments().find(segment(1).id), 1, 1);
        hub_.doubt(transaction.state(), transaction.state().segments().find(segment(1).id), caused);
        return true;
    });
    EXPECT_FALSE(hub_.told(caused));
    EXPECT_TRUE(told.updates().back().acknowledge) << "or it would take until the next heartbeat";
    bool called = false;
    hub_.call_when_told(
        caused, [&] { called = true; }, Clock::now());
    EXPECT_FALSE(called);
    hear_all(told);
    EXPECT_TRUE(called);
}

TEST_F(UnheardTest, ANodeThatDoesNotSayWhetherItHasHeardIsCutOff) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    hear_all(told);
    EventHub::Caused caused = start_on(1, "k");
    master_.look([&](const MasterState& state, Time) {
        hub_.doubt(state, state.segments().find(segment(1).id), caused);
        return true;
    });
    bool called = false;
    const Time now = Clock::now();
    const Time next = hub_.call_when_told(
        caused, [&] { called = true; }, now);
    ASSERT_GT(next, now);
    EXPECT_GT(hub_.expire(next - 1ns), next - 1ns);
    EXPECT_FALSE(called);
    EXPECT_EQ(hub_.expire(next), Time::max());
    EXPECT_TRUE(called);
    EXPECT_TRUE(told.broken_off());
}

TEST_F(UnheardTest, ANodeThatIsStillBeingToldEverythingIsNotCutOffForThat) {
    join(kNode, 1);
    for (const char* key : {"a", "b", "c", "d", "e", "f", "g", "h"}) put(key);
    Told told;
    follow(kNode, told);  // more parts than may be unacknowledged
    ASSERT_FALSE(told.updates().back().complete);
    EventHub::Caused caused = start_on(1, "k");
    master_.look([&](const MasterState& state, Time) {
        hub_.doubt(state, state.segments().find(segment(1).id), caused);
        return true;
    });
    bool called = false;
    const Time next = hub_.call_when_told(
        caused, [&] { called = true; }, Clock::now());
    EXPECT_GT(hub_.expire(next), next) << "not again and again";
    EXPECT_FALSE(told.broken_off());
    EXPECT_FALSE(called);
    while (!told.updates().back().complete) {
        hub_.acknowledge(kNode, told.updates().back().sequence);
        report(kNode);
    }
    hub_.acknowledge(kNode, told.updates().back().sequence);
    EXPECT_TRUE(called);
}

class ForgottenTest : public UnheardTest {
protected:
    void pass(Duration time) {
        now_ += time;
        master_.look([&](const MasterState& state, Time) { return hub_.take_lost(state); });
    }
    void lose(const ClientId& client) {
        master_.run([&](Transaction& transaction, Time now) { return goodbye(transaction, client, now); });
        pass(2s);
    }

    Time now_ = Clock::now();
    EventHub hub_{{.clock = [this] { return now_; }}};
    LockedMaster master_{MasterOptions{}, &hub_, &hub_};
};

TEST_F(ForgottenTest, WhatAClientMissedThatIsGoneIsKeptForAWhile) {
    master_.run([&](Transaction& transaction, Time now) {
        remount(transaction, {.client = kNode, .segments = {}}, now);
        return mount_segment(transaction, {.client = kNode, .segment = segment(1)}, now);
    });
    Told told;
    master_.run([&](Transaction& transaction, Time) {
        hub_.follow(transaction.state(), transaction.state().clients().find(kNode), told.responder());
        return true;
    });
    const PutItem item{.key = "k", .length = 100, .group = {}};
    master_.run([&](Transaction& transaction, Time now) {
        return put_start(transaction, {.client = kNode, .tenant = {}, .config = {}, .items = {&item, 1}}, now);
    });
    lose(kNode);
    EXPECT_FALSE(hub_.missed(kNode, 1).lost);
    EXPECT_FALSE(hub_.missed(kNode, 1).updates.empty());
    pass(9min);
    EXPECT_FALSE(hub_.missed(kNode, 1).lost);
    pass(2min);
    EXPECT_TRUE(hub_.missed(kNode, 1).lost) << "nobody knows any more";
}

TEST_F(ForgottenTest, ANodeThatHoldsOldValuesAndWasToldOfNoNewOnesHasMissedNothing) {
    master_.run([&](Transaction& transaction, Time now) {
        remount(transaction, {.client = kNode, .segments = {}}, now);
        return mount_segment(transaction, {.client = kNode, .segment = segment(1)}, now);
    });
    Told told;
    master_.run([&](Transaction& transaction, Time) {
        hub_.follow(transaction.state(), transaction.state().clients().find(kNode), told.responder());
        return true;
    });
    lose(kNode);
    EXPECT_FALSE(hub_.missed(kNode, 1).lost);
}

TEST_F(ForgottenTest, OfTooMuchWhoMissedMostPays) {
    EventHub hub{{.gone_bytes_max = 100, .clock = [this] { return now_; }}};
    LockedMaster master{MasterOptions{}, &hub, &hub};
    Told node, other;
    for (const auto& [client, number, told] : {std::tuple{kNode, 1, &node}, std::tuple{kOther, 2, &other}}) {
        master.run([&](Transaction& transaction, Time now) {
            remount(transaction, {.client = client, .segments = {}}, now);
            mount_segment(transaction, {.client = client, .segment = segment(static_cast<uint64_t>(number))}, now);
            hub.follow(transaction.state(), transaction.state().clients().find(client), told->responder());
            return true;
        });
    }
    const std::string key(200, 'k');
    const PutItem item{.key = key, .length = 100, .group = {}};
    master.run([&](Transaction& transaction, Time now) {
        return put_start(transaction,
                         {.client = kNode, .tenant = {}, .config = {.preferred_segments = {segment(2).name}}, .items = {&item, 1}}, now);
    });
    for (const ClientId& client : {kNode, kOther}) {
        master.run([&](Transaction& transaction, Time now) { return goodbye(transaction, client, now); });
        now_ += 2s;
        master.look([&](const MasterState& state, Time) { return hub.take_lost(state); });
    }
    EXPECT_FALSE(hub.missed(kNode, 1).lost) << "it went first, but missed nothing";
    EXPECT_TRUE(hub.missed(kOther, 1).lost);
}

TEST_F(ForgottenTest, AClientThatLendsNothingIsForgottenWithItself) {
    master_.run([&](Transaction& transaction, Time now) { return remount(transaction, {.client = kReader, .segments = {}}, now); });
    Told told;
    master_.run([&](Transaction& transaction, Time) {
        hub_.follow(transaction.state(), transaction.state().clients().find(kReader), told.responder());
        return true;
    });
    ASSERT_FALSE(hub_.missed(kReader, 1).lost);
    lose(kReader);
    EXPECT_TRUE(hub_.missed(kReader, 1).lost) << "of very many that come and go nothing stays";
}

// ---- over the wire

TEST(UnheardEventsServed, ANodeThatWasGivenUpIsToldWhatItMissedWhenItComesBack) {
    auto server = MasterServer::create({.core = {.client_ttl = 300ms}, .threads = 2});
    ASSERT_TRUE(server);
    (*server)->start();
    Caller caller(format_text("127.0.0.1:{}", (*server)->port()));
    caller.join(kNode, 1);
    uint64_t heard = 0;
    {
        Following node(caller.address(), kNode);
        ASSERT_TRUE(node.wait_complete());
        heard = node.updates().back().sequence;
        caller.put(kNode, {"k"});
    }
    ASSERT_TRUE(eventually([&] { return caller.segments().segments.empty(); })) << "given up";
    const RemountReply reply = caller.remount({.client = kNode, .segments = {}, .heard_update = heard});
    EXPECT_FALSE(reply.missed_lost);
    std::vector<std::string> planned;
    size_t filled = 0;
    for (const auto& body : reply.missed) {
        const EventUpdate update = decode_event_update(body).value();
        for (const RangePlanned& one : update.planned) planned.push_back(one.key);
        filled += update.filled.size();
    }
    EXPECT_EQ(planned, (std::vector<std::string>{"k"}));
    EXPECT_EQ(filled, 1u);
    EXPECT_TRUE(caller.remount({.client = kOther, .segments = {}, .heard_update = 3}).missed_lost) << "we know nothing of that one";
}

}  // namespace
}  // namespace mooncake::store
