// SPDX-License-Identifier: Apache-2.0
#include "store/service/event_hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "store/master/ops/task_ops.h"
#include "store/service/testing/followed_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST_F(EventHubTest, AnEventStreamBeginsWithAResetAndEndsItsReportWithComplete) {
    join(kReader, 0);
    Told told;
    follow(kReader, told);
    const auto updates = told.take();
    ASSERT_EQ(updates.size(), 2u);
    EXPECT_EQ(updates[0].sequence, 1u);
    EXPECT_TRUE(updates[0].reset);
    EXPECT_TRUE(updates[0].all_changed) << "it may have missed events";
    EXPECT_FALSE(updates[0].complete);
    EXPECT_EQ(updates[1].sequence, 2u);
    EXPECT_TRUE(updates[1].complete);
    EXPECT_FALSE(updates[1].reset);
}

TEST_F(EventHubTest, ANodeHearsOfItsRangesBeforeTheWriterIsAnswered) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    told.take();
    const PutStartItem started = start("k");
    ASSERT_EQ(started.code, StoreCode::kOk);
    auto updates = told.take();  // start() has returned: the writer could be answered now
    ASSERT_EQ(updates.size(), 1u);
    ASSERT_EQ(updates[0].planned.size(), 1u);
    EXPECT_EQ(updates[0].planned[0].key, "k");
    EXPECT_EQ(updates[0].planned[0].generation, started.generation);
    EXPECT_EQ(updates[0].planned[0].segment, (SegmentId{9, 1}));
    EXPECT_EQ(updates[0].planned[0].writer, kNode);
    EXPECT_FALSE(updates[0].acknowledge);
    end("k", 77);
    updates = told.take();
    ASSERT_EQ(updates.size(), 1u);
    ASSERT_EQ(updates[0].filled.size(), 1u);
    EXPECT_EQ(updates[0].filled[0].checksum, 77u);
    EXPECT_EQ(updates[0].filled[0].generation, started.generation);
    remove_by_force("k");
    updates = told.take();
    ASSERT_EQ(updates.size(), 1u);
    ASSERT_EQ(updates[0].dropped.size(), 1u);
    EXPECT_EQ(updates[0].dropped[0].generation, started.generation);
    EXPECT_EQ(updates[0].dropped[0].quarantine, Duration(0));
    EXPECT_TRUE(updates[0].changed.empty()) << "nobody had read it";
}

TEST_F(EventHubTest, OnlyTheOwnerHearsOfARange) {
    join(kNode, 1);
    join(kOther, 2);
    join(kReader, 0);
    Told node, other, reader;
    follow(kNode, node);
    follow(kOther, other);
    follow(kReader, reader);
    node.take();
    other.take();
    reader.take();
    ASSERT_EQ(start("k", false, 2).replica_count, 2u);
    const auto first = node.take(), second = other.take();
    ASSERT_EQ(first.size(), 1u);
    ASSERT_EQ(second.size(), 1u);
    EXPECT_EQ(first[0].planned[0].segment, (SegmentId{9, 1}));
    EXPECT_EQ(second[0].planned[0].segment, (SegmentId{9, 2}));
    EXPECT_TRUE(reader.take().empty());
}

TEST_F(EventHubTest, AStartThatWasForgottenCostsNothing) {
    join(kNode, 1);
    put("k");  // nobody follows
    Told told;
    follow(kNode, told);
    read("k");
    const size_t before = told.updates().size();
    read("k");
    EXPECT_EQ(told.updates().size(), before) << "reads are nobody's news";
}

TEST_F(EventHubTest, EverybodyHearsOfALeasedValueThatGoesAndIsAskedToAcknowledge) {
    join(kNode, 1);
    join(kReader, 0);
    Told node, reader;
    follow(kNode, node);
    follow(kReader, reader);
    put("k");
    read("k");
    node.take();
    reader.take();
    remove_by_force("k");
    for (Told* told : {&node, &reader}) {
        const auto updates = told->take();
        ASSERT_EQ(updates.size(), 1u);
        EXPECT_TRUE(updates[0].acknowledge);
        ASSERT_EQ(updates[0].changed.size(), 1u);
        EXPECT_EQ(updates[0].changed[0].key, "k");
    }
}

