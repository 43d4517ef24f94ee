// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <iterator>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

TEST(ThreadPool, RunsWhatIsPosted) {
    std::latch done(100);
    ThreadPool pool({.name = "test", .threads_max = 4});
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(pool.post([&] { done.count_down(); }));
    done.wait();
}

TEST(ThreadPool, ATaskWithoutMemoryCostsNobodyElse) {
    std::latch done(10);
    ThreadPool pool({.name = "test", .threads_max = 1});
    for (int i = 0; i < 10; ++i) {
        ASSERT_TRUE(pool.post([] { throw std::bad_alloc(); }, 1));
        ASSERT_TRUE(pool.post([&] { done.count_down(); }, 1));
    }
    done.wait();
}

TEST(ThreadPool, AStuckTaskDoesNotStopTheOthers) {
    std::latch stuck(1), done(10);
    ThreadPool pool({.name = "test", .threads_max = 2});
    ASSERT_TRUE(pool.post([&] { stuck.wait(); }));
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(pool.post([&] { done.count_down(); }));
    done.wait();
    stuck.count_down();
}

TEST(ThreadPool, TasksOfOneKeyRunInOrderAndTakeOneThreadBetweenThem) {
    std::latch stuck(1), others(50), all(100);
    std::vector<int> order;
    ThreadPool pool({.name = "test", .threads_max = 2});
    ASSERT_TRUE(pool.post([&] { stuck.wait(); }, 1));
    for (int i = 0; i < 100; ++i)
        ASSERT_TRUE(pool.post(
            [&, i] {
                order.push_back(i);
                all.count_down();
            },
            1));
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(pool.post([&] { others.count_down(); }, static_cast<uint64_t>(2 + i % 5)));
    others.wait();
    EXPECT_TRUE(order.empty());
    stuck.count_down();
    all.wait();
    for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(ThreadPool, RefusesMoreThanMayWait) {
    std::latch busy(1), go(1), done(3);
    ThreadPool pool({.name = "test", .threads_max = 1, .tasks_max = 3});
    ASSERT_TRUE(pool.post([&] {
        busy.count_down();
        go.wait();
    }));
    busy.wait();
    for (uint64_t key = 0; key < 3; ++key) ASSERT_TRUE(pool.post([&] { done.count_down(); }, key % 2));
    EXPECT_EQ(pool.post([] {}).error().code(), Code::kNoSpace);
    EXPECT_EQ(pool.post([] {}, 1).error().code(), Code::kNoSpace);
    go.count_down();
    done.wait();
}

TEST(ThreadPool, ThreadsLeaveWhenThereIsNothingToDoAndComeBack) {
    std::deque<std::latch> rounds;
    ThreadPool pool({.name = "test", .threads_max = 8, .idle_time = 1ms});
    for (int round = 0; round < 20; ++round) {
        std::latch& together = rounds.emplace_back(8);  // all of them at once
        for (int i = 0; i < 8; ++i) ASSERT_TRUE(pool.post([&] { together.arrive_and_wait(); }));
        together.wait();
    }
}

TEST(ThreadPool, StopAsksWhatRunsAndDropsWhatWaits) {
    auto owned = std::make_shared<int>(1);
    std::latch running(1);
    ThreadPool pool({.name = "test", .threads_max = 1});
    ASSERT_TRUE(pool.post([&, stop = pool.stop_token()] {
        running.count_down();
        while (!stop.stop_requested()) std::this_thread::yield();
    }));
    for (uint64_t key = 0; key < 2; ++key)
        for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool.post([owned] {}, key));
    running.wait();
    pool.stop();
    EXPECT_EQ(owned.use_count(), 1);
    EXPECT_EQ(pool.post([] {}).error().code(), Code::kUnavailable);
    EXPECT_EQ(pool.start().error().code(), Code::kUnavailable);
    pool.stop();
}

TEST(ThreadPool, DoesNothingInAForkedChild) {
    ThreadPool pool({.name = "test", .threads_max = 1});
    ASSERT_TRUE(pool.start());
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused = !pool.post([] {}) && !pool.start();
        pool.stop();
        ::_exit(refused ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

TEST(ThreadPool, ACrowdOfShortTasksGetsAFewThreads) {
    std::latch posted(1), done(200);
    ThreadPool pool({.name = "test", .threads_max = 64, .threads_few = 3, .stuck_time = 1h});
    const auto threads = [] {
        const std::filesystem::directory_iterator all("/proc/self/task");
        return std::distance(begin(all), end(all));
    };
    const auto before = threads();
    for (int i = 0; i < 200; ++i)
        ASSERT_TRUE(pool.post([&] {
            posted.wait();
            done.count_down();
        }));
    EXPECT_LE(threads() - before, 4) << "those, and one that watches whether they get on";
    posted.count_down();
    done.wait();
}

TEST(ThreadPool, ACrowdOfTasksThatBlockGetsAThreadEach) {
    std::latch all(20);  // nobody goes on before all have come
    ThreadPool pool({.name = "test", .threads_max = 64});
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(pool.post([&] { all.arrive_and_wait(); }));
    all.wait();
}

}  // namespace
}  // namespace mooncake
