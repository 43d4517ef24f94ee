// SPDX-License-Identifier: Apache-2.0
// What finds no memory on its way into the engine is an error, and nothing of it moves.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/testing/fake_world.h"
#include "transport/testing/no_memory.h"

namespace mooncake {
namespace {

using testing::FakeWorld;
using testing::kCannotFailNew;
using testing::NoMemory;
using testing::NoMemoryHere;

/// Two engines of one process.
class NoMemoryTest : public ::testing::Test {
protected:
    void SetUp() override {
        if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
        ASSERT_TRUE(ours);
        ASSERT_TRUE(theirs);
        ASSERT_TRUE(ours->register_memory(local.data(), local.size()));
        ASSERT_TRUE(theirs->register_memory(far.data(), far.size()));
        ASSERT_TRUE(ours->transfer(name, Direction::kWrite, {&block, 1}, Deadline::after(60s)));
    }
    static std::unique_ptr<Engine> make_engine() {
        EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
        auto engine = Engine::create(std::move(config));
        EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
        return engine ? std::move(*engine) : nullptr;
    }
    /// Whatever the n-th allocation is for: it is submitted as a whole, or nothing of it moves.
    template <typename Submit>
    void expect_all_or_nothing(const Submit& submit) {
        bool submitted = false;
        for (int spared = 0; !submitted; ++spared) {
            ASSERT_LT(spared, 10'000);
            const auto mark = static_cast<std::byte>(spared % 100 + 1);
            std::fill(local.begin(), local.end(), mark);
            std::optional<Result<BatchId>> batch;
            bool refused = false;
            {
                const NoMemoryHere none(spared);
                try {
                    batch.emplace(submit());
                } catch (const std::bad_alloc&) {}
                refused = NoMemoryHere::refused();
            }
            if (!batch || !*batch) {
                ASSERT_TRUE(refused);
                // Whatever ran all the same would be over once this one is, which comes behind it on the same way.
                ASSERT_TRUE(ours->transfer(name, Direction::kRead, {&behind, 1}, Deadline::after(60s)));
                ASSERT_NE(far[0], mark) << "with " << spared << " allocations";
                continue;
            }
            // It may have found no memory after it was taken; then that is how it ends.
            const auto status = ours->wait_batch(**batch, Deadline::after(60s));
            ASSERT_TRUE(status);
            submitted = status->state == TransferState::kCompleted;
            ASSERT_TRUE(submitted || status->state == TransferState::kFailed) << spared;
            ASSERT_EQ(far[0] == mark, submitted);
            ASSERT_TRUE(ours->free_batch(**batch));
            submitted = submitted && !refused;
        }
    }

    std::vector<std::byte> local = std::vector<std::byte>(8192), far = std::vector<std::byte>(8192);
    std::unique_ptr<Engine> ours = make_engine(), theirs = make_engine();
    const std::string name = theirs ? theirs->segment_name() : "";
    const Block block{.local = local.data(), .remote = reinterpret_cast<uint64_t>(far.data()), .length = 4096};
    const Block behind{.local = local.data() + 4096, .remote = reinterpret_cast<uint64_t>(far.data() + 4096), .length = 4096};
};

TEST_F(NoMemoryTest, ABatchThatGetsNoIdDoesNotRun) {
    expect_all_or_nothing([this] { return ours->submit(name, Direction::kWrite, {&block, 1}, nullptr); });
}

TEST_F(NoMemoryTest, APostOfAPlanThatGetsNoIdDoesNotRun) {
    const auto plan = ours->prepare(name, {&block, 1}).value();
    expect_all_or_nothing([&] { return plan->submit(Direction::kWrite); });
}

TEST_F(NoMemoryTest, APlanIsRunAgainAfterARunThatFoundNone) {
    const auto plan = ours->prepare(name, {&block, 1}).value();
    bool refused = true;
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, 10'000);
        {
            const NoMemoryHere none(spared, 1);
            try {
                (void)plan->run(Direction::kWrite);
            } catch (const std::bad_alloc&) {}
            refused = NoMemoryHere::refused();
        }
        const auto mark = static_cast<std::byte>(spared % 100 + 1);
        std::fill(local.begin(), local.end(), mark);
        const auto moved = plan->run(Direction::kWrite);
        ASSERT_TRUE(moved) << spared << ": " << moved.error().to_string();
        ASSERT_EQ(far[0], mark);
    }
}

TEST(BatchNoMemory, AllRequestsAreTakenOrNone) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    FakeWorld world;
    std::vector<std::byte> local(4096, std::byte{1}), remote(4096);
    std::vector<Request> requests;
    for (const char* const segment : {"a", "b", "a"})
        requests.push_back({.direction = Direction::kWrite,
                            .local = local.data() + requests.size() * 64,
                            .segment = world.id(segment),
                            .remote = reinterpret_cast<uint64_t>(remote.data() + requests.size() * 64),
                            .length = 64});
    const Notification notification{.name = std::string(100, 'n'), .message = std::string(100, 'm')};
    bool whole = false;
    for (int spared = 0; !whole; ++spared) {
        ASSERT_LT(spared, 10'000);
        std::fill(remote.begin(), remote.end(), std::byte{0});
        const auto batch = std::make_shared<Batch>(world.core, 3);
        const std::function<Deadline(uint64_t)> deadline = [](uint64_t) { return Deadline::after(60s); };
        std::optional<Result<>> submitted;
        bool refused = false;
        {
            const NoMemoryHere none(spared);
            submitted.emplace(batch->submit(requests, &notification, deadline));
            refused = NoMemoryHere::refused();
        }
        ASSERT_TRUE(batch->wait(Deadline::after(60s)));
        if (!*submitted) {
            ASSERT_TRUE(refused);
            EXPECT_FALSE(batch->task_status(0)) << "no task of it is there";
            EXPECT_EQ(std::count(remote.begin(), remote.end(), std::byte{1}), 0) << "with " << spared << " allocations";
            // There is room for all of them, as before.
            ASSERT_TRUE(batch->submit(requests, nullptr, deadline));
            ASSERT_TRUE(batch->wait(Deadline::after(60s)));
            EXPECT_EQ(batch->status().state, TransferState::kCompleted);
            continue;
        }
        for (size_t i = 0; i < requests.size(); ++i)
            ASSERT_EQ(batch->task_status(i)->state == TransferState::kCompleted, remote[i * 64] == std::byte{1}) << spared << " " << i;
        whole = batch->status().state == TransferState::kCompleted && !refused;
    }
}

TEST(BatchNoMemory, ADeadlineIsKeptAlsoIfThereWasNoneWhenItPassed) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    FakeWorld world;
    world.script.hold = true;
    std::vector<std::byte> local(64), remote(64);
    const Request request{.direction = Direction::kWrite,
                          .local = local.data(),
                          .segment = world.id("a"),
                          .remote = reinterpret_cast<uint64_t>(remote.data()),
                          .length = 64};
    ASSERT_TRUE(world.core.sessions->get("a").value()->link(Deadline::after(60s)));
    const auto batch = std::make_shared<Batch>(world.core, 1);
    {
        const NoMemory none;  // for the threads that are to stop it
        ASSERT_TRUE(batch->submit({&request, 1}, nullptr, [](uint64_t) { return Deadline::after(1ms); }));
        while (NoMemory::refused() == 0) std::this_thread::yield();
    }
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(batch->status().state, TransferState::kTimedOut);
}

}  // namespace
}  // namespace mooncake
