// SPDX-License-Identifier: Apache-2.0
// Pools of real processes whose members are killed and stopped, seen through a client: every byte that is read is checked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "store/process/store_client.h"
#include "tests/integration/store_role.h"

namespace mooncake::store {

namespace {

constexpr uint64_t kLength = 1024;
constexpr size_t kBatch = 1000;

/// A client in this process; values are made from their keys, so that any of them can be checked.
class Member {
public:
    explicit Member(const std::string& master, uint64_t segment_bytes = 0) {
        StoreConfig config{.local_hostname = "127.0.0.1", .segment_bytes = segment_bytes, .buffer_bytes = 0};
        config.master = master;
        config.options.engine.log.level = LogLevel::kError;
        auto made = StoreClient::create(std::move(config));
        MC_CHECK(made.has_value());
        client_ = std::move(*made);
        memory_.resize(kBatch * kLength);
        MC_CHECK(client_->register_buffer(memory_.data(), memory_.size()) == StoreCode::kOk);
    }
    StoreClient& client() { return *client_; }

    /// How many were stored.
    size_t put(const std::string& prefix, size_t count, uint32_t replicas = 1) {
        return for_batches(prefix, count, [&](const std::vector<std::string>& keys) {
            for (size_t i = 0; i < keys.size(); ++i) fill(keys[i], &memory_[i * kLength]);
            const std::vector<Piece> pieces = pieces_of(keys.size());
            std::vector<ValueToWrite> values;
            for (size_t i = 0; i < keys.size(); ++i) values.push_back({.key = keys[i], .pieces = {&pieces[i], 1}});
            const std::vector<StoreCode> codes = client_->write(values, {.replica_num = replicas}, false);
            return static_cast<size_t>(std::count(codes.begin(), codes.end(), StoreCode::kOk));
        });
    }
    /// How many could be read. None may be wrong.
    size_t get(const std::string& prefix, size_t count) {
        return for_batches(prefix, count, [&](const std::vector<std::string>& keys) {
            const std::vector<Piece> pieces = pieces_of(keys.size());
            std::vector<ValueToRead> values;
            for (size_t i = 0; i < keys.size(); ++i) values.push_back({.key = keys[i], .pieces = {&pieces[i], 1}});
            const std::vector<int64_t> lengths = client_->read(values);
            std::vector<std::byte> expected(kLength);
            size_t read = 0;
            for (size_t i = 0; i < keys.size(); ++i) {
                if (lengths[i] < 0) continue;
                fill(keys[i], expected.data());
                EXPECT_EQ(lengths[i], static_cast<int64_t>(kLength));
                EXPECT_EQ(std::memcmp(expected.data(), &memory_[i * kLength], kLength), 0) << "other bytes for " << keys[i];
                ++read;
            }
            return read;
        });
    }
    /// Until so many can be read: it may take a moment after a master came back. Returns how many.
    size_t get_at_least(const std::string& prefix, size_t count, size_t enough) {
        size_t read = 0;
        for (const Deadline patience = Deadline::after(60s); read < enough && !patience.passed();) read = get(prefix, count);
        EXPECT_GE(read, enough);
        return read;
    }
    void get_all(const std::string& prefix, size_t count) { get_at_least(prefix, count, count); }
    /// Until all of them are stored.
    void put_all(const std::string& prefix, size_t count) {
        size_t stored = 0;
        for (const Deadline patience = Deadline::after(60s); stored != count && !patience.passed();) stored = put(prefix, count);
        EXPECT_EQ(stored, count);
    }

private:
    template <typename Batch>
    static size_t for_batches(const std::string& prefix, size_t count, Batch&& batch) {
        size_t done = 0;
        for (size_t first = 0; first < count; first += kBatch) {
            std::vector<std::string> keys;
            for (size_t i = first; i < std::min(count, first + kBatch); ++i) keys.push_back(format_text("{}/{}", prefix, i));
            done += batch(keys);
        }
        return done;
    }
    static void fill(const std::string& key, std::byte* to) {
        uint64_t state = std::hash<std::string>{}(key) | 1;
        for (uint64_t i = 0; i < kLength; i += sizeof state) {
            state = state * 6364136223846793005 + 1442695040888963407;
            std::memcpy(to + i, &state, sizeof state);
        }
    }
    std::vector<Piece> pieces_of(size_t count) {
        std::vector<Piece> pieces;
        for (size_t i = 0; i < count; ++i) pieces.push_back({&memory_[i * kLength], kLength});
        return pieces;
    }