TEST_F(EventHubTest, TooManyChangesAreToldAsAll) {
    join(kNode, 1);
    join(kReader, 0);
    Told told;
    follow(kReader, told);
    std::vector<std::string> names;
    for (int i = 0; i < 10; ++i) names.push_back(format_text("key {}", i));
    std::vector<std::string_view> keys(names.begin(), names.end());
    for (const auto& key : names) {
        put(key);
        read(key);
    }
    told.take();
    master_.run([&](Transaction& transaction, Time now) { return remove(transaction, {.tenant = {}, .keys = keys, .force = true}, now); });
    auto updates = told.take();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_TRUE(updates[0].all_changed);
    EXPECT_TRUE(updates[0].changed.empty());
    change("one more");
    updates = told.take();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_FALSE(updates[0].all_changed) << "the next one is named again";
    EXPECT_EQ(updates[0].changed.size(), 1u);
}

TEST_F(EventHubTest, AFirstReportComesInPartsAsFastAsTheyAreAcknowledged) {
    join(kNode, 1);
    for (int i = 0; i < 20; ++i) put(format_text("key {}", i));
    ASSERT_EQ(start("unfinished").code, StoreCode::kOk);
    Told told;
    follow(kNode, told);
    EXPECT_EQ(told.updates().size(), 3u) << "the reset and the window";
    EXPECT_FALSE(hub_.wants_report(kNode));
    put("in between");
    for (uint64_t i = 0; i < 100 && !told.updates().back().complete; ++i) {
        hub_.acknowledge(kNode, told.updates().back().sequence);
        report(kNode);
    }
    const auto updates = told.take();
    ASSERT_TRUE(updates.back().complete);
    std::map<uint64_t, std::string> planned;
    std::map<uint64_t, uint64_t> filled;
    uint64_t sequence = 0;
    for (const EventUpdate& update : updates) {
        EXPECT_EQ(update.sequence, ++sequence);
        EXPECT_LE(update.planned.size(), 4u);
        for (const RangePlanned& range : update.planned) planned[range.generation] = range.key;
        for (const RangeFilled& range : update.filled) filled[range.generation] = range.checksum;
    }
    EXPECT_EQ(planned.size(), 22u);
    EXPECT_EQ(filled.size(), 21u);
    for (const auto& [generation, checksum] : filled) EXPECT_NE(planned[generation], "unfinished");
}

TEST_F(EventHubTest, AnOperationWithManyRangesBecomesSeveralUpdates) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    told.take();
    std::vector<std::string> names;
    std::vector<PutItem> items;
    for (int i = 0; i < 200; ++i) names.push_back(format_text("a key of some length {}", i));
    for (const auto& name : names) items.push_back({.key = name, .length = 10, .group = {}});
    master_.run([&](Transaction& transaction, Time now) {
        return put_start(transaction, {.client = kNode, .tenant = {}, .config = {}, .items = items}, now);
    });
    const auto updates = told.take();
    EXPECT_GT(updates.size(), 3u);
    size_t planned = 0;
    for (const EventUpdate& update : updates) planned += update.planned.size();
    EXPECT_EQ(planned, 200u);
}

TEST_F(EventHubTest, AClientThatFollowsAnewEndsItsEarlierFeed) {
    join(kNode, 1);
    Told first, second;
    follow(kNode, first);
    follow(kNode, second);
    ASSERT_TRUE(first.error());
    EXPECT_EQ(first.error()->code(), Code::kStale);
    first.take();
    second.take();
    put("k");
    EXPECT_TRUE(first.take().empty());
    EXPECT_EQ(second.take().size(), 2u);
    EXPECT_EQ(hub_.followers(), 1u);
}

TEST_F(EventHubTest, AClientThatIsGivenUpHearsNothingMore) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    told.take();
    master_.run([&](Transaction& transaction, Time now) {
        goodbye(transaction, kNode, now);
        hub_.drop_strangers(transaction.state());
        return true;
    });
    ASSERT_TRUE(told.error());
    EXPECT_EQ(told.error()->code(), Code::kNotFound);
    EXPECT_TRUE(told.take().empty());
    EXPECT_EQ(hub_.followers(), 0u);
}

