// SPDX-License-Identifier: Apache-2.0
// A value that another one replaces, on another node.
#include <gtest/gtest.h>

#include "store/service/testing/followed_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;

class ReplacedValueTest : public EventHubTest {
protected:
    /// Key "k" lies on the first node, and a write of it to the second is about to end.
    void SetUp() override {
        join(kNode, 1);
        join(kOther, 2);
        follow(kNode, old_node_);
        follow(kOther, new_node_);
        for (const ClientId& client : {kNode, kOther}) hub_.acknowledge(client, 2);
        start_on(1, "k");
        offset_ = old_node_.updates().back().planned.at(0).offset;
        end("k");
        const PutItem item{.key = "k", .length = 100, .group = {}};
        const PutStartRequest request{
            .client = kNode, .tenant = {}, .config = {.preferred_segments = {segment(2).name}}, .items = {&item, 1}};
        master_.run([&](Transaction& transaction, Time now) { return upsert_start(transaction, request, now); });
        old_node_.take();
        new_node_.take();
    }
    EventHub::Caused end_upsert() {
        const PutEndItem item{.key = "k", .generation = 0, .checksum = 9};
        EventHub::Caused caused;
        master_.run([&](Transaction& transaction, Time now) {
            const EventHub::Position before = hub_.position();
            const CodesReply reply = put_end(transaction, {.client = kNode, .tenant = {}, .items = {&item, 1}}, now);
            EXPECT_EQ(reply.codes[0], StoreCode::kOk);
            caused.add(before, hub_.position());
            return true;
        });
        return caused;
    }
    /// As it is answered by the server.
    EventHub::Caused remove(StoreCode expected) {
        const std::string_view key = "k";
        EventHub::Caused caused;
        master_.run([&](Transaction& transaction, Time now) {
            const EventHub::Position before = hub_.position();
            EXPECT_EQ(store::remove(transaction, {.tenant = {}, .keys = {&key, 1}, .force = true}, now).codes[0], expected);
            caused.add(before, hub_.position());
            return true;
        });
        if (expected == StoreCode::kObjectNotFound) hub_.rely_on_all(caused);
        hub_.rely_on_held(caused);
        return caused;
    }
    static size_t drops(Told& told) {
        size_t count = 0;
        for (const EventUpdate& update : told.updates()) count += update.dropped.size();
        return count;
    }

    Told old_node_, new_node_;
    uint64_t offset_ = 0;  // of the old value
};

TEST_F(ReplacedValueTest, GoesInTheSameBreathWhereTheKernelTakesEverything) {
    const EventHub::Caused caused = end_upsert();
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_TRUE(hub_.told(caused));
}

TEST_F(ReplacedValueTest, StaysUntilTheKernelKnowsOfItsSuccessor) {
    new_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    EXPECT_EQ(drops(old_node_), 0u) << "a master that is killed now would take along both";
    EXPECT_FALSE(hub_.told(caused));
    Told answer;
    const Time now = Clock::now();
    EXPECT_LT(hub_.answer_when_told(caused, answer.responder(), {}, now), Time::max());
    new_node_.let_go();
    hub_.expire(now + 10ms);
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_TRUE(answer.over());
}

TEST_F(ReplacedValueTest, IsAnsweredOnlyWhenItsOwnNodeCanKnowAsWell) {
    new_node_.hold_back();
    old_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    Told answer;
    const Time now = Clock::now();
    hub_.answer_when_told(caused, answer.responder(), {}, now);
    new_node_.let_go();
    hub_.expire(now + 10ms);
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_FALSE(answer.over()) << "it is not with the kernel";
    old_node_.let_go();
    hub_.expire(now + 20ms);
    EXPECT_TRUE(answer.over());
}

TEST_F(ReplacedValueTest, KeepsItsMemoryAlsoIfItsSuccessorIsTheFirstThingThatTheKernelDoesNotTake) {
    new_node_.hold_back();
    end_upsert();
    start_on(1, "another");
    ASSERT_EQ(old_node_.updates().back().planned.size(), 1u);
    EXPECT_NE(old_node_.updates().back().planned[0].offset, offset_) << "were we killed now, it would be overwritten";
    EXPECT_EQ(drops(old_node_), 0u);
    new_node_.let_go();
    hub_.expire(Clock::now());
    EXPECT_EQ(drops(old_node_), 1u);
    start_on(1, "a third");
    EXPECT_EQ(old_node_.updates().back().planned.at(0).offset, offset_) << "told, it is used again";
}

