// SPDX-License-Identifier: Apache-2.0
#include "base/completion.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

constexpr Duration kHang = 60s;  // only a bound against hangs

TEST(Completion, IsDoneBeforeAnythingIsAnnounced) {
    Completion completion;
    EXPECT_TRUE(completion.done());
    EXPECT_TRUE(completion.wait(Deadline::after(0s)));
    EXPECT_EQ(completion.result().value(), 0u);
}

TEST(Completion, CountsOperationsAndAddsUpTheirBytes) {
    Completion completion;
    completion.add(3);
    completion.succeed(10);
    EXPECT_FALSE(completion.done());
    EXPECT_EQ(completion.pending(), 2u);
    completion.succeed(5, 2);
    EXPECT_TRUE(completion.done());
    EXPECT_EQ(completion.result().value(), 15u);
}

TEST(Completion, ReportsTheFirstErrorAndNoLaterOne) {
    Completion completion;
    completion.add(3);
    completion.fail(error(Code::kStale, "first"));
    EXPECT_TRUE(completion.failed());
    EXPECT_FALSE(completion.done());
    completion.succeed(1);
    completion.fail(error(Code::kBusy, "second"));
    const auto result = completion.result();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kStale);
    EXPECT_EQ(result.error().message(), "first");
}

TEST(Completion, KeepsOneWholeErrorWhenManyThreadsFailAtOnce) {
    for (int round = 0; round < 50; ++round) {
        Completion completion;
        constexpr uint32_t kThreads = 8;
        completion.add(kThreads);
        std::vector<std::jthread> threads;
        for (uint32_t t = 0; t < kThreads; ++t)
            threads.emplace_back([&completion, t] { completion.fail(error(Code::kUnavailable, "{0}{0}{0}{0}{0}{0}{0}{0}", t * 11111)); });
        ASSERT_TRUE(completion.wait(Deadline::after(kHang)));
        const std::string text = completion.result().error().message();
        ASSERT_EQ(text.substr(0, text.size() / 8), text.substr(text.size() / 8, text.size() / 8));
    }
}

TEST(Completion, WaitEndsAtTheDeadlineAndCancelsNothing) {
    Completion completion;
    completion.add(1);
    EXPECT_FALSE(completion.wait(Deadline::after(2ms)));
    EXPECT_FALSE(completion.wait(Deadline::after(0s), 0s));
    EXPECT_EQ(completion.pending(), 1u);
    completion.succeed(1);
    EXPECT_TRUE(completion.wait(Deadline::after(0s)));
}

TEST(Completion, WakesEverySleepingWaiter) {
    Completion completion;
    completion.add(1);
    std::atomic<int> awake{0};
    {
        std::vector<std::jthread> waiters;
        for (int i = 0; i < 4; ++i) waiters.emplace_back([&] { awake += completion.wait(Deadline::after(kHang), 0s); });
        completion.succeed(1);
    }
    EXPECT_EQ(awake, 4);
}

TEST(Completion, MayBeDestroyedAsSoonAsItIsSeenDone) {
    // Run under the sanitizers this proves that the finishing thread touches nothing afterwards.
    for (int round = 0; round < 2000; ++round) {
        auto completion = std::make_unique<Completion>();
        completion->add(2);
        Completion* const raw = completion.get();
        std::jthread one([raw] { raw->succeed(1); });
        std::jthread two([raw] { raw->fail(error(Code::kBusy, "x")); });
        ASSERT_TRUE(raw->wait(Deadline::after(kHang), round % 2 ? Duration(0s) : Completion::kDefaultSpin));
        completion.reset();
    }
}

TEST(Completion, CanBeUsedAgainAfterReset) {
    Completion completion;
    completion.add(1);
    completion.fail(error(Code::kBusy, "old"));
    completion.reset();
    EXPECT_FALSE(completion.failed());
    completion.add(1);
    EXPECT_FALSE(completion.done());
    completion.succeed(4);
    EXPECT_EQ(completion.result().value(), 4u);
}

