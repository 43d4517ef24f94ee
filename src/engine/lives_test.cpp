// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "engine/engine.h"

namespace mooncake {
namespace {

/// Engines that meet over tcp, as on several hosts; `port` 0: any.
std::unique_ptr<Engine> make_engine(uint16_t port = 0) {
    EngineConfig config{.local_name = "127.0.0.1:" + std::to_string(port), .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
    config.options.transports = {"tcp"};
    config.options.legacy_port_binding = port != 0;
    auto engine = Engine::create(std::move(config));
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
    return engine ? std::move(*engine) : nullptr;
}

Deadline soon() { return Deadline::after(60s); }

/// A thread that calls what it is given, one thing after the other: somebody else who uses the same engine.
class Caller {
public:
    Code call(const std::function<Code()>& what) {
        std::packaged_task<Code()> task(what);
        auto answer = task.get_future();
        next_.set_value(std::move(task));
        return answer.get();
    }
    ~Caller() { next_.set_value({}); }

private:
    void run() {
        for (;;) {
            auto task = next_.get_future().get();
            next_ = {};
            if (!task.valid()) return;
            task();
        }
    }

    std::promise<std::packaged_task<Code()>> next_;
    std::jthread thread_{[this] { run(); }};
};

class LivesTest : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_TRUE(ours);
        ASSERT_TRUE(theirs);
        ASSERT_TRUE(ours->register_memory(local.data(), local.size()));
        ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    }
    Block block(uint64_t length = 4096) {
        return {.local = local.data(), .remote = reinterpret_cast<uint64_t>(far.data()), .length = length};
    }
    Result<uint64_t> write(const std::string& peer, uint64_t length = 4096) {
        const Block one = block(length);
        return ours->transfer(peer, Direction::kWrite, {&one, 1}, soon());
    }
    Code write_code() {
        const auto moved = write(name);
        return moved ? Code::kOk : moved.error().code();
    }
    /// For a moment it is remembered that nobody was there.
    Code write_once_it_is_back() {
        Code code = write_code();
        while (code == Code::kUnavailable) code = write_code();
        return code;
    }
    /// The batch that was submitted, or how that failed.
    Result<BatchId> submit() {
        const Request request{.direction = Direction::kWrite,
                              .local = local.data(),
                              .segment = segment,
                              .remote = reinterpret_cast<uint64_t>(far.data()),
                              .length = 4096};
        const BatchId batch = ours->allocate_batch(1).value();
        if (auto submitted = ours->submit(batch, {&request, 1}); !submitted) {
            EXPECT_TRUE(ours->free_batch(batch));
            return Unexpected(std::move(submitted).error());
        }
        return batch;
    }
    /// How a batch ended, as the calling thread is told.
    Code outcome(BatchId batch) {
        const auto status = ours->wait_batch(batch).value();
        EXPECT_TRUE(ours->free_batch(batch));
        return status.state == TransferState::kCompleted ? Code::kOk : status.error.code();
    }
    Code submit_code() {
        const auto batch = submit();
        return batch ? outcome(*batch) : batch.error().code();
    }
    /// Submits and does not look at what became of it before that is over.
    BatchId submit_blindly() {
        const BatchId batch = submit().value();
        std::promise<void> over;
        EXPECT_TRUE(ours->on_batch_done(batch, [&] { over.set_value(); }));
        over.get_future().wait();
        return batch;
    }
    void stop_peer() {
        port = theirs->rpc_port();
        theirs.reset();
    }
    /// Ends the peer and starts another one in its place, with other contents at the same address.
    void restart() {
        if (theirs) stop_peer();
        std::fill(far.begin(), far.end(), std::byte{0xee});
        theirs = make_engine(port);
        ASSERT_TRUE(theirs);
        ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
    }

    std::vector<std::byte> local = std::vector<std::byte>(8 << 20, std::byte{0x77}), far = std::vector<std::byte>(8 << 20);
    std::unique_ptr<Engine> ours = make_engine(), theirs = make_engine();
    const std::string name = theirs->segment_name();
    uint16_t port = 0;
    SegmentId segment = -1;
};

TEST_F(LivesTest, TheFirstTransferAfterARestartFailsAndTheNextOneIsBelieved) {
    ASSERT_TRUE(write(name));
    restart();
    const auto moved = write(name);
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), Code::kStale) << moved.error().to_string();
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_TRUE(write(name));
    EXPECT_EQ(far[0], std::byte{0x77});
}

