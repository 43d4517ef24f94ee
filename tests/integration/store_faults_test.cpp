// SPDX-License-Identifier: Apache-2.0
// Writers whose nodes, master or fellow writers are stopped or killed: every put has a definite end, and nothing half-written is read.
#include <sys/personality.h>

#include <atomic>
#include <thread>

#include "tests/integration/failing_pool.h"

namespace mooncake::store {

namespace {

class FaultyPool : public FailingPool {
protected:
    /// A process that has written the first half of a value, and goes no further.
    std::unique_ptr<RoleProcess> half_writer(const std::string& key, uint64_t bytes) {
        auto process = std::make_unique<RoleProcess>(std::vector<std::string>{"writer", address(), key, std::to_string(bytes), GetParam()});
        EXPECT_EQ(process->line(), "half");
        return process;
    }
    /// A node whose memory, where the system allows that, lies where that of its former life lay.
    std::unique_ptr<RoleProcess> repeatable_lender(std::string& name) {
        const int before = ::personality(0xffffffff);
        ::personality(static_cast<unsigned long>(before) | ADDR_NO_RANDOMIZE);
        auto process = lender(name);
        ::personality(static_cast<unsigned long>(before));
        return process;
    }
    static int exists(StoreClient& client, std::string_view key) { return client.exist({&key, 1}).at(0); }
};
INSTANTIATE_TEST_SUITE_P(By, FaultyPool, ::testing::Values("shm", "tcp"), [](const auto& path) { return std::string(path.param); });

/// Its node does not run, so only over shared memory does anything happen at all.
class LateNode : public FailingPool {};
INSTANTIATE_TEST_SUITE_P(By, LateNode, ::testing::Values("shm"), [](const auto& path) { return std::string(path.param); });

TEST_P(LateNode, KnowsAllThatWasAnsweredWhenItsMasterIsKilled) {
    start_master("60000");
    std::string name;
    const auto node = lender(name);
    const auto writer = client();
    const std::string long_tail(8000, 'k');  // so that few events fill the kernel's buffers
    const auto key = [&](uint64_t i) { return format_text("{}{}", i, long_tail); };
    std::vector<std::byte> value = pattern(1000, 1), price = pattern(1000, 0);
    ASSERT_EQ(put(*writer, "price", price), StoreCode::kOk);
    std::atomic<uint64_t> answered{0}, prices{0}, turns{0};
    std::atomic<bool> done{false};
    node->stop();
    std::jthread thread([&] {
        for (uint64_t i = 0; !done; ++i, ++turns) {
            if (put(*writer, key(i), value) != StoreCode::kOk) break;
            answered = i + 1;
            auto next = pattern(1000, 100 + i);
            if (put(*writer, "price", next, {}, true) != StoreCode::kOk) break;
            prices = i + 1;
        }
    });
    // Until the master does not answer for a while: its node takes no more events.
    ASSERT_TRUE(eventually([&] {
        const uint64_t before = turns;
        const Deadline a_while = Deadline::after(300ms);
        while (turns == before && !a_while.passed()) std::this_thread::yield();
        return turns == before && before > 100;  // few, and it was the machine that stood still
    }));
    done = true;
    master_->kill();
    const uint64_t puts = answered, upserts = prices;
    node->go_on();
    start_master();
    thread.join();
    ASSERT_GT(puts, 100u);
    for (uint64_t i = 0; i < puts; ++i) ASSERT_TRUE(eventually([&] { return get(*writer, key(i), value) == 1000; })) << i << " of " << puts;
    const auto reader = client();
    const auto holds_price = [&](uint64_t number) {
        std::vector<std::byte> into(1000);
        const Piece piece{into.data(), into.size()};
        const std::string_view price_key = "price";
        const ValueToRead one{.key = price_key, .pieces = {&piece, 1}};
        return reader->read({&one, 1}).at(0) == 1000 && into == pattern(1000, 99 + number);
    };
    EXPECT_TRUE(holds_price(upserts) || holds_price(upserts + 1)) << "the last one that was answered, or the one on its way";
}

TEST_P(FaultyPool, PutsOfTwoReplicasGoOnWhileOneOfTwoNodesIsStopped) {
    start_master();
    std::string name_a, name_b;
    auto a = lender(name_a), b = lender(name_b);
    const auto writer = client();
    auto value = pattern(100'000, 1);
    ASSERT_EQ(put(*writer, "warm", value, {.replica_num = 2}), StoreCode::kOk);
    b->stop();
    const Time begin = Clock::now();
    for (int i = 0; i < 50; ++i) ASSERT_EQ(put(*writer, "two" + std::to_string(i), value, {.replica_num = 2}), StoreCode::kOk) << i;
    for (int i = 0; i < 50; ++i) ASSERT_EQ(put(*writer, "one" + std::to_string(i), value), StoreCode::kOk) << i;
    // Each time that the node is tried again costs the patience with it; that happens a few times at most.
    EXPECT_LT(Clock::now() - begin, 20s * kSlowness);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(get(*writer, "two" + std::to_string(i), value), 100'000) << i;
    b->go_on();
    EXPECT_TRUE(eventually([&] { return put(*writer, "back", value, {.preferred_segments = {name_b}}) == StoreCode::kOk; }));
}

TEST_P(FaultyPool, PutsGoOnWhileOneOfTwoNodesIsKilled) {
    start_master();
    std::string name_a, name_b;
    auto a = lender(name_a), b = lender(name_b);
    const auto writer = client();
    std::vector<std::vector<std::byte>> values;
    for (uint64_t i = 0; i < 60; ++i) {
        if (i == 20) b->kill();
        values.push_back(pattern(50'000, i));
        ASSERT_EQ(put(*writer, std::to_string(i), values.back(), {.replica_num = 1 + static_cast<uint32_t>(i % 2)}), StoreCode::kOk) << i;
    }
    for (size_t i = 20; i < values.size(); ++i) EXPECT_EQ(get(*writer, std::to_string(i), values[i]), 50'000) << i;
}

TEST_P(FaultyPool, APutOfAValueThatWentWithItsNodeIsStored) {
    start_master();
    std::string name_a, name_b;
    auto a = lender(name_a), b = lender(name_b);
    const auto writer = client(), reader = client();
    auto value = pattern(50'000, 1);
    for (const char* key : {"put", "parts"}) ASSERT_EQ(put(*writer, key, value, {.preferred_segments = {name_a}}), StoreCode::kOk);
    ASSERT_EQ(get(*writer, "put", value), 50'000) << "from now on it knows where";
    a->kill();
    ASSERT_LT(get(*writer, "put", value), 0);
    ASSERT_EQ(put(*writer, "put", value), StoreCode::kOk);
    EXPECT_EQ(get(*writer, "put", value), 50'000);
    EXPECT_EQ(get(*reader, "put", value), 50'000);

    ASSERT_LT(get(*writer, "parts", value), 0);
    const std::string_view key = "parts";
    const Reservation whole{.key = key, .length = value.size(), .group = {}};
    const PartToWrite part{.key = key, .offset = 0, .from = {value.data(), value.size()}};
    ASSERT_EQ(writer->open_writes({&whole, 1}, {}).at(0), StoreCode::kOk);
    EXPECT_EQ(writer->write_open({&part, 1}).at(0), 50'000);
    EXPECT_EQ(writer->close_writes({&key, 1}, false).at(0), StoreCode::kOk);
    EXPECT_EQ(get(*reader, key, value), 50'000);
}

TEST_P(FaultyPool, ANodeThatRestartsAtItsAddressIsNotTakenForItsFormerLife) {
    constexpr uint64_t kValues = 40, kLength = 50'000;
    start_master();
    std::string name;
    auto node = lender(name);
    const auto reader = client(), other = client();
    std::vector<std::vector<std::byte>> old_values, new_values;
    for (uint64_t i = 0; i < kValues; ++i) {
        old_values.push_back(pattern(kLength, i));
        ASSERT_EQ(put(*other, format_text("old{}", i), old_values[i]), StoreCode::kOk);
        ASSERT_EQ(get(*reader, format_text("old{}", i), old_values[i]), kLength) << "from now on it knows where";
    }
    const std::string before = name;
    node->kill();
    node = lender(name);  // as likely as not with the same addresses
    ASSERT_EQ(name, before);
    for (uint64_t i = 0; i < kValues; ++i) {
        new_values.push_back(pattern(kLength, 1000 + i));
        const std::string key = format_text("new{}", i);
        EXPECT_TRUE(eventually([&] { return put(*other, key, new_values[i]) == StoreCode::kOk; })) << key;
    }
    for (uint64_t i = 0; i < kValues; ++i) {
        EXPECT_LT(get(*reader, format_text("old{}", i), old_values[i]), 0) << "it went with its node";
        EXPECT_TRUE(eventually([&] { return get(*reader, format_text("new{}", i), new_values[i]) == kLength; })) << i;
    }
    EXPECT_EQ(put(*reader, "old0", new_values[0]), StoreCode::kOk);
    EXPECT_EQ(get(*other, "old0", new_values[0]), kLength);
}

TEST_P(FaultyPool, AWriteThatWasBegunBeforeItsNodeRestartedDoesNotTouchWhatLiesThereNow) {
    start_master();
    std::string name;
    auto node = repeatable_lender(name);
    const auto writer = client(), other = client();
    std::vector<std::string> keys;
    std::vector<std::vector<std::byte>> parts;
    for (uint64_t i = 0; i < 16; ++i) {
        keys.push_back(format_text("begun{}", i));
        parts.push_back(pattern(i % 2 == 0 ? 6 * kMiB : kMiB, i));  // handed to the engine's threads, and written by ours
        const Reservation whole{.key = keys[i], .length = parts[i].size(), .group = {}};
        ASSERT_EQ(writer->open_writes({&whole, 1}, {}).at(0), StoreCode::kOk);
    }
    auto warm = pattern(1000, 1);
    ASSERT_EQ(put(*writer, "warm", warm), StoreCode::kOk);
    const std::string before = name;
    node->kill();
    node = repeatable_lender(name);
    ASSERT_EQ(name, before);
    std::vector<std::vector<std::byte>> values;
    for (uint64_t i = 0; i < 50; ++i) {
        values.push_back(pattern(kMiB, 1000 + i));
        ASSERT_TRUE(eventually([&] { return put(*other, std::to_string(i), values[i]) == StoreCode::kOk; })) << i;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
        const PartToWrite part{.key = keys[i], .offset = 0, .from = {parts[i].data(), parts[i].size()}};
        for (int tries = 0; tries < 2; ++tries) EXPECT_EQ(writer->write_open({&part, 1}).at(0), kFailed) << keys[i];
        const std::string_view key = keys[i];
        EXPECT_NE(writer->close_writes({&key, 1}, false).at(0), StoreCode::kOk);
    }
    for (uint64_t i = 0; i < values.size(); ++i) EXPECT_EQ(get(*other, std::to_string(i), values[i]), kMiB) << i;
    EXPECT_TRUE(eventually([&] { return put(*writer, "after", warm) == StoreCode::kOk; })) << "the node's new life is no stranger for long";
}

TEST_P(FaultyPool, AWriteThatBrokeOffKeepsNoKey) {
    start_master();
    std::string name_a, name_b;
    auto stopped = lender(name_a);
    const auto writer = client();
    auto value = pattern(1 << 20, 1);
    ASSERT_EQ(put(*writer, "warm", value), StoreCode::kOk);
    stopped->stop();
    const StoreCode code = put(*writer, "k", value);
    const bool mapped = std::string(GetParam()) == "shm";  // needs nobody over there
    EXPECT_EQ(code, mapped ? StoreCode::kOk : StoreCode::kTransferFail);
    auto living = lender(name_b);
    const auto other = client();
    EXPECT_EQ(put(*other, "k", value), StoreCode::kOk);
    EXPECT_EQ(get(mapped ? *writer : *other, "k", value), 1 << 20) << "answered as stored";
}

TEST_P(FaultyPool, APutRightAfterTheMastersReturnIsStored) {
    start_master();
    std::string name;
    auto node = lender(name);
    const auto writer = client();
    auto value = pattern(50'000, 1);
    for (int life = 0; life < 5; ++life) {
        ASSERT_EQ(put(*writer, format_text("before{}", life), value), StoreCode::kOk);
        master_->kill();
        start_master();
        ASSERT_EQ(put(*writer, format_text("after{}", life), value), StoreCode::kOk) << life;
        EXPECT_EQ(get(*writer, format_text("after{}", life), value), 50'000);
    }
}

TEST_P(FaultyPool, AKilledWritersKeyCanBeWrittenAgainAndNothingHalfWrittenIsRead) {
    start_master("2000", "3600000");
    std::string name;
    auto node = lender(name);
    const auto other = client();
    auto value = pattern(2 << 20, 7);
    for (int i = 0; i < 2; ++i) {
        const std::string key = "k" + std::to_string(i);
        auto writer = half_writer(key, 2 << 20);
        EXPECT_EQ(exists(*other, key), 0);
        EXPECT_LT(get(*other, key, value), 0) << "half a value";
        writer->kill();
        EXPECT_LT(get(*other, key, value), 0);
        EXPECT_TRUE(eventually([&] { return put(*other, key, value) == StoreCode::kOk; })) << "sooner than its life without heartbeats";
        EXPECT_EQ(get(*other, key, value), 2 << 20);
    }
}

TEST_P(FaultyPool, AStoppedWriterIsNotAnsweredForAndCannotSpoilItsSuccessor) {
    start_master();
    std::string name;
    auto node = lender(name);
    const auto other = client();
    auto value = pattern(1 << 20, 7);
    auto writer = half_writer("k", 1 << 20);
    writer->stop();
    EXPECT_EQ(put(*other, "k", value), StoreCode::kReplicaIsNotReady) << "it may go on at any time";
    EXPECT_EQ(exists(*other, "k"), 0);
    const Piece piece{value.data(), value.size()};
    const ValueToWrite one{.key = "k", .pieces = {&piece, 1}, .group = {}};
    EXPECT_EQ(other->write({&one, 1}, {}, true).at(0), StoreCode::kOk) << "an upsert supersedes it";
    writer->go_on();
    const std::string ended = writer->line();
    EXPECT_TRUE(ended.starts_with("ended -")) << ended;
    EXPECT_EQ(get(*other, "k", value), 1 << 20);
}

}  // namespace

}  // namespace mooncake::store
