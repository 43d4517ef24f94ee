// SPDX-License-Identifier: Apache-2.0
#include "engine/batch.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "engine/testing/fake_world.h"

namespace mooncake {
namespace {

using testing::FakeWorld;

class BatchTest : public ::testing::Test {
protected:
    Request request(size_t offset, uint64_t length = 64, const char* segment = "peer", Direction direction = Direction::kWrite) {
        return {.direction = direction,
                .local = local.data() + offset,
                .segment = world.id(segment),
                .remote = reinterpret_cast<uint64_t>(remote.data() + offset),
                .length = length};
    }
    Result<> submit(const std::vector<Request>& requests, const Notification* notification = nullptr, Duration time = 10s) {
        return batch->submit(requests, notification, [time](uint64_t) { return Deadline::after(time); });
    }
    TransferState state(size_t task) { return batch->task_status(task).value().state; }

    std::vector<std::byte> local = std::vector<std::byte>(4096, std::byte{1});
    std::vector<std::byte> remote = std::vector<std::byte>(4096);
    FakeWorld world;
    std::shared_ptr<Batch> batch = std::make_shared<Batch>(world.core, 8);
};

TEST_F(BatchTest, EachRequestIsATask) {
    ASSERT_TRUE(submit({request(0), request(1000), request(2000, 0)}));
    batch->wait();
    EXPECT_EQ(state(0), TransferState::kCompleted);
    EXPECT_EQ(batch->task_status(1)->bytes, 64u);
    EXPECT_EQ(state(2), TransferState::kCompleted) << "no bytes, no work";
    EXPECT_EQ(batch->task_status(3).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(batch->status().bytes, 128u);
    EXPECT_FALSE(batch->busy());
}

TEST_F(BatchTest, WaitingEndsAtItsDeadlineAndCancelsNothing) {
    world.script.hold = true;
    ASSERT_TRUE(submit({request(0)}));
    EXPECT_FALSE(batch->wait(Deadline::after(1ms)));
    EXPECT_TRUE(batch->busy());
    EXPECT_EQ(world.script.cancels.load(), 0);
    world.script.release();
    EXPECT_TRUE(batch->wait());
    EXPECT_EQ(state(0), TransferState::kCompleted);
}

TEST_F(BatchTest, WhoAsksForTheStatusLetsThePeerWork) {
    world.script.hold = true;
    world.script.work_when_poked = true;
    ASSERT_TRUE(submit({request(0)}));
    const Deadline limit = Deadline::after(20s);
    while (state(0) != TransferState::kCompleted && !limit.passed()) std::this_thread::yield();
    EXPECT_EQ(state(0), TransferState::kCompleted);
}

TEST_F(BatchTest, AnEmptyBatchIsComplete) {
    EXPECT_EQ(batch->status().state, TransferState::kCompleted);
    ASSERT_TRUE(submit({}));
    EXPECT_FALSE(batch->busy());
}

TEST_F(BatchTest, MoreTasksThanTheCapacityAreRefusedAndNothingIsLost) {
    ASSERT_TRUE(submit({request(0), request(64), request(128), request(192), request(256), request(320), request(384)}));
    EXPECT_EQ(submit({request(448), request(512)}).error().code(), Code::kNoSpace);
    EXPECT_EQ(batch->task_status(7).error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(submit({request(448)}));
}

TEST_F(BatchTest, BadRequestsAreRefusedAsAWhole) {
    EXPECT_EQ(submit({request(0), Request{}}).has_value(), true) << "no bytes is fine";
    Request null = request(0);
    null.local = nullptr;
    EXPECT_EQ(submit({request(64), null}).error().code(), Code::kInvalidArgument);
    Request lost = request(0);
    lost.segment = 4711;
    EXPECT_EQ(submit({lost}).error().code(), Code::kNotFound);
    EXPECT_EQ(batch->task_status(2).error().code(), Code::kInvalidArgument);
    batch->wait();
}

TEST_F(BatchTest, RunsUntilTheTransportIsDone) {
    world.script.hold = true;
    ASSERT_TRUE(submit({request(0)}));
    EXPECT_EQ(state(0), TransferState::kWaiting);
    EXPECT_TRUE(batch->busy());
    world.script.release();
    batch->wait();
    EXPECT_EQ(state(0), TransferState::kCompleted);
}

TEST_F(BatchTest, OnlyWhatFailedIsMovedAgain) {
    std::atomic<int> slices{0};
    world.script.on_slice = [&](const Slice& slice) -> Result<> {
        const int now = ++slices;
        if (now == 2 && slice.local == local.data() + 1000) return fail(Code::kUnavailable, "reset");
        return {};
    };
    ASSERT_TRUE(submit({request(0), request(1000), request(2000)}));
    batch->wait();
    EXPECT_EQ(batch->status().state, TransferState::kCompleted);
    EXPECT_EQ(slices, 4);
}

TEST_F(BatchTest, AFailureThatStaysIsReportedPerTask) {
    world.script.on_slice = [&](const Slice& slice) -> Result<> {
        if (slice.local == local.data()) return fail(Code::kNotRegistered, "not yours");
        return {};
    };
    ASSERT_TRUE(submit({request(0), request(1000)}));
    batch->wait();
    EXPECT_EQ(state(0), TransferState::kFailed);
    EXPECT_EQ(state(1), TransferState::kCompleted);
    EXPECT_EQ(batch->status().state, TransferState::kFailed);
    EXPECT_NE(batch->status().error.to_string().find("not yours"), std::string::npos);
}

TEST_F(BatchTest, AnUnreachablePeerFailsTheBatchAndNotTheSubmit) {
    world.script.on_connect = [] { return Result<>(fail(Code::kUnavailable, "nobody")); };
    ASSERT_TRUE(submit({request(0)}));
    batch->wait();
    EXPECT_EQ(state(0), TransferState::kFailed);
}

TEST_F(BatchTest, TheDeadlineEndsItByItself) {
    world.script.hold = true;
    ASSERT_TRUE(submit({request(0)}, nullptr, 5ms));
    batch->wait();
    EXPECT_EQ(state(0), TransferState::kTimedOut);
    world.script.release();
    EXPECT_EQ(remote[0], std::byte{0});
}

TEST_F(BatchTest, CancelStopsWhatRunsAndOnlyThat) {
    ASSERT_TRUE(submit({request(0)}));
    batch->wait();
    world.script.hold = true;
    ASSERT_TRUE(submit({request(1000), request(2000)}));
    batch->cancel();
    EXPECT_FALSE(batch->busy());
    EXPECT_EQ(state(0), TransferState::kCompleted);
    EXPECT_EQ(state(1), TransferState::kCancelled);
    EXPECT_EQ(state(2), TransferState::kCancelled);
    world.script.release();
    EXPECT_EQ(remote[1000], std::byte{0});
    batch->cancel();
}

TEST_F(BatchTest, ACancelThatIsOnlyBegunWaitsForNobodyAndTellsItsEnd) {
    world.script.hold = true;
    ASSERT_TRUE(submit({request(0, 64, "a"), request(0, 64, "b")}));
    while (world.script.submits < 2) std::this_thread::yield();
    std::latch go(1), over(1);
    world.script.before_cancel = [&] { go.wait(); };  // would wait for ever, were it for us to stop them
    batch->on_done([&] { over.count_down(); });
    batch->begin_cancel();
    EXPECT_TRUE(batch->busy());
    go.count_down();
    over.wait();
    EXPECT_EQ(batch->status().state, TransferState::kCancelled);
    batch->begin_cancel();
    world.service.stop();  // before the latches go
}

TEST_F(BatchTest, ACancelThatNoThreadCanBeginIsDoneAtOnce) {
    world.script.hold = true;
    ASSERT_TRUE(submit({request(0)}));
    while (world.script.submits < 1) std::this_thread::yield();
    world.service.stop();
    batch->begin_cancel();
    EXPECT_FALSE(batch->busy());
    EXPECT_EQ(batch->status().state, TransferState::kCancelled);
}

TEST_F(BatchTest, ManyTasksAreStoppedInOnePassWhereThePeerCan) {
    ASSERT_TRUE(submit({request(0)}));  // connects
    batch->wait();
    world.script.hold = true;
    world.script.withdraws = true;
    ASSERT_TRUE(submit(std::vector<Request>(6, request(0))));
    {
        Lock lock(world.script.mutex);
        ASSERT_EQ(world.script.held.size(), 6u);
    }
    batch->cancel();
    EXPECT_FALSE(batch->busy());
    for (size_t i = 1; i <= 6; ++i) EXPECT_EQ(state(i), TransferState::kCancelled);
    EXPECT_EQ(world.script.cancels, 1) << "for what the attempt may have left at the peer";
}

TEST_F(BatchTest, CancelEndsWhatIsSubmittedAndNotYetStarted) {
    ASSERT_TRUE(world.session("peer").link(Deadline::after(60s)));  // so that submit() hands the first task over by itself
    world.script.hold = true;
    std::jthread canceller;
    world.script.before_submit = [&] {
        // The second task is in the batch, and its turn comes when we return.
        canceller = std::jthread([&] { batch->cancel(); });
        for (const Deadline end = Deadline::after(60s); state(1) == TransferState::kWaiting && !end.passed();) std::this_thread::yield();
    };
    ASSERT_TRUE(submit({request(0), request(1000, 64, "other")}));
    canceller.join();
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    for (const size_t task : {0, 1}) EXPECT_EQ(state(task), TransferState::kCancelled);
    EXPECT_EQ(world.script.submits, 1) << "the second was over before it began";
}

TEST_F(BatchTest, CancelRacesWithSubmitWithoutHarm) {
    for (int i = 0; i < 2000; ++i) {
        batch = std::make_shared<Batch>(world.core, 8);
        std::atomic<bool> ready{false};
        std::jthread canceller([&] {
            ready = true;
            while (!batch->busy()) std::this_thread::yield();
            batch->cancel();
        });
        while (!ready) std::this_thread::yield();
        world.script.hold = true;
        ASSERT_TRUE(submit({request(0), request(1000)}));
        canceller.join();
        batch->wait();
        for (const size_t task : {0, 1}) EXPECT_EQ(state(task), TransferState::kCancelled);
        const std::weak_ptr<Batch> weak = batch;
        batch.reset();
        while (!weak.expired()) std::this_thread::yield();  // by whoever had it last
    }
}

TEST_F(BatchTest, CancelRacesWithCompletionWithoutHarm) {
    for (int i = 0; i < 200; ++i) {
        batch = std::make_shared<Batch>(world.core, 8);
        world.script.hold = true;
        ASSERT_TRUE(submit({request(0), request(1000)}));
        std::jthread finisher([&] { world.script.release(); });
        std::jthread canceller([&] { batch->cancel(); });
        batch->wait();
        const TransferState first = state(0);
        EXPECT_TRUE(first == TransferState::kCompleted || first == TransferState::kCancelled);
    }
}

/// The first attempt of a write breaks; the next one tells when it connects, and waits for `go`.
void break_first_attempt(FakeWorld& world, std::latch& connecting, std::latch& go) {
    world.script.on_slice = [&world](const Slice&) -> Result<> {
        world.script.peers_usable = false;
        return fail(Code::kUnavailable, "reset");
    };
    world.script.on_connect = [&world, &connecting, &go]() -> Result<> {
        if (world.script.connects == 1) return {};
        connecting.count_down();
        go.wait();
        world.script.peers_usable = true;
        world.script.on_slice = nullptr;
        return {};
    };
}

TEST_F(BatchTest, AnAttemptThatIsAboutToStartWhenItIsStoppedDoesNot) {
    std::latch connecting(1), go(1);
    break_first_attempt(world, connecting, go);
    // stop() has seen that no attempt is under way; now the next one gets its link, and the thread that starts it runs to its end.
    world.script.before_cancel = [&] {
        go.count_down();
        world.service.stop();
    };
    ASSERT_TRUE(submit({request(0)}));
    connecting.wait();
    batch->cancel();
    EXPECT_EQ(world.script.connects, 2);
    EXPECT_EQ(world.script.submits, 1);
    EXPECT_EQ(remote[0], std::byte{0});
    EXPECT_EQ(state(0), TransferState::kCancelled);
    EXPECT_FALSE(batch->busy());
}

TEST_F(BatchTest, WhatIsStoppedWhileItIsSubmittedIsCancelledAfterwards) {
    ASSERT_TRUE(submit({request(0)}));  // connects
    ASSERT_TRUE(batch->wait());
    world.script.hold = true;
    std::jthread canceller;
    world.script.before_submit = [&] {
        canceller = std::jthread([this] { batch->cancel(); });
        // Time for a cancel that comes too early to show.
        const Deadline patience = Deadline::after(50ms);
        while (world.script.cancels == 0 && !patience.passed()) std::this_thread::yield();
    };
    ASSERT_TRUE(submit({request(1000)}));
    EXPECT_TRUE(batch->wait(Deadline::after(60s)));
    canceller.join();
    EXPECT_EQ(state(1), TransferState::kCancelled);
    EXPECT_EQ(world.script.cancels, 1);
}

TEST_F(BatchTest, AWriteStoppedBetweenAttemptsSaysWhetherItIsInDoubt) {
    for (const Stopped stopped : {Stopped::kEverywhere, Stopped::kRemoteInDoubt}) {
        std::latch connecting(1), go(1);
        FakeWorld other;
        break_first_attempt(other, connecting, go);
        other.script.on_cancel = stopped;
        auto written = std::make_shared<Batch>(other.core, 1);
        const Block block{.local = local.data(), .remote = reinterpret_cast<uint64_t>(remote.data()), .length = 64};
        ASSERT_TRUE(written->submit(*other.sessions->get("peer"), {}, Direction::kWrite, {&block, 1}, nullptr, Deadline::after(10s)));
        connecting.wait();
        written->cancel();
        const std::string text = written->status().error.to_string();
        EXPECT_EQ(text.find("in doubt") != std::string::npos, stopped == Stopped::kRemoteInDoubt) << text;
        EXPECT_EQ(text.find("nothing of it moves any more") != std::string::npos, stopped == Stopped::kEverywhere) << text;
        go.count_down();
    }
}

TEST_F(BatchTest, AWriteThatFindsNoSecondLinkSaysThatItIsInDoubt) {
    world.script.on_slice = [this](const Slice&) -> Result<> {
        world.script.peers_usable = false;
        return fail(Code::kUnavailable, "reset");
    };
    world.script.on_connect = [this]() -> Result<> { return world.script.connects == 1 ? Result<>() : fail(Code::kUnavailable, "nobody"); };
    ASSERT_TRUE(submit({request(0)}));
    ASSERT_TRUE(batch->wait());
    const std::string text = batch->status().error.to_string();
    EXPECT_NE(text.find("in doubt"), std::string::npos) << text;
}

TEST_F(BatchTest, APeerThatDoesNotAnswerKeepsNeitherTheSubmitterNorTheOthersWaiting) {
    std::latch go(1);
    std::atomic<bool> dead_asked{false};
    world.on_fetch = [&](const std::string& name) {
        if (name != "dead") return;
        dead_asked = true;
        go.wait();
    };
    ASSERT_TRUE(submit({request(0, 64, "dead"), request(1000, 64, "alive")}));
    while (state(1) != TransferState::kCompleted) std::this_thread::yield();
    EXPECT_EQ(state(0), TransferState::kWaiting);
    go.count_down();
    EXPECT_TRUE(batch->wait());
    EXPECT_TRUE(dead_asked);
    EXPECT_EQ(state(0), TransferState::kCompleted);
}

TEST_F(BatchTest, AllTasksOfABatchShareOneTimeForThePeersWord) {
    world.script.hold = true;
    batch = std::make_shared<Batch>(world.core, 1000);
    std::vector<Request> requests;
    for (size_t i = 0; i < 1000; ++i) requests.push_back(request(i, 1));
    ASSERT_TRUE(submit(requests));
    while (world.script.submits == 0) std::this_thread::yield();
    batch->cancel();
    EXPECT_EQ(world.script.cancels, 1000);
    EXPECT_EQ(world.script.cancel_deadlines.size(), 1u);
}

TEST_F(BatchTest, PeersThatDoNotAnswerAreStoppedTogether) {
    world.script.hold = true;
    std::vector<Request> requests;
    for (const char* const peer : {"a", "b", "c", "d"}) requests.push_back(request(0, 64, peer));
    ASSERT_TRUE(submit(requests));
    while (world.script.submits < 4) std::this_thread::yield();
    std::latch together(4);
    world.script.before_cancel = [&] { together.arrive_and_wait(); };  // would wait for ever, were they asked one after the other
    batch->cancel();
    EXPECT_EQ(batch->status().state, TransferState::kCancelled);
}

TEST_F(BatchTest, DeadlinesAndNotificationsDoNotWaitForPeersThatDoNotAnswer) {
    std::latch go(1);
    world.on_fetch = [&](const std::string& name) {
        if (name.starts_with("dead")) go.wait();
    };
    auto stuck = std::make_shared<Batch>(world.core, 16);
    std::vector<Request> requests;
    for (int i = 0; i < 16; ++i) requests.push_back(request(0, 64, ("dead" + std::to_string(i)).c_str()));
    ASSERT_TRUE(stuck->submit(requests, nullptr, [](uint64_t) { return Deadline::after(1h); }));
    const Notification notification{.name = "n", .message = "done"};
    ASSERT_TRUE(submit({request(0)}, &notification));
    EXPECT_EQ(world.notifications(1).size(), 1u);
    world.script.hold = true;
    ASSERT_TRUE(submit({request(64)}, nullptr, 5ms));
    ASSERT_TRUE(batch->wait());
    EXPECT_EQ(state(1), TransferState::kTimedOut);
    stuck->cancel();
    EXPECT_FALSE(stuck->busy());
    go.count_down();
    world.service.stop();  // before the latch goes
}

TEST_F(BatchTest, ARetryNeverGoesToAnotherLife) {
    world.script.on_slice = [this](const Slice&) -> Result<> {
        world.script.peers_usable = false;
        world.restart();
        return fail(Code::kUnavailable, "reset");
    };
    world.script.on_connect = [this]() -> Result<> {
        world.script.peers_usable = true;
        if (world.script.connects > 1) world.script.on_slice = nullptr;
        return {};
    };
    ASSERT_TRUE(submit({request(0)}));
    ASSERT_TRUE(batch->wait());
    EXPECT_EQ(state(0), TransferState::kFailed);
    EXPECT_EQ(batch->status().error.code(), Code::kStale) << batch->status().error.to_string();
    EXPECT_EQ(remote[0], std::byte{0});
    ASSERT_TRUE(submit({request(1000)}));
    ASSERT_TRUE(batch->wait());
    EXPECT_EQ(state(1), TransferState::kCompleted);
}

/// What a thread deals with that has nothing to do with ours.
Incarnation life_of_another_thread(Session& session, const std::function<void()>& what) {
    Incarnation life;
    std::jthread([&] {
        what();
        life = session.caller()->get();
    }).join();
    return life;
}

TEST_F(BatchTest, TheOutcomeTellsTheThreadThatAsksForItOfARestart) {
    Session& session = world.session("peer");
    ASSERT_TRUE(submit({request(0)}));
    ASSERT_TRUE(batch->wait());
    const Incarnation first = session.caller()->get();
    ASSERT_TRUE(first);
    world.restart();
    session.refresh();
    ASSERT_TRUE(submit({request(1000)}));
    ASSERT_TRUE(batch->wait());
    EXPECT_TRUE(batch->over());
    EXPECT_EQ(session.caller()->get(), first) << "it is over, and nobody has heard how";
    const auto look = [&](const std::function<void()>& at) {
        return life_of_another_thread(session, [&] {
            session.caller()->met(first);
            at();
        });
    };
    EXPECT_EQ(look([&] { EXPECT_EQ(state(0), TransferState::kCompleted); }), first) << "this one is well";
    EXPECT_FALSE(look([&] { EXPECT_EQ(state(1), TransferState::kFailed); }));
    EXPECT_FALSE(look([&] { EXPECT_EQ(batch->status().error.code(), Code::kStale); }));
    EXPECT_EQ(session.caller()->get(), first) << "others did";
    EXPECT_EQ(state(1), TransferState::kFailed);
    EXPECT_FALSE(session.caller()->get());
}

TEST_F(BatchTest, ASubmitIsRefusedAsAWholeWhereARestartIsKnownAndTellsWhoSubmits) {
    ASSERT_TRUE(submit({request(0), request(100, 64, "other")}));
    ASSERT_TRUE(batch->wait());
    world.restart();
    for (const char* name : {"peer", "other"}) {
        world.session(name).refresh();
        ASSERT_TRUE(world.session(name).link(Deadline::after(10s)));
    }
    const auto refused = submit(
        {request(1000), request(1100, 64, "other"), request(1200, 64, "peer", Direction::kRead), request(1300, 0, "third")});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kStale);
    EXPECT_NE(refused.error().message().find("peer"), std::string::npos);
    EXPECT_NE(refused.error().message().find("other"), std::string::npos);
    EXPECT_EQ(remote[1000], std::byte{0});
    EXPECT_EQ(batch->task_status(2).error().code(), Code::kInvalidArgument) << "there is no such task";
    ASSERT_TRUE(submit({request(1000), request(1100, 64, "other")})) << "told of both";
    ASSERT_TRUE(batch->wait());
    EXPECT_EQ(state(3), TransferState::kCompleted);
}

TEST_F(BatchTest, WhatHasNoBytesIsNotRefusedAfterARestart) {
    ASSERT_TRUE(submit({request(0)}));
    ASSERT_TRUE(batch->wait());
    world.restart();
    world.session("peer").refresh();
    ASSERT_TRUE(world.session("peer").link(Deadline::after(10s)));
    EXPECT_TRUE(submit({request(1000, 0)}));
    EXPECT_EQ(submit({request(1000)}).error().code(), Code::kStale) << "and that has told nobody";
}

TEST_F(BatchTest, SeveralSegmentsAndDirectionsMayShareABatch) {
    remote[1000] = std::byte{9};
    ASSERT_TRUE(submit({request(0), request(1000, 1, "other", Direction::kRead)}));
    batch->wait();
    EXPECT_EQ(batch->status().state, TransferState::kCompleted);
    EXPECT_EQ(local[1000], std::byte{9});
    EXPECT_EQ(remote[0], std::byte{1});
}

TEST_F(BatchTest, TheNotificationFollowsTheWholeBatchWithoutPolling) {
    world.script.hold = true;
    const Notification notification{.name = "n", .message = "done"};
    ASSERT_TRUE(submit({request(0)}, &notification));
    {
        Lock lock(world.mutex);
        EXPECT_TRUE(world.notified.empty());
    }
    world.script.release();
    const auto sent = world.notifications(1);
    EXPECT_EQ(sent[0].name, "peer/n");
    EXPECT_EQ(sent[0].message, "done");
}

TEST_F(BatchTest, ANotificationIsForTheLifeThatHasTheBytes) {
    const Notification notification{.name = "n", .message = "done"};
    world.script.hold = true;
    ASSERT_TRUE(submit({request(0), request(1000, 64, "other")}, &notification));
    for (const Deadline patience = Deadline::after(60s); world.script.submits < 2 && !patience.passed();) std::this_thread::yield();
    const Incarnation life = world.session("peer").life();
    ASSERT_TRUE(life);
    world.restart();
    world.session("peer").refresh();
    ASSERT_TRUE(world.session("peer").open(Deadline::after(60s)));
    EXPECT_NE(world.session("peer").life(), life);
    world.script.release();
    world.notifications(1);
    ASSERT_TRUE(submit({request(0, 0)}, &notification));
    world.notifications(2);
    Lock lock(world.mutex);
    EXPECT_EQ(world.notified_lives[0], life);
    EXPECT_FALSE(world.notified_lives[1]) << "no bytes, no life";
}

TEST_F(BatchTest, AFailedBatchNotifiesNobody) {
    world.script.on_slice = [](const Slice&) { return Result<>(fail(Code::kNotRegistered, "no")); };
    const Notification notification{.name = "n", .message = "done"};
    ASSERT_TRUE(submit({request(0)}, &notification));
    batch->wait();
    world.service.stop();
    EXPECT_TRUE(world.notified.empty());
}

TEST_F(BatchTest, CallbacksRunOnceWhenItIsOver) {
    std::atomic<int> called{0};
    world.script.hold = true;
    ASSERT_TRUE(submit({request(0)}));
    batch->on_done([&] {
        ++called;
        called.notify_all();
    });
    EXPECT_EQ(called, 0);
    world.script.release();
    batch->wait();
    called.wait(0);  // by the thread that ended it, which is not the one that waits
    batch->on_done([&] { ++called; });
    EXPECT_EQ(called, 2) << "at once when it is over already";
    batch->wait();
    world.service.stop();
    EXPECT_EQ(called, 2);
}

TEST(BatchTable, IdsAreNeverZeroNorAllOnesNorReusedSoon) {
    FakeWorld world;
    BatchTable table;
    std::vector<BatchId> seen;
    for (int i = 0; i < 5000; ++i) {
        const BatchId id = table.add(std::make_shared<Batch>(world.core, 1)).value();
        EXPECT_NE(id, 0u);
        EXPECT_NE(id, UINT64_MAX);
        seen.push_back(id);
        ASSERT_TRUE(table.remove(id));
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST(BatchTable, InventedAndFreedIdsAreRefused) {
    FakeWorld world;
    BatchTable table;
    const BatchId id = table.add(std::make_shared<Batch>(world.core, 1)).value();
    for (const BatchId wrong : {BatchId{0}, BatchId{1}, UINT64_MAX, id + 1, id ^ (uint64_t{1} << 40)}) {
        EXPECT_EQ(table.get(wrong).error().code(), Code::kNotFound);
        EXPECT_EQ(table.remove(wrong).error().code(), Code::kNotFound);
    }
    ASSERT_TRUE(table.remove(id));
    EXPECT_EQ(table.get(id).error().code(), Code::kNotFound);
    EXPECT_EQ(table.remove(id).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace mooncake