TEST_F(ReplacedValueTest, KeepsItsMemoryLongerThanALeaseOnItWouldHave) {
    new_node_.hold_back();
    end_upsert();
    master_.run([&](Transaction& transaction, Time now) {
        transaction.apply(ClockAdvanced{.now = now + 1h});
        EXPECT_EQ(transaction.state().quarantine().size(), 1u);
        EXPECT_TRUE(transaction.state().quarantine().any_replaced());
        return true;
    });
    new_node_.let_go();
    hub_.expire(Clock::now());
    EXPECT_EQ(master_.run([&](Transaction& transaction, Time) { return transaction.state().quarantine().size(); }), 0u);
}

TEST_F(ReplacedValueTest, KeepsItsMemoryUntilItsReadersAreGoneEvenIfEverybodyKnows) {
    read("k");
    new_node_.hold_back();
    end_upsert();
    new_node_.let_go();
    hub_.expire(Clock::now());
    start_on(1, "another");
    EXPECT_NE(old_node_.updates().back().planned.at(0).offset, offset_);
    EXPECT_FALSE(master_.look([&](const MasterState& state, Time) { return state.quarantine().any_replaced(); }));
}

TEST_F(ReplacedValueTest, GoesInTheSameBreathWhereItsSuccessorLiesWithTheSameNode) {
    hub_.flush();
    const PutItem item{.key = "same", .length = 100, .group = {}};
    const PutStartRequest request{.client = kNode, .tenant = {}, .config = {.preferred_segments = {segment(1).name}}, .items = {&item, 1}};
    for (int i = 0; i < 2; ++i) {
        master_.run([&](Transaction& transaction, Time now) { return upsert_start(transaction, request, now); });
        old_node_.take();
        old_node_.hold_back();
        end("same");
    }
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_EQ(master_.look([&](const MasterState& state, Time) { return state.quarantine().size(); }), 0u);
}

TEST_F(ReplacedValueTest, IsNotSaidToBeGoneByTheReportOfAnEventStreamThatBeginsMeanwhile) {
    new_node_.hold_back();
    end_upsert();
    Told again;
    follow(kNode, again);
    EXPECT_EQ(drops(again), 0u);
    for (const EventUpdate& update : again.updates()) EXPECT_FALSE(update.complete) << "what was not told would count as gone";
    new_node_.let_go();
    hub_.expire(Clock::now());
    EXPECT_EQ(drops(again), 1u);
    ASSERT_TRUE(again.updates().back().acknowledge);
    hub_.acknowledge(kNode, again.updates().back().sequence);
    report(kNode);
    EXPECT_TRUE(again.updates().back().complete);
}

TEST_F(ReplacedValueTest, IsNotKnownToBeGoneBetweenBeingNotedAndBeingSent) {
    new_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    new_node_.let_go();
    bool sending = false;
    old_node_.in_part = [&] {
        sending = true;
        EXPECT_FALSE(hub_.told(caused));
    };
    hub_.expire(Clock::now());
    EXPECT_TRUE(sending);
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_TRUE(hub_.told(caused));
    EXPECT_FALSE(hub_.holds_back());
}

TEST_F(ReplacedValueTest, RestsWhereItsSuccessorCannotBeKnownSoon) {
    new_node_.hold_back();
    start_on(2, "before");  // the kernel takes no more
    const EventHub::Caused caused = end_upsert();
    start_on(1, "another");
    EXPECT_EQ(old_node_.updates().back().planned.size(), 1u);
    EXPECT_EQ(drops(old_node_), 0u) << "the other one lies elsewhere, so the old value may stay";
    EXPECT_FALSE(hub_.told(caused));
    new_node_.let_go();
    hub_.expire(Clock::now());
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_TRUE(hub_.told(caused));
}

TEST_F(ReplacedValueTest, StaysBesideACopyOfItsSuccessor) {
    new_node_.hold_back();
    end_upsert();
    ASSERT_EQ(copy_to(1, "k").code, StoreCode::kOk);
    ASSERT_EQ(old_node_.updates().back().planned.size(), 1u);
    EXPECT_NE(old_node_.updates().back().planned[0].offset, offset_);
    EXPECT_EQ(drops(old_node_), 0u);
}