    std::unique_ptr<StoreClient> client_;
    std::vector<std::byte> memory_;
};

double seconds_since(Time began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

/// Lends memory, in a process of its own.
std::unique_ptr<RoleProcess> lender(const MasterProcess& master, uint64_t bytes) {
    auto process = std::make_unique<RoleProcess>(std::vector<std::string>{"client", master.address(), std::to_string(bytes)});
    EXPECT_FALSE(process->line().empty());
    return process;
}

}  // namespace

TEST(StorePool, EveryValueCanBeReadAgainAfterTheMasterWasKilled) {
    constexpr size_t kKeys = 100'000;
    MasterProcess master;
    const auto one = lender(master, 128 << 20), two = lender(master, 128 << 20);
    Member member(master.address());
    const Time began = Clock::now();
    ASSERT_EQ(member.put("k", kKeys), kKeys);
    ASSERT_EQ(member.get("k", kKeys), kKeys);
    const double before_s = seconds_since(began);
    master.kill();
    master.start();
    const Time back = Clock::now();
    Member fresh(master.address());  // it remembers nothing
    fresh.get_all("k", kKeys);
    const double took_s = seconds_since(back);
    GTEST_LOG_(INFO) << kKeys << " values read again " << took_s << " s after the master's return; written and read before in " << before_s;
    EXPECT_LT(took_s, 60 * kSlowness);  // half a second on a machine with nothing else to do
    member.put_all("new", 20'000);
    EXPECT_EQ(fresh.get("k", kKeys), kKeys) << "nothing was overwritten";
    EXPECT_EQ(fresh.get("new", 20'000), 20'000U);
}

TEST(StorePool, WhatIsLeasedCanBeReadWhileThereIsNoMaster) {
    MasterProcess master(10s, 60s);
    const auto one = lender(master, 16 << 20);
    Member member(master.address());
    ASSERT_EQ(member.put("k", 1000), 1000U);
    ASSERT_EQ(member.get("k", 1000), 1000U);
    master.kill();
    EXPECT_EQ(member.get("k", 1000), 1000U);
    EXPECT_EQ(member.put("new", 1), 0U);
    master.start();
    member.get_all("k", 1000);
}

TEST(StorePool, AMasterThatIsStoppedForLongerThanClientsLiveLosesNothing) {
    MasterProcess master(2s, 1s);
    const auto one = lender(master, 16 << 20);
    Member member(master.address());
    ASSERT_EQ(member.put("k", 1000), 1000U);
    master.process().stop();
    EXPECT_EQ(master.process().line(3s), "");  // a time, not an answer
    master.process().go_on();
    member.put_all("more", 1000);
    EXPECT_EQ(member.get("k", 1000), 1000U);
    EXPECT_EQ(member.get("more", 1000), 1000U);
}

TEST(StorePool, AStoppedNodeCostsItsOwnValuesAndBringsThemBack) {
    MasterProcess master(2s, 1s);
    const auto one = lender(master, 16 << 20), two = lender(master, 16 << 20);
    Member member(master.address());
    ASSERT_EQ(member.put("k", 1000), 1000U);
    two->stop();
    EXPECT_EQ(two->line(3s), "");  // until it is given up, at the latest
    const size_t left = member.get("k", 1000);
    EXPECT_GT(left, 100U);
    EXPECT_LT(left, 900U);
    EXPECT_EQ(member.put("new", 1000), 1000U) << "there is another one";
    two->go_on();
    member.get_all("k", 1000);
    EXPECT_EQ(member.get("new", 1000), 1000U);
}

TEST(StorePool, OfFiveNodesOneIsKilledOneStoppedAndTheMasterReplaced) {
    constexpr size_t kSingle = 5000, kDouble = 2000;
    MasterProcess master(2s, 1s);
    std::vector<std::unique_ptr<RoleProcess>> nodes;
    for (int i = 0; i < 5; ++i) nodes.push_back(lender(master, 16 << 20));
    Member member(master.address());
    ASSERT_EQ(member.put("single", kSingle), kSingle);
    ASSERT_EQ(member.put("double", kDouble, 2), kDouble);
    nodes[0]->kill();
    EXPECT_EQ(member.get("double", kDouble), kDouble) << "there is another replica";
    const size_t left = member.get("single", kSingle);
    EXPECT_GT(left, kSingle * 7 / 10);
    EXPECT_LT(left, kSingle * 9 / 10) << "each node has a fair share";
    EXPECT_EQ(member.put("while one is dead", 1000), 1000U);

    nodes[1]->stop();
    master.kill();
    master.start();
    Member fresh(master.address());
    EXPECT_LT(fresh.get_at_least("single", kSingle, left - kSingle * 3 / 10), left) << "a fair share is away";
    member.put_all("while one is stopped", 1000);
    nodes[1]->go_on();
    EXPECT_EQ(fresh.get_at_least("single", kSingle, left), left);
    fresh.get_all("double", kDouble);
    fresh.get_all("while one is dead", 1000);
    EXPECT_EQ(fresh.get("while one is stopped", 1000), 1000U);

    nodes[0] = lender(master, 16 << 20);
    member.put_all("with a new one", 2000);
    EXPECT_EQ(fresh.get("with a new one", 2000), 2000U);
    EXPECT_EQ(fresh.get("single", kSingle), left);
}

TEST(StorePool, ReadersAndWritersSurviveAMasterThatDiesAgainAndAgain) {
    constexpr int kLives = 5;
    constexpr size_t kEach = 200, kMost = 100'000;
    MasterProcess master;
    const auto one = lender(master, 128 << 20), two = lender(master, 128 << 20);
    std::atomic<bool> done{false};
    std::atomic<size_t> stored{0};
    std::vector<std::string> prefixes;
    std::jthread writer([&] {
        Member member(master.address());
        for (int i = 0; !done; ++i) {
            const std::string prefix = format_text("w/{}", i);
            if (stored >= kMost || member.put(prefix, kEach) != kEach) continue;
            prefixes.push_back(prefix);
            stored += kEach;
            EXPECT_LE(member.get(prefix, kEach), kEach);  // bytes are checked; there may be no master to ask
        }
    });
    Member reader(master.address());
    for (int life = 1; life <= kLives; ++life) {
        const size_t enough = std::min(stored + 3000, kMost);
        for (const Deadline patience = Deadline::after(60s); stored < enough;) {
            ASSERT_FALSE(patience.passed()) << "life " << life;
            std::this_thread::yield();
        }
        master.kill();
        master.start();
    }
    done = true;
    writer.join();
    for (const std::string& prefix : prefixes) reader.get_all(prefix, kEach);
    GTEST_LOG_(INFO) << stored << " values stored during " << kLives << " deaths of the master";
}

}  // namespace mooncake::store
