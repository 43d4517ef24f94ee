// SPDX-License-Identifier: Apache-2.0
#include "store/process/testing/pool.h"

namespace mooncake::store::testing {
namespace {

class Leases : public ClientTest {};

TEST_F(Leases, AnswerReadsAndProbesWithoutTheMaster) {
    const auto node = client(), other = requester();
    auto value = pattern(5000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    // When the event stream begins, everything that was remembered before it is forgotten, once.
    EXPECT_TRUE(eventually([&] {
        const int asked = master().calls("get_replicas"), probed = master().calls("exist");
        for (int i = 0; i < 10; ++i) {
            EXPECT_TRUE(holds(*other, "k", value));
            EXPECT_EQ(exists(*other, "k"), 1);
        }
        return master().calls("get_replicas") == asked && master().calls("exist") == probed;
    }));
}

TEST_F(Leases, OfSomeKeysOfABatchLeaveTheOthersToTheMaster) {
    const auto node = client(), other = requester();
    auto a = pattern(500, 1), b = pattern(600, 2);
    ASSERT_EQ(put(*node, "a", a), StoreCode::kOk);
    ASSERT_EQ(put(*node, "b", b), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "b", b));
    std::vector<std::byte> to_a(500), to_b(600), to_c(1);
    const Piece pa{to_a.data(), 500}, pb{to_b.data(), 600}, pc{to_c.data(), 1};
    const std::vector<ValueToRead> reads = {
        {.key = "a", .pieces = {&pa, 1}}, {.key = "b", .pieces = {&pb, 1}}, {.key = "c", .pieces = {&pc, 1}}};
    EXPECT_EQ(other->read(reads), (std::vector<int64_t>{500, 600, -704}));
    EXPECT_EQ(to_a, a);
    EXPECT_EQ(to_b, b);
    const std::vector<std::string_view> keys = {"c", "a", "d", "b"};
    EXPECT_EQ(other->exist(keys), (std::vector<int32_t>{0, 1, 0, 1}));
}

TEST_F(Leases, AreAskedForAgainWhenTheyHaveEnded) {
    options_.lease_ttl = 20ms;
    const auto node = client(), other = requester();
    auto value = pattern(5000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", value));
    const int reads = master().calls("get_replicas"), probes = master().calls("exist");
    EXPECT_TRUE(eventually([&] { return holds(*other, "k", value) && master().calls("get_replicas") > reads; }));
    EXPECT_TRUE(eventually([&] { return exists(*other, "k") == 1 && master().calls("exist") > probes; }));
}

TEST_F(Leases, AreCountedFromTheSendingOfTheQuestion) {
    options_.lease_ttl = 100ms;
    const auto node = client(), other = requester();
    auto value = pattern(5000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    // The answer comes so late that the lease it tells of is over.
    const auto hold_back = [] {
        const Deadline deadline = Deadline::after(150ms);
        while (!deadline.passed()) std::this_thread::yield();
    };
    master().before("get_replicas", hold_back);
    EXPECT_TRUE(holds(*other, "k", value));  // its checksum says that the bytes are right
    const int asked = master().calls("get_replicas");
    EXPECT_TRUE(holds(*other, "k", value));
    EXPECT_GT(master().calls("get_replicas"), asked);
}

TEST_F(Leases, ThatRanOutDuringAReadWithoutChecksumsAreRenewed) {
    options_.lease_ttl = 100ms;
    const Change unchecked = [](StoreConfig& config) { config.options.checksum = false; };
    const auto node = client(unchecked), other = requester(unchecked);
    auto value = pattern(5000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    std::atomic<int> slow{1};
    master().before("get_replicas", [&] {
        if (slow.fetch_sub(1) <= 0) return;
        const Deadline deadline = Deadline::after(150ms);
        while (!deadline.passed()) std::this_thread::yield();
    });
    EXPECT_TRUE(holds(*other, "k", value));
    EXPECT_GE(master().calls("get_replicas"), 2);
}

TEST_F(Leases, OfReplacedValuesEndBeforeTheReplacerIsAnswered) {
    const auto node = client(), reader = requester(), writer = requester();
    std::vector<std::byte> value = pattern(3000, 0);
    ASSERT_EQ(put(*writer, "k", value), StoreCode::kOk);
    for (uint64_t round = 1; round <= 50; ++round) {
        EXPECT_TRUE(holds(*reader, "k", value));
        value = pattern(3000, round);
        ASSERT_EQ(upsert(*writer, "k", value), StoreCode::kOk);
        ASSERT_TRUE(holds(*reader, "k", value)) << round;
    }
}

TEST_F(Leases, OfAnAnswerThatWasOvertakenByAChangeAreNotKept) {
    const auto node = client(), reader = requester(), writer = requester();
    auto first = pattern(3000, 1), second = pattern(3000, 2);
    ASSERT_EQ(put(*writer, "k", first), StoreCode::kOk);
    LeaseCache cache;
    const std::string_view key = "k";
    const LeaseCache::Ticket asked = cache.ticket();
    cache.forget(key);  // somebody replaced it while the answer was on its way
    const Place place{.generation = 1, .length = 1, .lease_end = Clock::now() + 10s};
    cache.remember({&key, 1}, {&place, 1}, asked);
    Place found;
    EXPECT_EQ(cache.find({&key, 1}, Clock::now(), {&found, 1}), 0u);
    cache.remember({&key, 1}, {&place, 1}, cache.ticket());
    EXPECT_EQ(cache.find({&key, 1}, Clock::now(), {&found, 1}), 1u);
}

TEST(LeaseCache, ForgetsWhatWasNotUsedWhenItIsFull) {
    LeaseCache cache(100);
    const Time now = Clock::now();
    const auto remember = [&](int i) {
        const std::string key = std::to_string(i);
        const std::string_view view = key;
        const Place place{.generation = 1 + static_cast<uint64_t>(i), .length = 1, .lease_end = now + 100s};
        cache.remember({&view, 1}, {&place, 1}, cache.ticket());
    };
    const auto knows = [&](int i) {
        const std::string key = std::to_string(i);
        const std::string_view view = key;
        Place found;
        return cache.find({&view, 1}, now, {&found, 1}) == 1 && found.generation == 1 + static_cast<uint64_t>(i);
    };
    for (int i = 0; i < 1000; ++i) {
        remember(i);
        EXPECT_TRUE(knows(0)) << i;  // used all the time
    }
    EXPECT_EQ(cache.size(), 100u);
    EXPECT_TRUE(knows(999));
    EXPECT_FALSE(knows(1));
    cache.forget_all();
    EXPECT_EQ(cache.size(), 0u);
    EXPECT_FALSE(knows(0));
}

TEST(LeaseCache, KeepsPlacesWhenSoftLeasesAreForgotten) {
    LeaseCache cache;
    const std::string_view keys[] = {"placed", "promised"};
    const Time now = Clock::now();
    const Place place{.generation = 7, .length = 1, .lease_end = now + 100s};
    cache.remember({keys, 1}, {&place, 1}, cache.ticket());
    const int32_t one[] = {0, 1};
    cache.remember_existing(keys, one, now + 100s, cache.ticket());
    int32_t results[] = {0, 0};
    EXPECT_EQ(cache.find_existing(keys, now, results), 2u);
    const LeaseCache::Ticket before = cache.ticket();
    cache.forget_soft_leases();
    cache.remember_existing(keys, one, now + 100s, before);  // asked before
    EXPECT_EQ(cache.find_existing(keys, now, results), 0u);
    Place found;
    EXPECT_EQ(cache.find({keys, 1}, now, {&found, 1}), 1u);
    EXPECT_EQ(cache.find({keys, 1}, now + 100s, {&found, 1}), 0u);
    cache.remember_existing(keys, one, now + 100s, cache.ticket());
    EXPECT_EQ(cache.find_existing(keys, now, results), 1u);
}

}  // namespace
}  // namespace mooncake::store::testing