TEST_F(LivesTest, AFailureThatOneCallerSawIsNoNewsForAnother) {
    Caller other;
    ASSERT_EQ(write_code(), Code::kOk);
    ASSERT_EQ(other.call([&] { return write_code(); }), Code::kOk);
    stop_peer();
    ASSERT_NE(write_code(), Code::kOk) << "we are told that it is gone";
    restart();
    EXPECT_EQ(other.call([&] { return write_once_it_is_back(); }), Code::kStale);
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_EQ(write_code(), Code::kStale) << "that it was gone does not say that it is another one now";
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_EQ(write_code(), Code::kOk);
    EXPECT_EQ(other.call([&] { return write_code(); }), Code::kOk);
}

TEST_F(LivesTest, EachCallerIsToldOfARestartOnce) {
    Caller other, late;
    ASSERT_EQ(write_code(), Code::kOk);
    ASSERT_EQ(other.call([&] { return write_code(); }), Code::kOk);
    for (int round = 0; round < 3; ++round) {
        restart();
        EXPECT_EQ(write_code(), Code::kStale);
        EXPECT_EQ(write_code(), Code::kOk);
        std::fill(far.begin(), far.end(), std::byte{0xee});
        EXPECT_EQ(other.call([&] { return write_code(); }), Code::kStale);
        EXPECT_EQ(far[0], std::byte{0xee});
        EXPECT_EQ(other.call([&] { return write_code(); }), Code::kOk);
    }
    EXPECT_EQ(late.call([&] { return write_code(); }), Code::kOk) << "it never dealt with a former life";
}

TEST_F(LivesTest, WhoSubmitsIsToldOfARestartOnce) {
    Caller other;
    segment = ours->open_segment(name, soon()).value();
    ASSERT_EQ(submit_code(), Code::kOk);
    ASSERT_EQ(other.call([&] { return submit_code(); }), Code::kOk);
    restart();
    EXPECT_EQ(submit_code(), Code::kStale);
    EXPECT_EQ(submit_code(), Code::kOk);
    std::fill(far.begin(), far.end(), std::byte{0xee});
    EXPECT_EQ(other.call([&] { return submit_code(); }), Code::kStale);
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_EQ(other.call([&] { return submit_code(); }), Code::kOk);
}

TEST_F(LivesTest, WhoAsksForAddressesAgainIsNotRefusedAndExcusesNobodyElse) {
    Caller other;
    ASSERT_EQ(write_code(), Code::kOk);
    ASSERT_EQ(other.call([&] { return write_code(); }), Code::kOk);
    restart();
    auto described = ours->describe(name, 1, soon());
    if (!described) described = ours->describe(name, 1, soon());  // the connection of the former life may end the first one
    ASSERT_TRUE(described) << described.error().to_string();
    EXPECT_EQ(write_code(), Code::kOk);
    EXPECT_EQ(other.call([&] { return write_code(); }), Code::kStale);
}

TEST_F(LivesTest, WhoAsksForAddressesAgainIsNotRefusedWhereTheFormerLifeWasOpened) {
    Caller other;
    ASSERT_TRUE(ours->open_segment(name, soon()));
    ASSERT_EQ(write_code(), Code::kOk);
    ASSERT_EQ(other.call([&] { return write_code(); }), Code::kOk);
    restart();
    auto described = ours->describe(name, 1, soon());
    if (!described) described = ours->describe(name, 1, soon());
    ASSERT_TRUE(described) << described.error().to_string();
    EXPECT_EQ(write_code(), Code::kOk);
    EXPECT_EQ(other.call([&] { return write_code(); }), Code::kStale);
}

TEST_F(LivesTest, WhoLooksAtABatchIsToldAndNotWhoSubmittedIt) {
    Caller submitter;
    segment = ours->open_segment(name, soon()).value();
    ASSERT_EQ(write_code(), Code::kOk);
    ASSERT_EQ(submitter.call([&] { return submit_code(); }), Code::kOk);
    restart();
    BatchId batch = 0;
    ASSERT_EQ(submitter.call([&] {
        batch = submit_blindly();
        return Code::kOk;
    }),
              Code::kOk);
    EXPECT_EQ(outcome(batch), Code::kStale);
    EXPECT_EQ(submitter.call([&] { return submit_code(); }), Code::kStale) << "it was told nothing so far";
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_EQ(submitter.call([&] { return submit_code(); }), Code::kOk) << "now it was";
    EXPECT_EQ(write_code(), Code::kOk) << "as were we";
}