TEST_F(ReplacedValueTest, IsAnsweredWithAnErrorIfItsSuccessorsNodeIsCutOffByAMasterThatEnds) {
    new_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    const EventHub::Caused other = start_on(1, "another");
    Told answer, elsewhere;
    const Time now = Clock::now();
    hub_.answer_when_told(caused, answer.responder(), {}, now);
    hub_.end_soon();
    hub_.expire(now + 3s);
    EXPECT_TRUE(new_node_.broken_off());
    ASSERT_TRUE(answer.error()) << "who was cut off never hears of it";
    EXPECT_EQ(answer.error()->code(), Code::kUnavailable);
    Told late;
    hub_.answer_when_told(caused, late.responder(), {}, now + 3s);
    EXPECT_TRUE(late.error()) << "nor is it true of who asks only now";
    hub_.answer_when_told(other, elsewhere.responder(), {}, now + 3s);
    EXPECT_TRUE(elsewhere.reply()) << "what others were told is with the kernel";
}

TEST_F(ReplacedValueTest, IsAnsweredWithAnErrorIfItsSuccessorsNodeIsLostWhileTheMasterEnds) {
    new_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    Told answer;
    hub_.answer_when_told(caused, answer.responder(), {}, Clock::now());
    hub_.end_soon();
    new_node_.vanish();
    master_.look([&](const MasterState& state, Time) { return hub_.take_lost(state); });
    hub_.expire(Clock::now());
    EXPECT_TRUE(answer.error());
}

TEST_F(ReplacedValueTest, IsAnsweredWithAnErrorIfTheMasterHasNoMoreTime) {
    new_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    Told answer;
    hub_.answer_when_told(caused, answer.responder(), {}, Clock::now());
    hub_.end_soon();
    hub_.answer_all();
    EXPECT_TRUE(answer.error());
}

TEST_F(ReplacedValueTest, IsAnsweredAsEverByAMasterThatGoesOn) {
    new_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    Told answer;
    const Time now = Clock::now();
    hub_.answer_when_told(caused, answer.responder(), {}, now);
    hub_.expire(now + 3s);
    EXPECT_TRUE(new_node_.broken_off());
    EXPECT_TRUE(answer.reply()) << "it hears of it when it is back";
}

TEST_F(ReplacedValueTest, IsKnownToBeGoneBeforeARemovalOfItsKeyIsAnswered) {
    new_node_.hold_back();
    end_upsert();
    const EventHub::Caused caused = remove(StoreCode::kOk);
    new_node_.let_go();
    EXPECT_FALSE(hub_.told(caused)) << "its own events are with the kernel; but the older value would be back, were we killed now";
    old_node_.hold_back();
    hub_.expire(Clock::now());
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_FALSE(hub_.told(caused)) << "not even now";
    old_node_.let_go();
    EXPECT_TRUE(hub_.told(caused));
}

TEST_F(ReplacedValueTest, IsKnownToBeGoneBeforeAnybodyHearsThatItsKeyIsNotThere) {
    new_node_.hold_back();
    end_upsert();
    remove(StoreCode::kOk);
    const EventHub::Caused again = remove(StoreCode::kObjectNotFound);
    Told answer;
    const Time now = Clock::now();
    hub_.answer_when_told(again, answer.responder(), {}, now);
    new_node_.let_go();
    hub_.acknowledge(kOther, new_node_.updates().back().sequence);  // which lets answers go
    EXPECT_FALSE(answer.over());
    hub_.expire(now + 10ms);
    EXPECT_EQ(drops(old_node_), 1u);
    EXPECT_TRUE(answer.over());
}

TEST_F(ReplacedValueTest, IsNotWaitedForByWritesOfOtherKeys) {
    new_node_.hold_back();
    end_upsert();
    EXPECT_TRUE(hub_.told(start_on(1, "another")));
}

TEST_F(ReplacedValueTest, GoesAlsoIfItsNodeIsLostMeanwhile) {
    new_node_.hold_back();
    const EventHub::Caused caused = end_upsert();
    old_node_.vanish();
    master_.look([&](const MasterState& state, Time) { return hub_.take_lost(state); });
    new_node_.let_go();
    hub_.expire(Clock::now());
    size_t dropped = 0;
    for (const auto& body : hub_.missed(kNode, 2).updates) dropped += decode_event_update(body).value().dropped.size();
    EXPECT_EQ(dropped, 1u) << "it is told when it is back";
    EXPECT_TRUE(hub_.told(caused));
}

}  // namespace
}  // namespace mooncake::store
