// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/thread.h"
#include "store/bridge/testing/thin_pool.h"

namespace mooncake::store::bridge {
namespace {

using store::testing::pattern;
using testing::ThinTest;

TEST_F(ThinTest, WhatOneWritesAllRead) {
    const auto a = thin(), b = thin();
    auto value = pattern(100'000, 1);
    EXPECT_EQ(exists(*a, "k"), 0);
    EXPECT_EQ(put(*a, "k", value), StoreCode::kOk);
    EXPECT_EQ(exists(*b, "k"), 1);
    EXPECT_TRUE(holds(*b, "k", value));
    EXPECT_TRUE(holds(*node_, "k", value));
    EXPECT_EQ(remove(*b, "k", true), StoreCode::kOk);
    EXPECT_EQ(exists(*a, "k"), 0);
    std::vector<std::byte> into(10);
    EXPECT_EQ(get(*a, "k", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_EQ(a->name(), "");
    EXPECT_TRUE(a->master_reachable());
}

TEST_F(ThinTest, ValuesLongerThanTheWorkingMemoryHaveMemoryOfTheirOwn) {
    const auto a = thin(4096);
    auto value = pattern(3 * kMiB, 2);
    EXPECT_EQ(put(*a, "long", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*a, "long", value));
}

TEST_F(ThinTest, RegisteredMemoryIsUsedWhereItIs) {
    const auto a = thin(0);  // nothing could be copied through
    std::byte* const memory = a->allocate_shared(2 * kMiB);
    ASSERT_NE(memory, nullptr);
    ASSERT_EQ(a->register_buffer(memory, 2 * kMiB), StoreCode::kOk);
    EXPECT_EQ(a->registered_range(memory + 5)->length, 2 * kMiB);
    const auto value = pattern(kMiB, 3);
    std::memcpy(memory, value.data(), value.size());
    const Piece from{memory, value.size()}, to{memory + kMiB, kMiB};
    const ValueToWrite write{.key = "k", .pieces = {&from, 1}};
    EXPECT_EQ(a->write({&write, 1}, {}, false).at(0), StoreCode::kOk);
    const ValueToRead read{.key = "k", .pieces = {&to, 1}};
    EXPECT_EQ(a->read({&read, 1}).at(0), static_cast<int64_t>(value.size()));
    EXPECT_EQ(std::memcmp(memory, memory + kMiB, kMiB), 0);
    void* const addresses[] = {memory, memory + 7, nullptr};
    EXPECT_EQ(a->are_shared(addresses), (std::vector<bool>{true, true, false}));
    EXPECT_EQ(a->unregister_buffer(memory), StoreCode::kOk);
    EXPECT_EQ(a->unregister_buffer(memory), StoreCode::kInvalidParams);
    EXPECT_EQ(a->are_shared(addresses), (std::vector<bool>{false, false, false}));
}

TEST_F(ThinTest, EmptyPiecesAreNoMistake) {
    const auto a = thin();
    std::byte* const memory = a->allocate_shared(kMiB);
    ASSERT_EQ(a->register_buffer(memory, kMiB), StoreCode::kOk);
    std::byte elsewhere{};
    const Piece pieces[] = {{nullptr, 0}, {memory, 10}, {&elsewhere, 0}, {memory + 100, 5}};
    const ValueToWrite write{.key = "k", .pieces = pieces};
    EXPECT_EQ(a->write({&write, 1}, {}, false).at(0), StoreCode::kOk);
    const ValueToRead read{.key = "k", .pieces = pieces};
    EXPECT_EQ(a->read({&read, 1}).at(0), 15);
    const PartToRead nothing{.key = "k", .offset = 3, .to = {nullptr, 0}};
    EXPECT_EQ(a->read_parts({&nothing, 1}).at(0), node_->read_parts({&nothing, 1}).at(0));
}

TEST_F(ThinTest, SessionsOfClientsAreApart) {
    const auto a = thin(), b = thin();
    auto value = pattern(1000, 4);
    const std::string_view key = "parts";
    const Reservation place{.key = key, .length = value.size(), .group = {}};
    EXPECT_EQ(a->open_writes({&place, 1}, {}).at(0), StoreCode::kOk);
    const PartToWrite whole{.key = key, .offset = 0, .from = {value.data(), value.size()}};
    EXPECT_EQ(b->write_open({&whole, 1}).at(0), static_cast<int64_t>(StoreCode::kInvalidParams)) << "it is another's";
    EXPECT_EQ(b->close_writes({&key, 1}, false).at(0), StoreCode::kInvalidParams);
    EXPECT_EQ(a->write_open({&whole, 1}).at(0), 1000);
    EXPECT_EQ(a->close_writes({&key, 1}, false).at(0), StoreCode::kOk);

    EXPECT_EQ(a->open_reads({&key, 1}).at(0), StoreCode::kOk);
    std::vector<std::byte> into(500);
    const PartToRead part{.key = key, .offset = 500, .to = {into.data(), into.size()}};
    EXPECT_EQ(b->read_open({&part, 1}).at(0), static_cast<int64_t>(StoreCode::kInvalidParams));
    EXPECT_EQ(a->read_open({&part, 1}).at(0), 500);
    EXPECT_EQ(std::memcmp(into.data(), value.data() + 500, 500), 0);
    EXPECT_FALSE(b->close_reads({&key, 1}));
    EXPECT_TRUE(a->close_reads({&key, 1}));
}

TEST_F(ThinTest, AWriterThatGoesGivesItsPlacesBack) {
    const std::string_view key = "half";
    const Reservation place{.key = key, .length = 1000, .group = {}};
    thin()->open_writes({&place, 1}, {});
    const auto b = thin();
    EXPECT_TRUE(eventually([&] { return b->open_writes({&place, 1}, {}).at(0) == StoreCode::kOk; }));
    EXPECT_EQ(b->close_writes({&key, 1}, true).at(0), StoreCode::kOk);
}

TEST_F(ThinTest, AllOtherCallsReachTheNode) {
    const auto a = thin();
    auto value = pattern(777, 5);
    ASSERT_EQ(put(*a, "x1", value), StoreCode::kOk);
    ASSERT_EQ(put(*a, "x2", value), StoreCode::kOk);
    const std::string_view key = "x1", none = "none";
    const ValueInfo found = a->find({&key, 1}).at(0), located = a->locate({&key, 1}).at(0);
    EXPECT_EQ(found.length, 777u);
    ASSERT_EQ(located.replicas.size(), 1u);
    EXPECT_EQ(located.replicas.front().segment_name, node_->name());
    EXPECT_EQ(a->find({&none, 1}).at(0).code, StoreCode::kObjectNotFound);
    std::vector<std::byte> into(7);
    EXPECT_EQ(part(*a, "x1", 770, into), 7);
    EXPECT_EQ(std::memcmp(into.data(), value.data() + 770, 7), 0);
    EXPECT_EQ(part(*a, "x1", 771, into), static_cast<int64_t>(StoreCode::kInvalidParams));
    auto other = pattern(5, 6);
    EXPECT_EQ(upsert(*a, "x2", other), StoreCode::kOk);
    EXPECT_TRUE(holds(*a, "x2", other));
    EXPECT_EQ(a->replica_clear({&key, 1}, "nowhere").at(0), node_->replica_clear({&key, 1}, "nowhere").at(0));
    EXPECT_EQ(a->far_disk_reads(), 0u);
    const TaskRequest copy{.type = TaskType::kCopy, .tenant = {}, .key = "none", .source = {}, .targets = {node_->name()}};
    EXPECT_EQ(a->create_task(copy).code, node_->create_task(copy).code);
    EXPECT_FALSE(a->query_task({1, 2}));
    EXPECT_EQ(a->mount_memory(kMiB, "tcp", "").code, StoreCode::kUnavailableInCurrentMode);
    EXPECT_EQ(a->remove_by_regex("x[2-9]", true), 1);
    EXPECT_EQ(a->remove_by_regex("(", true), static_cast<int64_t>(StoreCode::kInvalidParams));
    EXPECT_EQ(a->remove_all(true), 1);
    EXPECT_TRUE(a->write({}, {}, false).empty());
}

TEST_F(ThinTest, LongBatchesTravelAsWell) {
    const auto a = thin();
    std::vector<std::string> names;
    std::vector<std::string_view> keys;
    for (int i = 0; i < 5000; ++i) names.push_back(format_text("a key of a batch that no packet takes, number {}", i));
    keys.assign(names.begin(), names.end());
    EXPECT_EQ(a->exist(keys), std::vector<int32_t>(5000, 0));
}

TEST_F(ThinTest, ManyThreadsShareOneConnection) {
    const auto a = thin();
    std::vector<std::jthread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 8; ++t)
        threads.push_back(start_thread("test", [&, t] {
            for (int i = 0; i < 100; ++i) {
                const std::string key = format_text("{}-{}", t, i);
                auto value = pattern(static_cast<size_t>(500 + i), static_cast<uint64_t>(1000 * t + i));
                if (put(*a, key, value) != StoreCode::kOk || !holds(*a, key, value)) ++wrong;
            }
        }));
    threads.clear();
    EXPECT_EQ(wrong.load(), 0);
}

TEST_F(ThinTest, ClosedClientsAnswerAtOnce) {
    const auto a = thin();
    a->close();
    a->close();
    auto value = pattern(10, 1);
    EXPECT_EQ(put(*a, "k", value), StoreCode::kUnavailableInCurrentStatus);
    EXPECT_EQ(exists(*a, "k"), static_cast<int>(StoreCode::kUnavailableInCurrentStatus));
    EXPECT_FALSE(a->master_reachable());
    EXPECT_TRUE(eventually([&] { return server_->guests() == 0; }));
}

TEST_F(ThinTest, WithoutANodeSetupFails) {
    stop_server();
    wait_ = 50ms;
    EXPECT_EQ(ThinClient::create(config()).error(), StoreCode::kRpcFail);
    ThinConfig bad = config();
    bad.server_address = "nonsense";
    EXPECT_EQ(ThinClient::create(bad).error(), StoreCode::kInvalidParams);
}

TEST_F(ThinTest, AHundredClientsCostTheNodeAFewThreads) {
    std::vector<std::unique_ptr<StoreClient>> all;
    for (int i = 0; i < 100; ++i) all.push_back(thin(4096));
    for (const auto& one : all) EXPECT_EQ(exists(*one, "k"), 0);
    EXPECT_EQ(server_->guests(), 100u);
    EXPECT_LE(server_->threads(), 17u);
    all.clear();
    EXPECT_TRUE(eventually([&] { return server_->guests() == 0; }));
}

// ---- a node that goes and comes

TEST_F(ThinTest, ANodeThatComesBackIsGivenAllMemoryAgain) {
    const auto a = thin();
    std::byte* const memory = a->allocate_shared(kMiB);
    ASSERT_EQ(a->register_buffer(memory, kMiB), StoreCode::kOk);
    auto value = pattern(1000, 7);
    ASSERT_EQ(put(*a, "k", value), StoreCode::kOk);
    const BootId before = server_->boot();
    stop_server();
    start_server();
    ASSERT_NE(server_, nullptr);
    EXPECT_NE(server_->boot(), before);
    void* const addresses[] = {memory};
    EXPECT_EQ(a->are_shared(addresses), std::vector<bool>{true});
    const Piece to{memory, kMiB};
    const ValueToRead read{.key = "k", .pieces = {&to, 1}};
    EXPECT_EQ(a->read({&read, 1}).at(0), 1000);
    EXPECT_TRUE(holds(*a, "k", value));
}

TEST_F(ThinTest, CallsWaitForANodeThatIsNotThereAndNoLonger) {
    const auto a = thin();
    stop_server();
    EXPECT_FALSE(a->master_reachable()) << "at once";
    int seen = -1;
    auto waiting = start_thread("test", [&] { seen = exists(*a, "k"); });
    start_server();
    waiting.join();
    EXPECT_EQ(seen, 0);

    wait_ = 20ms;
    const auto hasty = thin();
    stop_server();
    EXPECT_EQ(exists(*hasty, "k"), static_cast<int>(StoreCode::kRpcFail));
}

TEST_F(ThinTest, ClosingEndsTheWaitForANode) {
    wait_ = 1h;
    const auto a = thin();
    stop_server();
    int seen = 0;
    auto waiting = start_thread("test", [&] { seen = exists(*a, "k"); });
    a->close();
    waiting.join();
    EXPECT_EQ(seen, static_cast<int>(StoreCode::kUnavailableInCurrentStatus));
}

}  // namespace
}  // namespace mooncake::store::bridge
