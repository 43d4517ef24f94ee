// SPDX-License-Identifier: Apache-2.0
// One client against nodes and a master in other processes, which are killed and stopped while it reads and writes.
#include <atomic>

#include "tests/integration/failing_pool.h"

namespace mooncake::store {

namespace {

INSTANTIATE_TEST_SUITE_P(By, FailingPool, ::testing::Values("shm", "tcp"), [](const auto& path) { return std::string(path.param); });

TEST_P(FailingPool, ReadsOnFromTheOtherReplicaWhenANodeIsKilled) {
    start_master();
    std::string name_a, name_b;
    auto a = lender(name_a), b = lender(name_b);
    const auto reader = client();
    std::vector<std::vector<std::byte>> values;
    for (uint64_t i = 0; i < 16; ++i) {
        values.push_back(pattern(100'000 + i, i));
        ASSERT_EQ(put(*reader, std::to_string(i), values.back(), {.replica_num = 2}), StoreCode::kOk);
    }
    std::atomic<bool> killed{false}, stop{false};
    std::atomic<int> after{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 2; ++t)
        threads.emplace_back([&] {
            for (size_t i = 0; !stop; i = (i + 1) % values.size()) {
                EXPECT_EQ(get(*reader, std::to_string(i), values[i]), static_cast<int64_t>(values[i].size()));
                if (killed) ++after;
            }
        });
    a->kill();
    killed = true;
    EXPECT_TRUE(eventually([&] { return after > 200; }));
    stop = true;
}

TEST_P(FailingPool, AStoppedNodeCostsOnlyItsOwnValues) {
    start_master();
    std::string name_a, name_b;
    auto stopped = lender(name_a), living = lender(name_b);
    const auto reader = client();
    auto both = pattern(100'000, 1), there = pattern(100'000, 2), here = pattern(100'000, 3);
    ASSERT_EQ(put(*reader, "both", both, {.replica_num = 2}), StoreCode::kOk);
    ASSERT_EQ(put(*reader, "there", there, {.preferred_segments = {name_a}}), StoreCode::kOk);
    ASSERT_EQ(put(*reader, "here", here, {.preferred_segments = {name_b}}), StoreCode::kOk);
    for (const char* const key : {"both", "there", "here"})
        EXPECT_GT(get(*reader, key, std::string(key) == "both" ? both : std::string(key) == "there" ? there : here), 0);
    stopped->stop();
    EXPECT_EQ(get(*reader, "both", both), 100'000);
    EXPECT_EQ(get(*reader, "here", here), 100'000);
    EXPECT_LE(failures(*reader), 1u) << "another replica was there";  // one where a busy machine made both seem slow
    const int64_t lost = get(*reader, "there", there);
    // Memory that is mapped needs nobody over there.
    const bool expected = std::string(GetParam()) == "shm" ? lost == 100'000 : lost == kMiss || lost == kFailed;
    EXPECT_TRUE(expected) << lost;
    const uint64_t before = failures(*reader);
    EXPECT_EQ(get(*reader, "here", here), 100'000);
    EXPECT_EQ(get(*reader, "both", both), 100'000);
    EXPECT_LE(failures(*reader), before + 1);
    stopped->go_on();
    EXPECT_TRUE(eventually([&] { return get(*reader, "there", there) == 100'000; }));
}

TEST_P(FailingPool, AHungNodesValuesAreMissesSoonAfterItsFirstFailure) {
    start_master();
    std::string name_a, name_b;
    auto stopped = lender(name_a), living = lender(name_b);
    const auto reader = client();
    auto there = pattern(10'000, 1), here = pattern(10'000, 2);
    for (int i = 0; i < 20; ++i)
        ASSERT_EQ(put(*reader, format_text("there{}", i), there, {.preferred_segments = {name_a}}), StoreCode::kOk);
    ASSERT_EQ(put(*reader, "here", here, {.preferred_segments = {name_b}}), StoreCode::kOk);
    stopped->stop();
    if (get(*reader, "there0", there) > 0) return;  // memory that is mapped needs nobody over there
    const uint64_t before = failures(*reader);
    for (int i = 0; i < 400; ++i) {
        EXPECT_LT(get(*reader, format_text("there{}", i % 20), there), 0);
        EXPECT_EQ(get(*reader, "here", here), 10'000);
    }
    // It is tried after 50 ms, 100 ms, ... 5 s: few of the misses had to wait for it, however long they took together.
    GTEST_LOG_(INFO) << failures(*reader) - before << " of 400 misses waited for the node";
    EXPECT_LT(failures(*reader) - before, 100u);
    stopped->go_on();
    EXPECT_TRUE(eventually([&] { return get(*reader, "there0", there) == 10'000; }));
}

TEST_P(FailingPool, OutlivesItsMaster) {
    start_master();
    std::string name;
    auto node = lender(name);
    const auto reader = client();
    std::vector<std::vector<std::byte>> values;
    for (uint64_t i = 0; i < 64; ++i) {
        values.push_back(pattern(10'000 + i * 1000, i));
        ASSERT_EQ(put(*reader, std::to_string(i), values.back()), StoreCode::kOk);
    }
    master_->kill();
    start_master();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(eventually([&] { return get(*reader, std::to_string(i), values[i]) > 0; })) << i;
    auto fresh = pattern(50'000, 99);
    EXPECT_TRUE(eventually([&] { return put(*reader, "fresh", fresh) == StoreCode::kOk; }));
    EXPECT_EQ(get(*reader, "fresh", fresh), 50'000);
    for (size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(get(*reader, std::to_string(i), values[i]), static_cast<int64_t>(values[i].size())) << i;
}

TEST_P(FailingPool, ANodeKilledDuringWritesCostsNoStoredValue) {
    start_master();
    std::string name_a, name_b;
    auto a = lender(name_a), b = lender(name_b);
    const auto writer = client();
    std::vector<std::vector<std::byte>> values;
    std::vector<bool> stored;
    for (uint64_t i = 0; i < 200; ++i) {
        if (i == 100) a->kill();
        values.push_back(pattern(20'000, i));
        stored.push_back(put(*writer, std::to_string(i), values.back(), {.preferred_segments = {i < 100 ? name_a : name_b}}) ==
                         StoreCode::kOk);
    }
    for (size_t i = 100; i < 200; ++i) EXPECT_TRUE(!stored[i] || get(*writer, std::to_string(i), values[i]) == 20'000) << i;
    EXPECT_TRUE(stored[199]);
    EXPECT_TRUE(eventually([&] { return get(*writer, "5", values[5]) < 0; }));
}

}  // namespace

}  // namespace mooncake::store