TEST_F(EventHubTest, ASlowReaderIsCutOffAndTheOthersHearOn) {
    join(kNode, 1);
    join(kReader, 0);
    Told node, slow;
    follow(kNode, node);
    follow(kReader, slow);
    slow.clog();
    node.take();
    change("k");
    ASSERT_TRUE(slow.error());
    EXPECT_EQ(slow.error()->code(), Code::kNoSpace);
    EXPECT_EQ(hub_.followers(), 1u);
    EXPECT_FALSE(node.take().empty());
    Told again;
    follow(kReader, again);
    EXPECT_EQ(again.updates().size(), 2u) << "it starts anew";
}

TEST_F(EventHubTest, ARemovalIsAnsweredWhenAllFollowersHaveAcknowledgedIt) {
    join(kNode, 1);
    join(kReader, 0);
    Told node, reader, writer;
    follow(kNode, node);
    follow(kReader, reader);
    const uint64_t number = change("k");
    const Time now = Clock::now();
    EXPECT_EQ(hub_.answer_when_told({.change = number}, writer.responder(), rpc::Bytes(3), now), now + 50ms);
    EXPECT_FALSE(writer.over());
    hub_.acknowledge(kNode, node.updates().back().sequence);
    EXPECT_FALSE(writer.over());
    hub_.acknowledge(kReader, reader.updates().back().sequence - 1);
    EXPECT_FALSE(writer.over()) << "that was an earlier update";
    hub_.acknowledge(kReader, reader.updates().back().sequence);
    ASSERT_TRUE(writer.reply());
    EXPECT_EQ(writer.reply()->size(), 3u);
    EXPECT_EQ(hub_.expire(now + 1h), Time::max());
}

TEST_F(EventHubTest, ASilentFollowerDelaysARemovalOnceAndIsNotWaitedForAgainUntilItCatchesUp) {
    join(kNode, 1);
    join(kReader, 0);
    Told reader, first, second, third;
    follow(kReader, reader);
    const Time now = Clock::now();
    hub_.answer_when_told({.change = change("one")}, first.responder(), {}, now);
    EXPECT_EQ(hub_.expire(now + 49ms), now + 50ms);
    EXPECT_FALSE(first.over());
    EXPECT_EQ(hub_.expire(now + 50ms), Time::max());
    EXPECT_TRUE(first.reply());
    EXPECT_EQ(hub_.answer_when_told({.change = change("two")}, second.responder(), {}, now), Time::max());
    EXPECT_TRUE(second.reply());
    hub_.acknowledge(kReader, reader.updates().back().sequence);
    hub_.answer_when_told({.change = change("three")}, third.responder(), {}, now);
    EXPECT_FALSE(third.over()) << "it is awake again";
    hub_.acknowledge(kReader, reader.updates().back().sequence);
    EXPECT_TRUE(third.reply());
}

TEST_F(EventHubTest, AnAnswerWaitsUntilEventsAboutItsRangesAreWithTheKernel) {
    join(kNode, 1);
    Told node, writer;
    follow(kNode, node);
    node.hold_back();
    const EventHub::Caused caused = start_on(1, "k");
    const Time now = Clock::now();
    EXPECT_EQ(hub_.answer_when_told(caused, writer.responder(), rpc::Bytes(3), now), now + 5ms) << "then it is looked again";
    EXPECT_EQ(hub_.expire(now + 1s), now + 1s + 5ms);
    EXPECT_FALSE(writer.over()) << "a master that is killed now would take the only event of the range along";
    node.let_go();
    EXPECT_EQ(hub_.expire(now + 1s), Time::max());
    ASSERT_TRUE(writer.reply());
    EXPECT_EQ(writer.reply()->size(), 3u);
    EXPECT_FALSE(node.over());
}

TEST_F(EventHubTest, NobodyWaitsForAFollowerThatIsToldNothingOfHis) {
    join(kNode, 1);
    join(kOther, 2);
    Told node, other, stuck, writer;
    follow(kNode, node);
    follow(kOther, other);
    node.hold_back();
    const Time now = Clock::now();
    hub_.answer_when_told(start_on(1, "stuck"), stuck.responder(), {}, now);
    hub_.answer_when_told(start_on(2, "k"), writer.responder(), {}, now);
    EXPECT_TRUE(writer.reply());
    EXPECT_FALSE(stuck.over());
}

