// SPDX-License-Identifier: Apache-2.0
// Nodes whose memory outlives them, killed at any moment: what was put stays, what was removed does not come back, and nobody reads anything else.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "base/thread.h"
#include "store/node/warm_journal.h"
#include "store/process/store_client.h"
#include "tests/integration/store_role.h"

namespace mooncake::store {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr int kKills = 12;  // more by hand: --gtest_repeat

std::vector<std::byte> value_of(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes((1 + seed % 37) * 4'001);
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
    }
    return bytes;
}

bool eventually(const std::function<bool()>& condition) {
    for (const Deadline deadline = Deadline::after(60s); !condition(); std::this_thread::yield())
        if (deadline.passed()) return false;
    return true;
}

/// On a tmpfs for memory, elsewhere for disks.
struct Folder {
    explicit Folder(const std::string& where) {
        std::string name = where + "/mc_warm_XXXXXX";
        MC_CHECK(::mkdtemp(name.data()) != nullptr);
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path;
};

/// A node that is killed and started again.
class WarmNode {
public:
    WarmNode(std::string master, uint64_t bytes, bool with_disk = false, std::string stop = "remove")
        : master_(std::move(master)), bytes_(bytes), stop_(std::move(stop)), disk_(with_disk) {}

    void launch() {
        std::vector<std::string> words{"warm", master_, std::to_string(bytes_), memory.path, stop_};
        if (disk_) words.push_back(disk.path);
        process = std::make_unique<RoleProcess>(words);
    }
    bool start() {
        launch();
        return ready();
    }
    bool ready() {
        const std::string line = process->line();
        return !line.empty() && line.find("failed") == std::string::npos;
    }
    void kill() { process->kill(); }
    size_t files() const {
        return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(memory.path), std::filesystem::directory_iterator()));
    }
    /// How it stands, as its next life would read it.
    Standing standing() const {
        std::ifstream file(memory.path + "/journal", std::ios::binary);
        const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        const auto all = std::as_bytes(std::span(bytes));
        const auto header = warm::parse_header(all);
        return header ? replay_journal(all, *header, nullptr, Time::max()).remembered.standing : Standing{};
    }

    Folder memory{"/dev/shm"}, disk{"/tmp"};
    std::unique_ptr<RoleProcess> process;

private:
    const std::string master_;
    const uint64_t bytes_;
    const std::string stop_;
    const bool disk_;
};

class StoreWarm : public ::testing::Test {
protected:
    void start_master(const std::string& mode = "-", uint16_t port = 0) {
        master_ = std::make_unique<RoleProcess>(std::vector<std::string>{"tiers", std::to_string(port), "2000", "1000", mode});
        std::istringstream(master_->line()) >> port_;
        ASSERT_NE(port_, 0);
    }
    std::string address() const { return format_text("127.0.0.1:{}", port_); }
    std::unique_ptr<StoreClient> make_client(bool tcp = false) {
        StoreConfig config{.local_hostname = "127.0.0.1", .segment_bytes = 0, .buffer_bytes = 0};
        config.master = address();
        if (tcp) config.options.engine.transports = {"tcp"};
        auto made = StoreClient::create(std::move(config));
        EXPECT_TRUE(made);
        return made ? std::move(*made) : nullptr;
    }
    static StoreCode put(StoreClient& client, const std::string& key, uint64_t seed, bool replace = false) {
        std::vector<std::byte> value = value_of(seed);
        const Piece piece{value.data(), value.size()};
        const ValueToWrite one{.key = key, .pieces = {&piece, 1}};
        return client.write({&one, 1}, {}, replace).at(0);
    }
    /// 1: it is there, and one of these; 0: a miss; -1: other bytes; -2: it cannot be read.
    static int look(StoreClient& client, const std::string& key, const std::set<uint64_t>& seeds) {
        size_t most = 0;
        for (const uint64_t seed : seeds) most = std::max(most, value_of(seed).size());
        std::vector<std::byte> into(most);
        const Piece piece{into.data(), into.size()};
        const ValueToRead one{.key = key, .pieces = {&piece, 1}};
        const int64_t got = client.read({&one, 1}).at(0);
        if (got == static_cast<int64_t>(StoreCode::kObjectNotFound)) return 0;
        if (got < 0) return -2;
        into.resize(static_cast<size_t>(got));
        for (const uint64_t seed : seeds)
            if (into == value_of(seed)) return 1;
        return -1;
    }
    static StoreCode remove(StoreClient& client, const std::string& key) {
        const std::string_view name = key;
        return client.remove({&name, 1}, /*force=*/true).at(0);
    }
    bool on_disk(StoreClient& client, const std::string& key) {
        const std::string_view name = key;
        for (const ReplicaInfo& replica : client.locate({&name, 1}).at(0).replicas)
            if (replica.on_disk) return true;
        return false;
    }

