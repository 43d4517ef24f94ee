// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <semaphore>

#include "base/completion.h"

namespace mooncake {
namespace {

/// Counts its steps in a log shared by all jobs.
class CountedJob final : public CopyJob {
public:
    CountedJob(int count, int id, std::vector<int>* log, Mutex* mutex) : left_(count), id_(id), log_(log), mutex_(mutex) { done.add(1); }

    bool step() noexcept override {
        if (left_.fetch_sub(1) <= 0) return false;
        if (log_ != nullptr) {
            Lock lock(*mutex_);
            log_->push_back(id_);
        }
        ++steps;
        return true;
    }
    void release() noexcept override { done.succeed(0); }

    std::atomic<int> steps{0};
    Completion done;

private:
    std::atomic<int> left_;
    const int id_;
    std::vector<int>* const log_;
    Mutex* const mutex_;
};

/// Holds the thread that runs it until it may go on.
class HeldJob final : public CopyJob {
public:
    HeldJob() { done.add(1); }
    bool step() noexcept override {
        entered.release();
        go_on.acquire();
        return false;
    }
    void release() noexcept override { done.succeed(0); }

    std::binary_semaphore entered{0}, go_on{0};
    Completion done;
};

const Deadline kPatience = Deadline::never();

TEST(CopyPool, RunsEveryStepAndReleasesEachJobOnce) {
    CopyPool pool("test-copy");
    CopyQueue queue;
    std::vector<std::unique_ptr<CountedJob>> jobs;
    for (int i = 0; i < 200; ++i) jobs.push_back(std::make_unique<CountedJob>(i, i, nullptr, nullptr));
    for (auto& job : jobs) ASSERT_TRUE(pool.add(queue, *job, 2));
    for (int i = 0; i < 200; ++i) {
        ASSERT_TRUE(jobs[static_cast<size_t>(i)]->done.wait(kPatience));
        EXPECT_EQ(jobs[static_cast<size_t>(i)]->steps, i);
    }
    pool.withdraw(queue);
}

TEST(CopyPool, LetsTheQueuesTakeTurns) {
    CopyPool pool("test-copy", 1);
    CopyQueue first, second, third;
    HeldJob gate;
    ASSERT_TRUE(pool.add(first, gate, 1));
    gate.entered.acquire();
    Mutex mutex;
    std::vector<int> log;
    CountedJob long_one(1000, 1, &log, &mutex), longer_one(1000, 1, &log, &mutex), small(5, 2, &log, &mutex);
    ASSERT_TRUE(pool.add(second, long_one, 1));
    ASSERT_TRUE(pool.add(second, longer_one, 1));
    ASSERT_TRUE(pool.add(third, small, 1));
    gate.go_on.release();
    ASSERT_TRUE(small.done.wait(kPatience));
    ASSERT_TRUE(longer_one.done.wait(kPatience));
    Lock lock(mutex);
    const std::vector<int> begin(log.begin(), log.begin() + 10);
    EXPECT_EQ(std::count(begin.begin(), begin.end(), 2), 5);
    for (CopyQueue* queue : {&first, &second, &third}) pool.withdraw(*queue);
}

TEST(CopyPool, WithdrawReleasesWhatHasNotBegunAndWaitsForWhatHas) {
    CopyPool pool("test-copy", 1);
    CopyQueue queue;
    HeldJob running;
    CountedJob waiting(10, 0, nullptr, nullptr);
    ASSERT_TRUE(pool.add(queue, running, 1));
    running.entered.acquire();
    ASSERT_TRUE(pool.add(queue, waiting, 1));
    std::jthread helper([&] {
        waiting.done.wait(kPatience);
        running.go_on.release();
    });
    pool.withdraw(queue);
    EXPECT_TRUE(running.done.done());
    EXPECT_TRUE(waiting.done.done());
    EXPECT_EQ(waiting.steps, 0);
}

/// A queue with a job whose end destroys both, on the thread that ran it.
struct Doomed {
    class Job final : public CopyJob {
    public:
        explicit Job(std::function<void()> end) : end_(std::move(end)) {}
        bool step() noexcept override {
            if (taken_.exchange(true)) return false;  // there is one end of it, however many threads come
            const auto end = end_;                    // outlives the job
            end();
            return true;
        }
        void release() noexcept override { ++released; }
        int released = 0;

    private:
        const std::function<void()> end_;
        std::atomic<bool> taken_{false};
    };

    CopyQueue queue;
    std::unique_ptr<Job> job;
};

TEST(CopyPool, AQueueMayBeWithdrawnByOneOfItsOwnSteps) {
    CopyPool pool("test-copy", 1);
    Completion over;
    over.add(1);
    auto doomed = std::make_unique<Doomed>();
    CountedJob waiting(10, 0, nullptr, nullptr);
    std::atomic<int> released{0};
    doomed->job = std::make_unique<Doomed::Job>([&] {
        pool.withdraw(doomed->queue);
        released = doomed->job->released;
        doomed.reset();
        over.succeed(0);
    });
    HeldJob gate;  // until both are in the queue
    CopyQueue first;
    ASSERT_TRUE(pool.add(first, gate, 1));
    gate.entered.acquire();
    ASSERT_TRUE(pool.add(doomed->queue, *doomed->job, 1));
    ASSERT_TRUE(pool.add(doomed->queue, waiting, 1));
    gate.go_on.release();
    ASSERT_TRUE(over.wait(Deadline::after(60s))) << "it waits for itself";
    EXPECT_EQ(released, 1);
    EXPECT_TRUE(waiting.done.done());
    EXPECT_EQ(waiting.steps, 0);
    CountedJob later(10, 0, nullptr, nullptr);
    ASSERT_TRUE(pool.add(first, later, 1));
    EXPECT_TRUE(later.done.wait(kPatience)) << "the thread goes on with others";
    pool.withdraw(first);
}

TEST(CopyPool, AQueueWithdrawnByItsOwnStepWaitsForTheOtherSteps) {
    /// Holds the first thread that comes; the next finds nothing to do.
    class OneStep final : public CopyJob {
    public:
        bool step() noexcept override {
            if (taken_.exchange(true)) return false;
            entered.release();
            go_on.acquire();
            over = true;
            return false;
        }
        void release() noexcept override {}
        std::binary_semaphore entered{0}, go_on{0};
        std::atomic<bool> over{false};

    private:
        std::atomic<bool> taken_{false};
    } other;
    CopyPool pool("test-copy", 2);
    Completion over;
    over.add(1);
    auto doomed = std::make_unique<Doomed>();
    doomed->job = std::make_unique<Doomed::Job>([&] {
        std::jthread helper([&] { other.go_on.release(); });
        pool.withdraw(doomed->queue);
        EXPECT_TRUE(other.over);
        doomed.reset();
        over.succeed(0);
    });
    ASSERT_TRUE(pool.add(doomed->queue, other, 2));
    other.entered.acquire();
    ASSERT_TRUE(pool.add(doomed->queue, *doomed->job, 1));
    ASSERT_TRUE(over.wait(Deadline::after(60s)));
}

TEST(CopyPool, NeedsNoThreadWithoutAJob) {
    const auto threads = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); };
    const auto before = threads();
    CopyPool pool("test-copy");
    CopyQueue queue;
    pool.withdraw(queue);
    EXPECT_EQ(threads(), before);
    CountedJob job(1, 0, nullptr, nullptr);
    ASSERT_TRUE(pool.add(queue, job, 1));
    ASSERT_TRUE(job.done.wait(kPatience));
    EXPECT_EQ(threads(), before + 1);
    pool.withdraw(queue);
}

}  // namespace
}  // namespace mooncake