TEST_F(EventHubTest, AnAnswerThatSpeaksOfAnothersWriteWaitsForItsEventsAsWell) {
    join(kNode, 1);
    join(kOther, 2);
    Told node, other, first, again, elsewhere;
    follow(kNode, node);
    follow(kOther, other);
    node.hold_back();
    const Time now = Clock::now();
    hub_.answer_when_told(start_on(1, "k"), first.responder(), {}, now);
    ASSERT_TRUE(hub_.may_rely());
    EventHub::Caused told_again, unrelated;
    start_on(2, "l");
    master_.look([&](const MasterState& state, Time) {
        hub_.rely_on(state, TenantTable::kDefaultName, "k", told_again);
        hub_.rely_on(state, TenantTable::kDefaultName, "l", unrelated);
        hub_.rely_on(state, TenantTable::kDefaultName, "nobody knows it", unrelated);
        return true;
    });
    EXPECT_TRUE(unrelated.nothing()) << "one that hangs does not hold up what concerns others";
    hub_.answer_when_told(told_again, again.responder(), {}, now);
    EXPECT_FALSE(again.over()) << "the same request, or another one for the same key";
    node.let_go();
    hub_.expire(now);
    EXPECT_TRUE(first.reply());
    EXPECT_TRUE(again.reply());
}

TEST_F(EventHubTest, AnAnswerThatSomethingIsNotThereWaitsForWhateverMayHaveRemovedIt) {
    join(kNode, 1);
    Told node, first, again;
    follow(kNode, node);
    EventHub::Caused nothing;
    hub_.rely_on_all(nothing);
    EXPECT_TRUE(hub_.told(nothing));
    node.hold_back();
    const Time now = Clock::now();
    hub_.answer_when_told(start_on(1, "k"), first.responder(), {}, now);
    EventHub::Caused all;
    hub_.rely_on_all(all);
    hub_.answer_when_told(all, again.responder(), {}, now);
    EXPECT_FALSE(again.over());
    node.let_go();
    hub_.expire(now);
    EXPECT_TRUE(again.reply());
}

TEST_F(EventHubTest, AFollowerThatTakesNothingForTooLongIsBrokenOffBeforeAnybodyIsAnswered) {
    join(kNode, 1);
    Told node, writer;
    follow(kNode, node);
    node.hold_back();
    node.in_break_off = [&] { EXPECT_FALSE(writer.over()) << "the node would take what it heard for everything"; };
    hub_.answer_when_told(start_on(1, "k"), writer.responder(), {}, Clock::now());
    EXPECT_EQ(hub_.expire(Clock::now() + 2s), Time::max());
    EXPECT_TRUE(node.broken_off());
    EXPECT_TRUE(writer.reply());
    EXPECT_EQ(hub_.followers(), 0u);
    Told later;
    EXPECT_EQ(hub_.answer_when_told(start_on(1, "l"), later.responder(), {}, Clock::now()), Time::max());
    EXPECT_TRUE(later.reply());
}

TEST_F(EventHubTest, NobodyWaitsForAFollowerThatWasCutOffOrGivenUp) {
    join(kNode, 1);
    join(kReader, 0);
    Told reader, first, second;
    follow(kReader, reader);
    hub_.answer_when_told({.change = change("one")}, first.responder(), {}, Clock::now());
    EXPECT_FALSE(first.over());
    master_.run([&](Transaction& transaction, Time now) {
        goodbye(transaction, kReader, now);
        hub_.drop_strangers(transaction.state());
        return true;
    });
    EXPECT_TRUE(first.reply());
    EXPECT_EQ(hub_.answer_when_told({.change = hub_.position().changes}, second.responder(), {}, Clock::now()), Time::max());
    EXPECT_TRUE(second.reply()) << "nobody follows";
}

TEST_F(EventHubTest, AcknowledgementsOfNothingAreIgnored) {
    join(kNode, 1);
    join(kReader, 0);
    Told reader, writer;
    hub_.acknowledge(kReader, 5);
    follow(kReader, reader);
    hub_.acknowledge(kReader, 1000);
    hub_.acknowledge(kOther, 1);
    hub_.answer_when_told({.change = change("k")}, writer.responder(), {}, Clock::now());
    hub_.acknowledge(kReader, 1000);
    EXPECT_FALSE(writer.over());
    hub_.answer_all();
    EXPECT_TRUE(writer.reply());
}