    uint16_t port_ = 0;
    std::unique_ptr<RoleProcess> master_;
};

TEST_F(StoreWarm, ANodeThatWasKilledComesBackWithItsValues) {
    start_master();
    WarmNode node(address(), 64 * kMiB);
    ASSERT_TRUE(node.start());
    for (const bool tcp : {false, true}) {
        const auto client = make_client(tcp);
        const std::string prefix = tcp ? "t" : "s";
        for (uint64_t i = 0; i < 100; ++i) ASSERT_EQ(put(*client, prefix + std::to_string(i), i), StoreCode::kOk) << i;
        for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(remove(*client, prefix + std::to_string(i)), StoreCode::kOk) << i;
        for (int lives = 0; lives < 2; ++lives) {
            node.kill();
            ASSERT_TRUE(node.start());
            for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(look(*client, prefix + std::to_string(i), {i}), 0) << i;
            for (uint64_t i = 10; i < 100; ++i)
                ASSERT_TRUE(eventually([&] {
                    const int seen = look(*client, prefix + std::to_string(i), {i});
                    EXPECT_NE(seen, -1) << i;
                    return seen == 1;
                })) << prefix
                    << i << " in life " << lives;
        }
        EXPECT_TRUE(eventually([&] { return put(*client, prefix + "new", 1) == StoreCode::kOk; })) << "it takes new values";
    }
}

TEST_F(StoreWarm, AStopLeavesNothingUnlessItShall) {
    start_master();
    const auto client = make_client();
    WarmNode gone(address(), 16 * kMiB), kept(address(), 16 * kMiB, false, "keep");
    ASSERT_TRUE(gone.start());
    ASSERT_EQ(put(*client, "a", 1), StoreCode::kOk);
    EXPECT_EQ(gone.files(), 2u);
    gone.process->end();
    EXPECT_EQ(gone.files(), 0u);
    EXPECT_EQ(look(*client, "a", {1}), 0) << "taken out of the pool";
    ASSERT_TRUE(kept.start());
    ASSERT_EQ(put(*client, "b", 2), StoreCode::kOk);
    kept.process->end();
    EXPECT_EQ(kept.files(), 2u);
    ASSERT_TRUE(kept.start());
    EXPECT_TRUE(eventually([&] { return look(*client, "b", {2}) == 1; }));
}

TEST_F(StoreWarm, TwoProcessesDoNotShareADirectory) {
    start_master();
    WarmNode node(address(), 16 * kMiB);
    ASSERT_TRUE(node.start());
    RoleProcess second({"warm", address(), std::to_string(16 * kMiB), node.memory.path, "remove"});
    EXPECT_EQ(second.line(), "failed -600") << "refused";
    const auto client = make_client();
    EXPECT_EQ(put(*client, "a", 1), StoreCode::kOk) << "and the first one goes on";
    node.kill();
    ASSERT_TRUE(node.start()) << "with what it has";
    EXPECT_TRUE(eventually([&] { return look(*client, "a", {1}) == 1; }));
}

TEST_F(StoreWarm, AWriteThatWasUnderWayIsNeverServed) {
    start_master();
    WarmNode node(address(), 64 * kMiB);
    ASSERT_TRUE(node.start());
    const auto client = make_client();
    for (const std::string how : {"shm", "tcp"}) {
        RoleProcess writer({"writer", address(), "half-" + how, std::to_string(8 * kMiB), how});
        ASSERT_EQ(writer.line(), "half");
        node.kill();
        ASSERT_TRUE(node.start());
        EXPECT_EQ(look(*client, "half-" + how, {1}), 0);
        // What is put meanwhile does not lie where the writer may go on.
        for (uint64_t i = 0; i < 100; ++i) (void)eventually([&] { return put(*client, how + std::to_string(i), i) == StoreCode::kOk; });
        writer.stop();
        writer.go_on();
        const std::string ended = writer.line();
        EXPECT_EQ(ended.rfind("ended ", 0), 0u) << ended;
        EXPECT_NE(ended, "ended 0") << "half of its bytes went to a process that is gone";
        for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(look(*client, how + std::to_string(i), {i}), 1) << how << i;
        for (uint64_t i = 0; i < 100; ++i) (void)remove(*client, how + std::to_string(i));
    }
}