TEST(Completion, FinishingNoOperationsChangesNothing) {
    struct Hook final : CompletionHook {
        void on_done(Completion&) noexcept override { ++calls; }
        int calls = 0;
    } hook;
    Completion completion(nullptr, &hook);
    completion.succeed(0, 0);
    EXPECT_EQ(hook.calls, 0);
}

TEST(Completion, PartsReportToTheirParentOnce) {
    Completion parent;
    parent.add(2);
    Completion good(&parent), bad(&parent);
    good.add(2);
    bad.add(1);
    good.succeed(3);
    good.succeed(4);
    EXPECT_EQ(parent.pending(), 1u);
    EXPECT_EQ(parent.bytes(), 7u);
    bad.fail(error(Code::kCorrupt, "checksum"));
    ASSERT_TRUE(parent.done());
    EXPECT_EQ(parent.result().error().code(), Code::kCorrupt);
    EXPECT_EQ(bad.result().error().message(), "checksum");
}

TEST(Completion, TellsTheHookOnceAfterTheLastOperationAndBeforeTheParent) {
    struct Hook final : CompletionHook {
        void on_done(Completion& completion) noexcept override {
            ++calls;
            done_seen = completion.done();
            parent_open = !parent->done();
        }
        Completion* parent = nullptr;
        int calls = 0;
        bool done_seen = false, parent_open = false;
    } hook;
    Completion parent;
    hook.parent = &parent;
    parent.add(1);
    Completion part(&parent, &hook);
    part.add(2);
    part.succeed(1);
    EXPECT_EQ(hook.calls, 0);
    part.succeed(1);
    EXPECT_EQ(hook.calls, 1);
    EXPECT_TRUE(hook.done_seen);
    EXPECT_TRUE(hook.parent_open);
    EXPECT_TRUE(parent.done());
}

TEST(Completion, AHookMayDestroyThePartThatCalledIt) {
    struct Hook final : CompletionHook {
        void on_done(Completion&) noexcept override { owned.reset(); }
        std::unique_ptr<Completion> owned;
    } hook;
    Completion parent;
    parent.add(1);
    hook.owned = std::make_unique<Completion>(&parent, &hook);
    hook.owned->add(1);
    hook.owned->fail(error(Code::kBusy, "a message long enough to live on the heap, not inside the string"));
    EXPECT_EQ(parent.result().error().code(), Code::kBusy);
}

TEST(Completion, PartsAndParentMayAllGoWhenTheParentIsDone) {
    struct Tree {
        Completion parent;
        Completion parts[4] = {Completion(&parent), Completion(&parent), Completion(&parent), Completion(&parent)};
    };
    for (int round = 0; round < 300; ++round) {
        auto tree = std::make_unique<Tree>();
        tree->parent.add(4);
        for (Completion& part : tree->parts) part.add(1);
        std::vector<std::jthread> threads;
        for (Completion& part : tree->parts)
            threads.emplace_back([&part, round] { round % 3 ? part.succeed(1) : part.fail(error(Code::kBusy, "x")); });
        ASSERT_TRUE(tree->parent.wait(Deadline::after(kHang)));
        tree.reset();
    }
}

TEST(Completion, TakesManyOperationsFromManyThreads) {
    Completion completion;
    constexpr uint32_t kThreads = 8, kEach = 20'000;
    completion.add(kThreads * kEach);
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < kThreads; ++t)
        threads.emplace_back([&completion] {
            for (uint32_t i = 0; i < kEach; ++i) completion.succeed(2);
        });
    ASSERT_TRUE(completion.wait(Deadline::after(kHang)));
    EXPECT_EQ(completion.result().value(), uint64_t{2} * kThreads * kEach);
}

TEST(CompletionDeathTest, AbortsWhenMoreFinishesThanWasAnnounced) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    Completion completion;
    completion.add(1);
    EXPECT_DEATH(completion.succeed(1, 2), "check failed");
}

TEST(CompletionDeathTest, AbortsWhenAskedForAResultTooEarly) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    Completion completion;
    completion.add(1);
    EXPECT_DEATH((void)completion.result(), "check failed");
    EXPECT_DEATH(completion.reset(), "check failed");
}

}  // namespace
}  // namespace mooncake