TEST_F(EventHubTest, LateAcknowledgementsOfAnEarlierEventStreamMeanNothingToTheNext) {
    join(kNode, 1);
    join(kReader, 0);
    for (const bool cut_off : {false, true}) {
        Told first, second;
        follow(kReader, first);
        change(cut_off ? "a" : "b");
        const uint64_t late = first.updates().back().sequence;
        if (cut_off) {
            first.clog();
            change("c");
        }
        follow(kReader, second, /*report=*/false);
        const uint64_t made = change("d");
        Told waiting;
        hub_.answer_when_told({.change = made}, waiting.responder(), {}, Clock::now());
        hub_.acknowledge(kReader, late);
        EXPECT_FALSE(waiting.over());
        hub_.acknowledge(kReader, second.updates().back().sequence);
        EXPECT_TRUE(waiting.over());
    }
}

TEST_F(EventHubTest, ABrokenEventStreamIsNoticedOnceAndForgottenWithItsClient) {
    join(kNode, 1);
    join(kReader, 0);
    Told node, reader, again;
    follow(kNode, node);
    follow(kReader, reader);
    const auto lost = [&] { return master_.look([&](const MasterState& state, Time) { return hub_.take_lost(state); }); };
    EXPECT_THAT(lost(), ElementsAre());
    node.vanish();
    EXPECT_THAT(lost(), ElementsAre(kNode));
    EXPECT_THAT(lost(), ElementsAre());
    EXPECT_EQ(hub_.followers(), 1u);
    follow(kNode, again);
    EXPECT_THAT(lost(), ElementsAre());
    reader.clog();
    change("k");
    EXPECT_THAT(lost(), ElementsAre(kReader)) << "cut off";
    again.vanish();
    master_.run([&](Transaction& transaction, Time now) { return goodbye(transaction, kNode, now); });
    EXPECT_THAT(lost(), ElementsAre());
}

TEST_F(EventHubTest, ADropAndALaterPlanOfTheSameGenerationAreTwoUpdates) {
    join(kNode, 1);
    put("k");
    join(kOther, 2);
    Told other;
    follow(kOther, other);
    other.take();
    // Within one operation, so that nothing is sent in between.
    master_.run([&](Transaction& transaction, Time now) {
        for (int round = 0; round < 2; ++round) {
            const TaskReply task = create_task(transaction, {.type = TaskType::kCopy, .key = "k", .targets = {"host:2"}}, now);
            EXPECT_EQ(task.code, StoreCode::kOk);
            dispatch_tasks(transaction, now);
            end_task(transaction, {.client = kNode, .task = task.task, .code = StoreCode::kTransferFail, .message = {}}, now);
        }
        return true;
    });
    // As the catalogue reads an update: plans before drops.
    std::set<uint64_t> planned;
    int plans = 0, drops = 0;
    for (const EventUpdate& update : other.take()) {
        for (const RangePlanned& event : update.planned) {
            EXPECT_TRUE(planned.insert(event.generation).second) << "planned again before it was dropped";
            ++plans;
        }
        for (const RangeDropped& event : update.dropped) {
            EXPECT_EQ(planned.erase(event.generation), 1u) << "dropped before it was planned";
            ++drops;
        }
    }
    EXPECT_EQ(plans, 2);
    EXPECT_EQ(drops, 2);
}

TEST_F(EventHubTest, ManyThreadsTellOneStoryInOrder) {
    join(kNode, 1);
    Told told;
    follow(kNode, told);
    {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 4; ++thread) {
            threads.emplace_back([&, thread] {
                for (int i = 0; i < 100; ++i) {
                    const std::string key = format_text("{} {}", thread, i);
                    const PutStartItem started = start(key);
                    ASSERT_EQ(started.code, StoreCode::kOk);
                    // Whatever thread sent it: it has been sent when the operation returns.
                    bool planned = false;
                    for (const EventUpdate& update : told.updates())
                        for (const RangePlanned& range : update.planned) planned |= range.generation == started.generation;
                    ASSERT_TRUE(planned);
                    end(key);
                }
            });
        }
    }
    uint64_t sequence = 0;
    std::map<uint64_t, int> stage;
    for (const EventUpdate& update : told.updates()) {
        EXPECT_EQ(update.sequence, ++sequence);
        for (const RangePlanned& range : update.planned) EXPECT_EQ(stage[range.generation]++, 0);
        for (const RangeFilled& range : update.filled) EXPECT_EQ(stage[range.generation]++, 1);
    }
    EXPECT_EQ(stage.size(), 400u);
    for (const auto& [generation, reached] : stage) EXPECT_EQ(reached, 2);
}

}  // namespace
}  // namespace mooncake::store