TEST_F(StoreWarm, AMasterThatEndedFirstGetsEverythingBack) {
    start_master();
    WarmNode node(address(), 64 * kMiB);
    ASSERT_TRUE(node.start());
    {
        const auto client = make_client();
        for (uint64_t i = 0; i < 50; ++i) ASSERT_EQ(put(*client, "k" + std::to_string(i), i), StoreCode::kOk);
        ASSERT_EQ(remove(*client, "k0"), StoreCode::kOk);
    }
    master_->kill();
    ASSERT_TRUE(eventually([&] { return !node.standing().following; })) << "it hears of the end";
    node.kill();
    start_master("-", port_);
    ASSERT_TRUE(node.start());
    const auto client = make_client();
    EXPECT_EQ(look(*client, "k0", {0}), 0);
    for (uint64_t i = 1; i < 50; ++i) EXPECT_EQ(look(*client, "k" + std::to_string(i), {i}), 1) << i;
}

TEST_F(StoreWarm, WhatAMasterDidWithoutTheNodeIsNotGuessed) {
    start_master();
    WarmNode node(address(), 64 * kMiB);
    ASSERT_TRUE(node.start());
    {
        const auto client = make_client();
        for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(put(*client, "k" + std::to_string(i), i), StoreCode::kOk);
        node.kill();
        ASSERT_EQ(remove(*client, "k3"), StoreCode::kOk);  // which only this master knows
    }
    master_->kill();
    start_master("-", port_);
    ASSERT_TRUE(node.start());
    const auto client = make_client();
    for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(look(*client, "k" + std::to_string(i), {i}), 0) << "a miss rather than a removed value";
    EXPECT_TRUE(eventually([&] { return put(*client, "new", 1) == StoreCode::kOk; }));
    node.kill();
    ASSERT_TRUE(node.start());
    EXPECT_TRUE(eventually([&] { return look(*client, "new", {1}) == 1; }));
}

/// What was told of every key: which values may be there, and whether there must be one.
struct Known {
    std::set<uint64_t> seeds;  // empty: none may
    bool sure = true;          // one of them must
};

