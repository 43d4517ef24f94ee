// SPDX-License-Identifier: Apache-2.0
#include "store/member/doubtful_writes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <set>
#include <thread>

namespace mooncake::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Nodes that answer or not, a master that listens or not, and a time that is the test's.
class DoubtfulWritesTest : public ::testing::Test {
protected:
    void add(std::string key, std::vector<std::string> endpoints, Duration rest = 600s) {
        writes_.add({.key = std::move(key), .generation = ++generation_}, endpoints, now() + rest);
    }
    /// What the master is told in one turn.
    std::vector<std::string> settle() {
        writes_.settle();
        Lock lock(mutex_);
        return std::exchange(told_, {});
    }
    Time now() const { return now_.load(); }
    void pass(Duration duration) { now_ = now() + duration; }
    void answers(const std::string& endpoint, bool does) {
        Lock lock(mutex_);
        if (does) answering_.insert(endpoint);
        else answering_.erase(endpoint);
    }
    int fences() {
        Lock lock(mutex_);
        return fences_;
    }

    std::atomic<Time> now_{Time(1h)};
    std::atomic<bool> master_listens_{true};
    std::function<void()> in_fence_;
    Mutex mutex_;
    std::set<std::string> answering_ MC_GUARDED_BY(mutex_);
    std::vector<std::string> told_ MC_GUARDED_BY(mutex_);
    int fences_ MC_GUARDED_BY(mutex_) = 0;
    uint64_t generation_ = 0;
    DoubtfulWrites writes_{{.fence =
                                [this](const std::string& endpoint) {
                                    if (in_fence_) in_fence_();
                                    Lock lock(mutex_);
                                    ++fences_;
                                    return answering_.contains(endpoint);
                                },
                            .tell =
                                [this](std::span<const DoubtfulWrites::Write> settled) {
                                    if (!master_listens_) return false;
                                    Lock lock(mutex_);
                                    for (const DoubtfulWrites::Write& write : settled) told_.push_back(write.key);
                                    return true;
                                },
                            .clock = [this] { return now(); },
                            .threaded = false}};
};

TEST_F(DoubtfulWritesTest, AreToldToTheMasterOnceTheirNodeAnswersAgain) {
    add("a", {"x"});
    EXPECT_THAT(settle(), IsEmpty());
    pass(200ms);
    EXPECT_THAT(settle(), IsEmpty()) << "it does not answer";
    answers("x", true);
    EXPECT_THAT(settle(), IsEmpty()) << "it was asked just now";
    pass(200ms);
    EXPECT_THAT(settle(), ElementsAre("a"));
    EXPECT_EQ(writes_.size(), 0u);
}

TEST_F(DoubtfulWritesTest, WaitForAllTheirNodes) {
    add("a", {"x", "y"});
    answers("x", true);
    pass(1s);
    EXPECT_THAT(settle(), IsEmpty());
    answers("y", true);
    pass(1s);
    EXPECT_THAT(settle(), ElementsAre("a"));
}

TEST_F(DoubtfulWritesTest, ThatBeganWhileTheirNodeWasFencedNeedAnother) {
    add("a", {"x"});
    answers("x", true);
    pass(1s);
    in_fence_ = [this] {
        in_fence_ = nullptr;
        add("b", {"x"});
    };
    EXPECT_THAT(settle(), ElementsAre("a"));
    pass(1s);
    EXPECT_THAT(settle(), ElementsAre("b"));
}

TEST_F(DoubtfulWritesTest, AreToldAgainWhereTheMasterDidNotAnswer) {
    add("a", {"x"});
    answers("x", true);
    master_listens_ = false;
    pass(1s);
    EXPECT_THAT(settle(), IsEmpty());
    master_listens_ = true;
    pass(1s);
    EXPECT_THAT(settle(), ElementsAre("a"));
    EXPECT_EQ(fences(), 1) << "once is enough";
}

TEST_F(DoubtfulWritesTest, AreForgottenWhenTheirRangesHaveRestedLongEnoughOrTheMasterIsLost) {
    add("a", {"x"}, 10s);
    pass(10s);
    settle();
    EXPECT_EQ(writes_.size(), 0u);
    add("b", {"x"});
    writes_.forget_all();
    answers("x", true);
    pass(1s);
    EXPECT_THAT(settle(), IsEmpty());
}

/// While it lives no thread can be started: nobody has memory for such a stack.
class NoMoreThreads {
public:
    NoMoreThreads() {
        pthread_getattr_default_np(&before_);
        pthread_attr_t absurd = before_;
        pthread_attr_setstacksize(&absurd, size_t{1} << 46);
        pthread_setattr_default_np(&absurd);
    }
    ~NoMoreThreads() { pthread_setattr_default_np(&before_); }
    NoMoreThreads(const NoMoreThreads&) = delete;
    NoMoreThreads& operator=(const NoMoreThreads&) = delete;

private:
    pthread_attr_t before_;
};

TEST(DoubtfulWritesWithoutAThread, AreRememberedAndSettledOnceThereIsOne) {
    std::atomic<int> told = 0;
    DoubtfulWrites writes({.fence = [](const std::string&) { return true; },
                           .tell =
                               [&](std::span<const DoubtfulWrites::Write> settled) {
                                   told += static_cast<int>(settled.size());
                                   return true;
                               }});
    const std::vector<std::string> endpoints{"x"};
    {
        const NoMoreThreads none;
        EXPECT_NO_THROW(writes.add({.key = "a", .generation = 1}, endpoints, Clock::now() + 600s));
    }
    EXPECT_EQ(writes.size(), 1u);
    writes.add({.key = "b", .generation = 2}, endpoints, Clock::now() + 600s);
    const Time end = Clock::now() + 60s;
    while (told < 2 && Clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(told, 2);
}

TEST_F(DoubtfulWritesTest, AreBoundedInNumber) {
    for (size_t i = 0; i < DoubtfulWrites::kWritesMax + 10; ++i) add("k", {"x"});
    EXPECT_EQ(writes_.size(), DoubtfulWrites::kWritesMax);
}

}  // namespace
}  // namespace mooncake::store
