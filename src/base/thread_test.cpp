// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <vector>

#include "base/futex.h"
#include "base/thread_annotations.h"
#include "base/thread_number.h"
#include "base/unique_fd.h"

namespace mooncake {
namespace {

TEST(StartThread, NamesTheThreadAndBlocksSignalsInItOnly) {
    std::string name;
    bool blocked = false;
    std::atomic<bool> named{false};
    {
        const auto thread = start_thread("a name that is far too long", [&] {
            named.wait(false);
            char text[32] = {};
            pthread_getname_np(pthread_self(), text, sizeof text);
            name = text;
            sigset_t mask;
            pthread_sigmask(SIG_SETMASK, nullptr, &mask);
            blocked = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
        });
        named = true;
        named.notify_all();
    }
    EXPECT_EQ(name, "a name that is ");
    EXPECT_TRUE(blocked);
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, nullptr, &mine);
    EXPECT_EQ(sigismember(&mine, SIGTERM), 0);
}

TEST(StartThread, StopsAndJoinsOnDestruction) {
    std::atomic<bool> ended{false};
    {
        const auto thread = start_thread("stoppable", [&](std::stop_token stop) {
            std::mutex mutex;
            std::condition_variable_any never;
            std::unique_lock lock(mutex);
            never.wait(lock, stop, [] { return false; });
            ended = true;
        });
    }
    EXPECT_TRUE(ended);
}

TEST(SharedMutex, LetsReadersInTogetherAndWritersAlone) {
    SharedMutex mutex;
    int value = 0;
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 2000; ++i) {
                WriteLock lock(mutex);
                ++value;
            }
        });
    for (int t = 0; t < 3; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 2000; ++i) {
                ReadLock lock(mutex);
                ASSERT_GE(value, 0);
            }
        });
    threads.clear();
    EXPECT_EQ(value, 6000);
}

TEST(SharedMutex, AWriterGetsInThoughReadersOverlapWithoutEnd) {
    SharedMutex mutex;
    std::atomic<bool> stop{false};
    std::atomic<int> inside{0};
    std::vector<std::jthread> readers;
    for (int t = 0; t < 2; ++t)
        readers.emplace_back([&] {
            while (!stop) {
                ReadLock lock(mutex);
                ++inside;
                // Hands over: nobody leaves before another reader is inside, unless a writer holds that one up.
                for (int i = 0; i < 1000 && inside < 2 && !stop; ++i) std::this_thread::yield();
                --inside;
            }
        });
    for (int i = 0; i < 20; ++i) WriteLock lock(mutex);
    stop = true;
}

TEST(SharedMutex, TakesMoreReadersThanItHasPlacesForAtOnce) {
    SharedMutex mutex;
    constexpr int kReaders = 100;
    std::latch all_inside(kReaders + 1);
    std::vector<std::jthread> readers;
    for (int t = 0; t < kReaders; ++t)
        readers.emplace_back([&] {
            ReadLock lock(mutex);
            all_inside.arrive_and_wait();
        });
    all_inside.arrive_and_wait();
    WriteLock lock(mutex);
    readers.clear();
}

TEST(SharedMutex, ReadersThatWaitForAWriterComeInAfterIt) {
    for (int round = 0; round < 200; ++round) {
        SharedMutex mutex;
        std::atomic<int> waiting{0};
        int value = 0;
        std::vector<std::jthread> readers;
        {
            WriteLock lock(mutex);
            for (int t = 0; t < 4; ++t)
                readers.emplace_back([&] {
                    ++waiting;
                    ReadLock inside(mutex);
                    EXPECT_EQ(value, 1);
                });
            while (waiting < 4) std::this_thread::yield();
            value = 1;
        }
    }
}

TEST(ThreadNumber, StaysTheSameInAThreadAndDiffersBetweenThem) {
    const uint32_t mine = thread_number();
    EXPECT_EQ(thread_number(), mine);
    std::jthread([mine] { EXPECT_NE(thread_number(), mine); });
}

TEST(ThreadNumber, NoTwoThreadsThatLiveTogetherHaveTheSame) {
    constexpr size_t kThreads = 100, kRounds = 3;  // later ones live where earlier ones did
    for (size_t round = 0; round < kRounds; ++round) {
        std::vector<uint32_t> numbers(kThreads);
        std::latch all_there(kThreads);
        {
            std::vector<std::jthread> threads;
            for (uint32_t& number : numbers)
                threads.emplace_back([&] {
                    number = thread_number();
                    all_there.arrive_and_wait();
                    for (int i = 0; i < 100; ++i) EXPECT_EQ(thread_number(), number);
                });
        }
        numbers.push_back(thread_number());
        std::sort(numbers.begin(), numbers.end());
        EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end());
    }
}

TEST(Futex, ReturnsAtOnceWhenTheWordIsAnother) {
    std::atomic<uint32_t> word{1};
    futex_wait(word, 0, Deadline::never());
    futex_wait(word, 0, Deadline::never(), FutexScope::kShared);
}

TEST(Futex, ReturnsAtTheDeadline) {
    std::atomic<uint32_t> word{0};
    const Deadline deadline = Deadline::after(2ms);
    while (!deadline.passed()) futex_wait(word, 0, deadline);
    futex_wait(word, 0, deadline);
}

TEST(Futex, WakesASleeper) {
    std::atomic<uint32_t> word{0};
    std::jthread sleeper([&] {
        while (word.load() == 0) futex_wait(word, 0, Deadline::after(60s));
    });
    word = 1;
    futex_wake_all(&word);
}

TEST(UniqueFd, ClosesOnceAndMoves) {
    const auto is_open = [](int fd) { return ::fcntl(fd, F_GETFD) != -1; };
    UniqueFd first(::open("/dev/null", O_RDONLY));
    const int number = first.get();
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): being empty is what a moved-from UniqueFd promises
    EXPECT_TRUE(is_open(number));
    second = UniqueFd();
    EXPECT_FALSE(is_open(number));

    UniqueFd third(::open("/dev/null", O_RDONLY));
    const int raw = third.release();
    EXPECT_FALSE(third);
    EXPECT_TRUE(is_open(raw));
    third.reset(raw);
    third.reset();
    EXPECT_FALSE(is_open(raw));
}

}  // namespace
}  // namespace mooncake