class StoreWarmKills : public StoreWarm {
protected:
    /// Puts, replaces and removes until it is stopped, and notes what was answered. One thread.
    void write_for_ever(StoreClient& client, const std::stop_token& stop, uint64_t first_seed, uint64_t keys, const std::string& prefix) {
        std::mt19937_64 random(first_seed);
        for (uint64_t seed = first_seed; !stop.stop_requested(); ++seed) {
            const std::string key = prefix + std::to_string(random() % keys);
            std::unique_lock lock(mutex_);
            const Known before = known_[key];
            const bool there = before.sure && !before.seeds.empty();
            lock.unlock();
            const auto note = [&](Known now) {
                lock.lock();
                known_[key] = std::move(now);
                lock.unlock();
            };
            Known doubt = before;
            doubt.sure = false;
            const uint64_t choice = random() % 10;
            if (choice < 2 && there) {
                note(doubt);
                const StoreCode code = remove(client, key);
                if (code == StoreCode::kOk) note({});
                removed_ += code == StoreCode::kOk ? 1 : 0;
            } else {
                const bool replace = choice < 6;
                if (!replace && there) continue;  // it would be left as it is
                doubt.seeds.insert(seed);
                note(doubt);
                const StoreCode code = put(client, key, seed, replace);
                if (code == StoreCode::kOk && (replace || (before.sure && before.seeds.empty()))) note({.seeds = {seed}});
                put_ += code == StoreCode::kOk ? 1 : 0;
            }
        }
    }
    void read_for_ever(StoreClient& client, const std::stop_token& stop, uint64_t keys, const std::string& prefix) {
        std::mt19937_64 random(keys);
        while (!stop.stop_requested()) {
            const std::string key = prefix + std::to_string(random() % keys);
            std::set<uint64_t> seeds;
            {
                std::unique_lock lock(mutex_);
                seeds = known_[key].seeds;
            }
            if (seeds.empty()) continue;
            const int seen = look(client, key, seeds);
            if (seen == 1) ++read_;
            if (seen != -1) continue;
            std::unique_lock lock(mutex_);  // it may have been replaced between
            if (known_[key].seeds == seeds) wrong_.push_back(key);
        }
    }
    /// Everything there is, now that nobody writes. Returns how many values were there.
    size_t verify(StoreClient& client, const std::string& when) {
        size_t there = 0;
        for (const auto& [key, known] : known_) {
            std::set<uint64_t> any = known.seeds;
            any.insert(36);  // room for the longest
            int seen = look(client, key, any);
            if (known.seeds.empty()) {
                EXPECT_EQ(seen, 0) << key << " was removed, and came back " << when;
                continue;
            }
            (void)eventually([&] { return (seen = look(client, key, known.seeds)) == 1 || !known.sure || seen == -1; });
            EXPECT_NE(seen, -1) << key << " has other bytes " << when;
            if (known.sure) {
                EXPECT_EQ(seen, 1) << key << " is lost " << when;
            }
            there += seen == 1 ? 1 : 0;
        }
        EXPECT_TRUE(wrong_.empty()) << "a reader got other bytes";
        return there;
    }
    /// Kills nodes at any moment, also while they come back, with writers and readers at work; then verifies.
    void run(std::vector<std::unique_ptr<WarmNode>>& nodes, uint64_t keys, int kills, uint64_t seed) {
        const auto writing = make_client(), reading = make_client(/*tcp=*/true), looking = make_client();
        std::mt19937_64 random(seed);
        for (int i = 0; i < kills; ++i) {
            {
                std::jthread writer = start_thread("writer", [&, i](const std::stop_token& stop) {
                    write_for_ever(*writing, stop, seed * 1'000'000 + static_cast<uint64_t>(i + 1) * 10'000, keys, "k");
                });
                std::jthread reader = start_thread("reader",
                                                   [&](const std::stop_token& stop) { read_for_ever(*reading, stop, keys, "k"); });
                const uint64_t enough = put_ + 1 + random() % 60;
                ASSERT_TRUE(eventually([&] { return put_ >= enough; })) << "nothing can be put";
                WarmNode& node = *nodes[random() % nodes.size()];
                node.kill();
                for (uint64_t again = random() % 3; again > 0; --again) {  // in the middle of coming back
                    node.launch();
                    (void)node.process->line(std::chrono::microseconds(random() % 60'000));
                    node.kill();
                }
                ASSERT_TRUE(node.start());
            }
            verify(*looking, format_text("after kill {} of seed {}", i, seed));
            if (HasFailure()) return;
        }
        std::printf("%lu put, %lu removed, %lu read, %zu there at the end\n", put_.load(), removed_.load(), read_.load(),
                    verify(*looking, "at the end"));
    }

    std::mutex mutex_;
    std::map<std::string, Known> known_;
    std::vector<std::string> wrong_;
    std::atomic<uint64_t> put_ = 0, removed_ = 0, read_ = 0;
};

TEST_F(StoreWarmKills, NothingIsLostAndNothingIsWrongInMemory) {
    start_master();
    std::vector<std::unique_ptr<WarmNode>> nodes;
    for (int i = 0; i < 2; ++i) {
        nodes.push_back(std::make_unique<WarmNode>(address(), 256 * kMiB));
        ASSERT_TRUE(nodes.back()->start());
    }
    run(nodes, 200, kKills, std::random_device()());
}

TEST_F(StoreWarmKills, NothingIsLostAndNothingIsWrongWithDisks) {
    start_master("ep");
    std::vector<std::unique_ptr<WarmNode>> nodes;
    for (int i = 0; i < 2; ++i) {
        nodes.push_back(std::make_unique<WarmNode>(address(), 16 * kMiB, /*disk=*/true));
        ASSERT_TRUE(nodes.back()->start());
    }
    run(nodes, 1'000, kKills, std::random_device()());  // more than memory has room for
}

}  // namespace
}  // namespace mooncake::store