TEST_F(LivesTest, WhoSubmitsWithoutALookIsToldByTheNextSubmit) {
    segment = ours->open_segment(name, soon()).value();
    ASSERT_EQ(submit_code(), Code::kOk);
    restart();
    const BatchId first = submit_blindly();
    const auto second = submit();
    ASSERT_FALSE(second) << "these are addresses of the former life, too";
    EXPECT_EQ(second.error().code(), Code::kStale) << second.error().to_string();
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_EQ(submit_code(), Code::kOk);
    EXPECT_EQ(outcome(first), Code::kStale);
    EXPECT_EQ(submit_code(), Code::kOk) << "that was no news any more";
}

TEST_F(LivesTest, AResultThatNobodySawTellsNobody) {
    segment = ours->open_segment(name, soon()).value();
    ASSERT_EQ(submit_code(), Code::kOk);
    restart();
    const BatchId batch = submit_blindly();
    EXPECT_TRUE(ours->await_batch(batch).value());
    EXPECT_TRUE(ours->free_batch(batch));
    EXPECT_EQ(write_code(), Code::kStale);
    EXPECT_EQ(far[0], std::byte{0xee});
}

TEST_F(LivesTest, ASubmitThatLeavesConnectingToTheBatchIsForTheLifeOfItsThread) {
    Caller other;
    const Block one = block();
    const auto post = [&] {
        const auto batch = ours->submit(name, Direction::kWrite, {&one, 1}, nullptr, {}, Connect::kMeanwhile);
        return batch ? outcome(*batch) : batch.error().code();
    };
    ASSERT_EQ(post(), Code::kOk) << "the first contact of all";
    ASSERT_EQ(other.call(post), Code::kOk);
    restart();
    ASSERT_EQ(other.call(post), Code::kStale);
    ASSERT_EQ(other.call(post), Code::kOk);
    std::fill(far.begin(), far.end(), std::byte{0xee});
    ASSERT_TRUE(ours->refresh_segment("", soon()));  // so that there is no connection to be used at once
    EXPECT_EQ(post(), Code::kStale);
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_EQ(post(), Code::kOk);
}

TEST_F(LivesTest, ConnectingTellsNobody) {
    ASSERT_EQ(write_code(), Code::kOk);
    restart();
    for (const Deadline deadline = soon(); ours->connected(name) && !deadline.passed();) std::this_thread::yield();
    ASSERT_TRUE(ours->connect_segment(name, soon()));
    EXPECT_TRUE(ours->connected(name));
    EXPECT_EQ(write_code(), Code::kStale);
    EXPECT_EQ(far[0], std::byte{0xee});
}

TEST_F(LivesTest, APlanTellsWhoRunsItAndNotWhoMadeIt) {
    Caller other;
    const Block one = block();
    ASSERT_EQ(write_code(), Code::kOk);
    const auto plan = ours->prepare(name, {&one, 1}).value();
    const auto run = [&](PreparedTransfer& it) {
        const auto moved = it.run(Direction::kWrite);
        return moved ? Code::kOk : moved.error().code();
    };
    ASSERT_EQ(other.call([&] { return run(*plan); }), Code::kOk);
    restart();
    EXPECT_EQ(other.call([&] { return run(*plan); }), Code::kStale);
    EXPECT_EQ(write_code(), Code::kStale) << "its maker was told nothing so far";
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_EQ(run(*ours->prepare(name, {&one, 1}).value()), Code::kOk);
    EXPECT_EQ(other.call([&] { return write_code(); }), Code::kOk) << "it was told as well, by the plan";
}

TEST_F(LivesTest, ASubmittedPlanTellsWhoSubmitsIt) {
    Caller other;
    const Block one = block();
    const auto plan = ours->prepare(name, {&one, 1}).value();
    const auto submit_plan = [&] {
        const auto batch = plan->submit(Direction::kWrite);
        return batch ? outcome(*batch) : batch.error().code();
    };
    ASSERT_EQ(other.call(submit_plan), Code::kOk) << "made before there was any contact";
    restart();
    EXPECT_EQ(other.call(submit_plan), Code::kStale);
    EXPECT_EQ(other.call([&] { return write_code(); }), Code::kOk);
    std::fill(far.begin(), far.end(), std::byte{0xee});
    EXPECT_EQ(write_code(), Code::kStale) << "its maker has addresses of the life that the plan was for";
    EXPECT_EQ(far[0], std::byte{0xee});
}

