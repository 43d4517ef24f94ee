// SPDX-License-Identifier: Apache-2.0
// Values between memory and disks, with masters and nodes as processes that are killed.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "store/process/store_client.h"
#include "tests/integration/store_role.h"

namespace mooncake::store {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kLength = 300'000;
constexpr int kKills = 10;  // more by hand: --gtest_repeat

std::vector<std::byte> value_of(uint64_t seed, size_t length = kLength) {
    std::vector<std::byte> bytes(length);
    std::mt19937_64 random(seed);
    for (size_t i = 0; i + 8 <= length; i += 8) {
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

struct Folder {
    Folder() {
        char name[] = "/tmp/mc_tiers_XXXXXX";
        MC_CHECK(::mkdtemp(name) != nullptr);
        path = name;
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string path;
};

class StoreTiers : public ::testing::Test {
protected:
    /// `mode`: letters: e eager, v before values would have to go, f even those that are not on a disk, p promotion.
    void start(const std::string& mode) {
        master_ = std::make_unique<RoleProcess>(std::vector<std::string>{"tiers", "0", "3000", "500", mode});
        std::string port;
        std::istringstream(master_->line()) >> port;
        address_ = "127.0.0.1:" + port;
        StoreConfig config{.local_hostname = "127.0.0.1", .segment_bytes = 0, .buffer_bytes = 0};
        config.master = address_;
        auto made = StoreClient::create(std::move(config));
        ASSERT_TRUE(made);
        client_ = std::move(*made);
    }
    void start_node(uint64_t bytes = 16 * kMiB, uint64_t disk_bytes = 1024 * kMiB) {
        // By another port each time: it is the directory that makes it the same.
        node_ = std::make_unique<RoleProcess>(std::vector<std::string>{"client", address_, std::to_string(bytes), "any", "127.0.0.1",
                                                                       folder_.path, std::to_string(disk_bytes)});
        ASSERT_FALSE(node_->line().empty());
    }
    StoreCode put(const std::string& key, std::vector<std::byte> value) {
        const Piece piece{value.data(), value.size()};
        const ValueToWrite one{.key = key, .pieces = {&piece, 1}};
        return client_->write({&one, 1}, {}, false).at(0);
    }
    int64_t get(const std::string& key, std::vector<std::byte>& into) {
        const Piece piece{into.data(), into.size()};
        const ValueToRead one{.key = key, .pieces = {&piece, 1}};
        return client_->read({&one, 1}).at(0);
    }
    /// 1: it is there, and right; 0: a miss; -1: something else.
    int look(const std::string& key, uint64_t seed) {
        std::vector<std::byte> into(kLength);
        const int64_t got = get(key, into);
        if (got == static_cast<int64_t>(kLength)) return into == value_of(seed) ? 1 : -1;
        return got == static_cast<int64_t>(StoreCode::kObjectNotFound) ? 0 : -1;
    }
    bool on_disk(const std::string& key) {
        const std::string_view name = key;
        for (const ReplicaInfo& replica : client_->locate({&name, 1}).at(0).replicas)
            if (replica.on_disk) return true;
        return false;
    }
    bool in_memory(const std::string& key) {
        const std::string_view name = key;
        for (const ReplicaInfo& replica : client_->locate({&name, 1}).at(0).replicas)
            if (!replica.on_disk) return true;
        return false;
    }

    Folder folder_;
    std::string address_;
    std::unique_ptr<RoleProcess> master_, node_;
    std::unique_ptr<StoreClient> client_;
};

TEST_F(StoreTiers, ValuesSurviveTheirNodeOnItsDisk) {
    start("e");
    start_node();
    for (uint64_t i = 0; i < 20; ++i) ASSERT_EQ(put("k" + std::to_string(i), value_of(i)), StoreCode::kOk);
    for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(eventually([&] { return on_disk("k" + std::to_string(i)); })) << i;
    node_->kill();
    start_node();
    for (uint64_t i = 0; i < 20; ++i) {
        const std::string key = "k" + std::to_string(i);
        ASSERT_TRUE(eventually([&] { return on_disk(key); })) << i;
        EXPECT_FALSE(in_memory(key)) << "its memory went with the process";
        EXPECT_EQ(look(key, i), 1) << i;
    }
    EXPECT_GT(client_->far_disk_reads(), 0u);
    // Ranged, and into many buffers.
    std::vector<std::byte> part(1000);
    const PartToRead one{.key = "k3", .offset = 65'000, .to = {part.data(), part.size()}};
    ASSERT_EQ(client_->read_parts({&one, 1}).at(0), 1000);
    EXPECT_EQ(std::memcmp(part.data(), value_of(3).data() + 65'000, 1000), 0);
}

TEST_F(StoreTiers, MoreThanMemoryHoldsIsReadFromTheDisk) {
    start("v");
    start_node();
    constexpr uint64_t kCount = 200;  // four times the memory
    for (uint64_t i = 0; i < kCount; ++i)
        ASSERT_TRUE(eventually([&] { return put("k" + std::to_string(i), value_of(i)) == StoreCode::kOk; })) << i;
    size_t from_disk = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
        const std::string key = "k" + std::to_string(i);
        from_disk += in_memory(key) ? 0 : 1;
        EXPECT_EQ(look(key, i), 1) << i;
    }
    EXPECT_GT(from_disk, kCount / 2);
}

TEST_F(StoreTiers, WhatIsReadAgainComesBackToMemory) {
    start("ep");
    start_node();
    for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(put("k" + std::to_string(i), value_of(i)), StoreCode::kOk);
    for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(eventually([&] { return on_disk("k" + std::to_string(i)); }));
    node_->kill();
    start_node();
    ASSERT_TRUE(eventually([&] { return on_disk("k3"); }));
    ASSERT_FALSE(in_memory("k3"));
    EXPECT_TRUE(eventually([&] { return look("k3", 3) == 1 && in_memory("k3"); }));
    EXPECT_EQ(look("k3", 3), 1);
}

TEST_F(StoreTiers, WhatWasRemovedDoesNotComeBackFromADisk) {
    start("e");
    start_node();
    for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(put("k" + std::to_string(i), value_of(i)), StoreCode::kOk);
    for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(eventually([&] { return on_disk("k" + std::to_string(i)); }));
    for (uint64_t i = 0; i < 5; ++i) {
        const std::string key = "k" + std::to_string(i);
        const std::string_view name = key;
        ASSERT_EQ(client_->remove({&name, 1}, true).at(0), StoreCode::kOk);
    }
    // Something that is written later is on the disk: so is the removal before it.
    ASSERT_EQ(put("later", value_of(99)), StoreCode::kOk);
    ASSERT_TRUE(eventually([&] { return on_disk("later"); }));
    node_->kill();
    start_node();
    ASSERT_TRUE(eventually([&] { return on_disk("later"); }));
    for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(look("k" + std::to_string(i), i), i < 5 ? 0 : 1) << i;
}

TEST_F(StoreTiers, ANodeKilledAtAnyPointLosesOnlyWhatWasInMemoryAlone) {
    start("ep");
    std::mt19937_64 random(std::random_device{}());
    std::set<uint64_t> durable;
    uint64_t next = 0;
    for (int round = 0; round < kKills; ++round) {
        start_node();
        for (const uint64_t i : durable) ASSERT_TRUE(eventually([&] { return look("k" + std::to_string(i), i) == 1; })) << i;
        const uint64_t puts = random() % 12;
        std::vector<uint64_t> written;
        for (uint64_t n = 0; n < puts; ++n, ++next) {
            if (put("k" + std::to_string(next), value_of(next)) != StoreCode::kOk) continue;
            written.push_back(next);
            if (!durable.empty()) {  // promotions are under way, too
                const uint64_t old = *durable.begin();
                EXPECT_GE(look("k" + std::to_string(old), old), 0);
            }
        }
        for (const uint64_t i : written)
            if (on_disk("k" + std::to_string(i))) durable.insert(i);
        node_->kill();
        while (durable.size() > 20) {
            const std::string key = "k" + std::to_string(*durable.begin());
            durable.erase(durable.begin());
        }
    }
    start_node();
    for (uint64_t i = 0; i < next; ++i) {
        const std::string key = "k" + std::to_string(i);
        if (durable.contains(i)) EXPECT_TRUE(eventually([&] { return look(key, i) == 1; })) << i;
        else EXPECT_GE(look(key, i), 0) << i;
    }
}

TEST_F(StoreTiers, AFullFileSystemCostsCopiesAndNothingElse) {
    if (::mount("none", folder_.path.c_str(), "tmpfs", 0, "size=24m") != 0) GTEST_SKIP() << "cannot mount: " << std::strerror(errno);
    start("ef");
    start_node(16 * kMiB, 64 * kMiB);  // it is full long before what we think it has
    for (uint64_t i = 0; i < 300; ++i) {
        ASSERT_TRUE(eventually([&] { return put("k" + std::to_string(i), value_of(i)) == StoreCode::kOk; })) << i;
        ASSERT_GE(look("k" + std::to_string(i / 2), i / 2), 0) << i;
    }
    size_t there = 0;
    for (uint64_t i = 0; i < 300; ++i) {
        const int found = look("k" + std::to_string(i), i);
        EXPECT_GE(found, 0) << i;
        there += found == 1 ? 1 : 0;
    }
    EXPECT_GT(there, 50u);
    size_t kept = 0;
    for (uint64_t i = 0; i < 300; ++i) kept += on_disk("k" + std::to_string(i)) ? 1 : 0;
    EXPECT_GT(kept, 10u) << "what fits is there";
    node_.reset();
    EXPECT_EQ(::umount2(folder_.path.c_str(), MNT_DETACH), 0);
}

}  // namespace
}  // namespace mooncake::store
