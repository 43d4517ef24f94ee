// SPDX-License-Identifier: Apache-2.0
#include "base/snapshot.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace mooncake {
namespace {

/// Counts those that live.
struct Counted {
    explicit Counted(int number) : value(number) { ++alive; }
    ~Counted() {
        value = -1;
        --alive;
    }
    int value;
    static inline std::atomic<int> alive{0};
};

class SnapshotTest : public ::testing::Test {
protected:
    Quiescence readers;
    Snapshot<Counted> snapshot{readers, std::make_unique<const Counted>(1)};
};

TEST_F(SnapshotTest, KeepsWhatIsBeingReadUntilTheReaderHasLeft) {
    {
        const auto section = readers.enter();
        const Counted& old = snapshot.get();
        snapshot.replace(std::make_unique<const Counted>(2));
        snapshot.replace(std::make_unique<const Counted>(3));
        EXPECT_EQ(old.value, 1);
        EXPECT_EQ(snapshot.get().value, 3);
    }
    snapshot.clean();
    EXPECT_EQ(Counted::alive, 1);
}

TEST_F(SnapshotTest, DoesNotPileUpWhatIsReplacedByReaders) {
    for (int i = 0; i < 100; ++i) {
        const auto section = readers.enter();
        snapshot.replace(std::make_unique<const Counted>(i));
        EXPECT_LE(Counted::alive, 3);
    }
}

TEST_F(SnapshotTest, IsReadWholeWhileItIsReplaced) {
    std::atomic<bool> stop{false};
    std::atomic<int> reads{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            while (!stop) {
                const auto section = readers.enter();
                ASSERT_GE(snapshot.get().value, 0);
                ++reads;
            }
        });
    for (int i = 0; i < 2000 || reads == 0; ++i) {
        snapshot.replace(std::make_unique<const Counted>(i));
        if (i % 10 == 0) snapshot.clean();
    }
    stop = true;
    threads.clear();
    snapshot.clean();
    EXPECT_EQ(Counted::alive, 1);
}

}  // namespace
}  // namespace mooncake