TEST_F(LivesTest, WhoPreparesDealsWithTheLifeThePlanIsFor) {
    Caller other;
    const Block one = block();
    ASSERT_EQ(other.call([&] { return write_code(); }), Code::kOk);
    const auto plan = ours->prepare(name, {&one, 1}).value();
    restart();
    ASSERT_EQ(other.call([&] { return write_code(); }), Code::kStale);
    EXPECT_EQ(write_code(), Code::kStale) << "never run, but made with addresses of the former life";
    EXPECT_EQ(far[0], std::byte{0xee});
}

TEST_F(LivesTest, APlanIsMadeAnewByWhoeverMadeItAlthoughAnotherRanIt) {
    Caller other;
    const Block one = block();
    ASSERT_EQ(write_code(), Code::kOk);
    const auto plan = ours->prepare(name, {&one, 1}).value();
    const auto run = [&](PreparedTransfer& it) {
        const auto moved = it.run(Direction::kWrite);
        return moved ? Code::kOk : moved.error().code();
    };
    ASSERT_EQ(other.call([&] { return run(*plan); }), Code::kOk);
    restart();
    ASSERT_EQ(other.call([&] { return write_code(); }), Code::kStale) << "who never wrote by itself is told as one of all";
    const auto late = ours->prepare(name, {&one, 1}).value();
    EXPECT_EQ(run(*late), Code::kStale) << "its maker has heard nothing: these may be old addresses";
    EXPECT_EQ(other.call([&] { return run(*plan); }), Code::kStale);
    EXPECT_EQ(run(*ours->prepare(name, {&one, 1}).value()), Code::kOk);
}

TEST_F(LivesTest, WhoOpensTheSegmentAgainIsNotRefused) {
    ASSERT_TRUE(write(name));
    restart();
    // Opening asks nobody while the link seems to be well, so the end of the former life must have been heard.
    for (const Deadline deadline = soon(); ours->connected(name) && !deadline.passed();) std::this_thread::yield();
    ASSERT_TRUE(ours->open_segment(name, soon()));
    EXPECT_TRUE(write(name));
    restart();
    ASSERT_TRUE(ours->refresh_segment(name, soon()));
    EXPECT_TRUE(write(name));
}

TEST_F(LivesTest, ANotificationFindsTheNextLifeAndExcusesNobody) {
    ASSERT_TRUE(write(name));
    restart();
    // The connection of the former life may end the first one.
    auto sent = ours->send_notification(name, {.name = "n", .message = "m"}, soon());
    if (!sent) sent = ours->send_notification(name, {.name = "n", .message = "m"}, soon());
    EXPECT_TRUE(sent) << sent.error().to_string();
    EXPECT_EQ(write(name).error().code(), Code::kStale);
    EXPECT_EQ(far[0], std::byte{0xee});
}

TEST_F(LivesTest, APlanIsForOneLife) {
    const Block one = block();
    const auto plan = ours->prepare(name, {&one, 1}).value();
    ASSERT_TRUE(plan->run(Direction::kWrite));
    restart();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(plan->run(Direction::kWrite).error().code(), Code::kStale);
    EXPECT_EQ(plan->submit(Direction::kWrite).error().code(), Code::kStale);
    EXPECT_EQ(far[0], std::byte{0xee});
    EXPECT_TRUE(ours->prepare(name, {&one, 1}).value()->run(Direction::kWrite)) << "prepared again";
}

TEST_F(LivesTest, TwoNamesOfOnePeerDoNotDisturbEachOther) {
    const std::string alias = "localhost:" + std::to_string(theirs->rpc_port());
    std::atomic<int> failed{0};
    std::vector<std::jthread> threads;
    for (const std::string& by : {name, alias})
        threads.emplace_back([&, by] {
            for (int i = 0; i < 100; ++i) failed += !write(by, local.size());
        });
    threads.clear();
    EXPECT_EQ(failed, 0);
}

TEST_F(LivesTest, RefreshingDoesNotDisturbTransfersUnderWay) {
    ASSERT_TRUE(write(name));
    std::atomic<bool> over{false};
    std::jthread refresher([&] {
        while (!over) EXPECT_TRUE(ours->refresh_segment(name, soon()));
    });
    int failed = 0;
    for (int i = 0; i < 50; ++i) failed += !write(name, local.size());
    over = true;
    EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace mooncake
