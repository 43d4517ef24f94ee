// SPDX-License-Identifier: Apache-2.0
// What every tier does: the one on a disk, however that is reached, and its twin in memory.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "store/protocol/stored_form.h"
#include "store/tier/arena.h"
#include "store/tier/log_tier.h"
#include "store/tier/testing/memory_tier.h"
#include "store/tier/testing/sim_disk.h"
#include "store/tier/testing/tier_calls.h"

namespace mooncake::store {
namespace {

using namespace tier_calls;

constexpr uint64_t kCapacity = 64 << 20;

struct Gone final : TierObserver {
    void on_gone(std::span<const TierObject> objects) noexcept override {
        const Lock lock(mutex);
        for (const TierObject& object : objects) keys.emplace_back(object.key);
    }
    Mutex mutex;
    std::vector<std::string> keys MC_GUARDED_BY(mutex);
};

class TierConformance : public testing::TestWithParam<std::string> {
protected:
    void SetUp() override {
        char folder[] = "/tmp/mc_tier_XXXXXX";
        ASSERT_NE(::mkdtemp(folder), nullptr);
        folder_ = folder;
        open();
    }
    void TearDown() override {
        tier_ = nullptr;
        std::filesystem::remove_all(folder_);
    }

    std::unique_ptr<StorageTier> make() {
        if (GetParam() == "memory") return std::make_unique<MemoryTier>(shelf_, kCapacity, &gone_);
        LogTierOptions options;
        options.capacity_bytes = kCapacity;
        options.file_bytes = 4 << 20;
        options.observer = &gone_;
        if (GetParam() == "simulated") return make_log_tier(sim_->mount(), options);
        auto disk = open_disk({.path = folder_, .kind = GetParam() == "ring" ? DiskKind::kRing : DiskKind::kThreads});
        if (!disk) return nullptr;
        return make_log_tier(std::move(*disk), options);
    }
    void open() {
        tier_ = make();
        if (tier_ == nullptr) GTEST_SKIP() << "no io_uring here";
        const auto found = tier_->recover();
        ASSERT_TRUE(found) << found.error().to_string();
    }
    void reopen() {
        tier_->close();
        tier_ = nullptr;
        open();
    }

    std::string folder_;
    const std::shared_ptr<MemoryTier::Shelf> shelf_ = std::make_shared<MemoryTier::Shelf>();
    const std::shared_ptr<SimStore> sim_ = std::make_shared<SimStore>();
    Gone gone_;
    std::unique_ptr<StorageTier> tier_;
};

TEST_P(TierConformance, FindsValuesByTheirGeneration) {
    std::string texts;
    for (uint64_t i = 1; i <= 200; ++i) ASSERT_EQ(put(*tier_, "k" + std::to_string(i), 1000 + i, make_bytes(i, 100)), Code::kOk);
    ASSERT_EQ(put(*tier_, "k7", 5000, make_bytes(7, 50)), Code::kOk);
    ASSERT_EQ(remove(*tier_, "k9", 1009), Code::kOk);
    for (int lives = 0; lives < 2; ++lives) {
        for (uint64_t i = 1; i <= 200; ++i) {
            const auto found = tier_->find(1000 + i, texts);
            ASSERT_EQ(found.has_value(), i != 7 && i != 9) << i;
            if (found) {
                EXPECT_EQ(found->key, "k" + std::to_string(i));
            }
        }
        const auto replaced = tier_->find(5000, texts);
        ASSERT_TRUE(replaced);
        EXPECT_EQ(replaced->key, "k7");
        EXPECT_EQ(replaced->tenant, "default");
        EXPECT_EQ(replaced->length, 50u);
        EXPECT_FALSE(tier_->find(1, texts));
        reopen();
    }
}

TEST_P(TierConformance, ValuesOfAllSizesComeBack) {
    const size_t sizes[] = {1,     100,   4000,    4096,    5000,          32 << 10,  (32 << 10) + 1, 65535,
                            65536, 65537, 200'000, 1 << 20, (1 << 20) + 1, 3'333'333, 9 << 20};
    for (const size_t size : sizes) EXPECT_EQ(put(*tier_, "k" + std::to_string(size), 1, make_bytes(size, size)), Code::kOk) << size;
    for (int round = 0; round < 2; ++round) {
        for (const size_t size : sizes) {
            const Got got = get(*tier_, "k" + std::to_string(size), size);
            EXPECT_EQ(got.code, Code::kOk) << size;
            EXPECT_TRUE(got.bytes == make_bytes(size, size)) << size;
        }
        reopen();
    }
}

TEST_P(TierConformance, PartsComeBack) {
    const Bytes bytes = make_bytes(5, 700'001);
    ASSERT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    for (const uint64_t offset :
         {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{65535}, uint64_t{65536}, uint64_t{300'000}, uint64_t{700'000}}) {
        for (const size_t length : {size_t{0}, size_t{1}, size_t{100}, size_t{65536}, size_t{200'000}, bytes.size() - offset}) {
            if (offset + length > bytes.size()) continue;
            const Got got = get_part(*tier_, "k", offset, length);
            EXPECT_EQ(got.code, Code::kOk);
            EXPECT_TRUE(std::equal(got.bytes.begin(), got.bytes.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset)))
                << offset << " " << length;
        }
    }
    EXPECT_EQ(get_part(*tier_, "k", 700'000, 2).code, Code::kInvalidArgument);
    EXPECT_EQ(get_part(*tier_, "k", 700'002, 0).code, Code::kInvalidArgument);
}

TEST_P(TierConformance, DirectReadsComeBack) {
    const Bytes bytes = make_bytes(5, (2 << 20) + 12345);
    ASSERT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    const auto pages = Pages::create(round_to_blocks(bytes.size()));
    ASSERT_TRUE(pages);
    for (const uint64_t offset : {uint64_t{0}, uint64_t{65536}, uint64_t{77}}) {
        TierRead read{
            .tenant = "default", .key = "k", .offset = offset, .into = pages->bytes().first(bytes.size() - offset), .direct = true};
        Completion completion;
        tier_->read(std::span(&read, 1), Deadline::after(60s), completion);
        ASSERT_TRUE(completion.wait(Deadline::after(60s)));
        EXPECT_EQ(read.result, Code::kOk);
        EXPECT_TRUE(std::equal(read.into.begin(), read.into.end(), bytes.begin() + static_cast<std::ptrdiff_t>(offset)));
    }
}

TEST_P(TierConformance, WhatWasNeverThereIsAMiss) {
    EXPECT_EQ(get(*tier_, "k", 1).code, Code::kNotFound);
    EXPECT_EQ(remove(*tier_, "k"), Code::kOk);
    ASSERT_EQ(put(*tier_, "k", 3, make_bytes(1, 10)), Code::kOk);
    EXPECT_EQ(get(*tier_, "k", 10, "another tenant").code, Code::kNotFound);
    Bytes into(10);
    TierRead read{.tenant = "default", .key = "k", .generation = 2, .into = into};
    Completion completion;
    tier_->read(std::span(&read, 1), Deadline::never(), completion);
    completion.wait(Deadline::after(60s));
    EXPECT_EQ(read.result, Code::kNotFound);
}

TEST_P(TierConformance, TheHigherGenerationCounts) {
    ASSERT_EQ(put(*tier_, "k", 5, make_bytes(5, 5000)), Code::kOk);
    EXPECT_EQ(put(*tier_, "k", 5, make_bytes(6, 5000)), Code::kAlreadyExists);
    EXPECT_EQ(put(*tier_, "k", 4, make_bytes(4, 5000)), Code::kStale);
    EXPECT_EQ(put(*tier_, "k", 6, make_bytes(6, 6000)), Code::kOk);
    for (int round = 0; round < 2; ++round) {
        EXPECT_TRUE(get(*tier_, "k", 6000).bytes == make_bytes(6, 6000));
        EXPECT_EQ(list(*tier_).size(), 1u);
        reopen();
    }
}

TEST_P(TierConformance, WhatWasRemovedStaysGone) {
    ASSERT_EQ(put(*tier_, "a", 5, make_bytes(5, 5000)), Code::kOk);
    ASSERT_EQ(put(*tier_, "b", 6, make_bytes(6, 5000)), Code::kOk);
    EXPECT_EQ(remove(*tier_, "a", 4), Code::kOk);  // an older one
    EXPECT_EQ(get(*tier_, "a", 5000).code, Code::kOk);
    EXPECT_EQ(remove(*tier_, "a", 5), Code::kOk);
    for (int round = 0; round < 3; ++round) {
        EXPECT_EQ(get(*tier_, "a", 5000).code, Code::kNotFound);
        EXPECT_EQ(get(*tier_, "b", 5000).code, Code::kOk);
        reopen();
    }
    EXPECT_EQ(put(*tier_, "a", 9, make_bytes(9, 5000)), Code::kOk);
    reopen();
    EXPECT_TRUE(get(*tier_, "a", 5000).bytes == make_bytes(9, 5000));
}

/// A master that had lost sight of a copy has it removed, and orders it anew: the value is the same one, of the same generation.
TEST_P(TierConformance, WhatWasRemovedMayBeWrittenAgain) {
    ASSERT_EQ(put(*tier_, "other", 1, make_bytes(1, 5000)), Code::kOk);  // its file stays
    for (const size_t size : {size_t{5000}, size_t{3'000'000}}) {        // the latter has a file of its own
        const std::string key = "k" + std::to_string(size);
        const Bytes bytes = make_bytes(size, size);
        ASSERT_EQ(put(*tier_, key, 5, bytes), Code::kOk);
        for (int round = 0; round < 3; ++round) {
            EXPECT_EQ(remove(*tier_, key, 5), Code::kOk);
            if (round != 0) reopen();
            EXPECT_EQ(get(*tier_, key, size).code, Code::kNotFound) << size << ", round " << round;
            EXPECT_EQ(put(*tier_, key, 5, bytes), Code::kOk) << size << ", round " << round;
            reopen();
            EXPECT_TRUE(get(*tier_, key, size).bytes == bytes) << size << ", round " << round;
        }
        EXPECT_EQ(remove(*tier_, key, 5), Code::kOk);
        for (int round = 0; round < 3; ++round) {
            reopen();
            EXPECT_EQ(get(*tier_, key, size).code, Code::kNotFound) << size;
        }
    }
}

TEST_P(TierConformance, BytesThatAreNotTheChecksumsAreRefused) {
    for (const size_t size : {size_t{100}, size_t{100'000}, size_t{3'000'000}}) {
        const Bytes bytes = make_bytes(1, size);
        TierWrite write;
        write.object = {.tenant = "default", .key = "k", .length = size, .generation = 1, .checksum = 12345};
        write.value = bytes;
        Completion completion;
        tier_->write(std::span(&write, 1), Deadline::never(), completion);
        ASSERT_TRUE(completion.wait(Deadline::after(60s)));
        EXPECT_EQ(write.result, Code::kCorrupt) << size;
        EXPECT_EQ(get(*tier_, "k", size).code, Code::kNotFound);
    }
    reopen();
    EXPECT_NE(get(*tier_, "k", 100).code, Code::kOk);
    EXPECT_EQ(put(*tier_, "k", 2, make_bytes(2, 100)), Code::kOk);
    EXPECT_EQ(get(*tier_, "k", 100).code, Code::kOk);
}

TEST_P(TierConformance, ReportsWhatAMasterMustKnow) {
    const Bytes bytes = make_bytes(1, 100'000);
    std::vector<uint64_t> table;
    const std::span<const std::byte> piece = bytes;
    TierWrite write;
    write.object = {.tenant = "t",
                    .key = "k",
                    .group = "g",
                    .length = bytes.size(),
                    .generation = 77,
                    .checksum = hash_value(std::span(&piece, 1), table),
                    .data_type = ObjectDataType::kWeight,
                    .hard_pin = true,
                    .soft_pin_left = 3600s,
                    .writer = {3, 4}};
    write.value = bytes;
    Completion completion;
    tier_->write(std::span(&write, 1), Deadline::never(), completion);
    ASSERT_TRUE(completion.wait(Deadline::after(60s)));
    ASSERT_EQ(write.result, Code::kOk);
    for (int round = 0; round < 2; ++round) {
        const auto listed = list(*tier_);
        ASSERT_EQ(listed.size(), 1u);
        const Listed& object = listed.at("t/k");
        EXPECT_EQ(object.generation, 77u);
        EXPECT_EQ(object.length, bytes.size());
        EXPECT_EQ(object.checksum, write.object.checksum);
        EXPECT_EQ(object.group, "g");
        EXPECT_TRUE(object.hard_pin);
        EXPECT_GT(object.soft_pin_left, 3000s);
        EXPECT_LE(object.soft_pin_left, 3601s);
        EXPECT_EQ(object.data_type, ObjectDataType::kWeight);
        EXPECT_EQ(object.writer, (ClientId{3, 4}));
        reopen();
    }
}

TEST_P(TierConformance, BatchesAreAnsweredItemByItem) {
    const Bytes bytes = make_bytes(1, 10'000);
    std::vector<std::string> keys;
    for (int i = 0; i < 500; ++i) keys.push_back("k" + std::to_string(i));
    std::vector<TierWrite> writes(keys.size());
    for (size_t i = 0; i < writes.size(); ++i) {
        writes[i].object = {.tenant = "default", .key = keys[i], .length = i == 7 ? 1 : bytes.size(), .generation = 1};
        writes[i].value = bytes;
    }
    Completion completion;
    tier_->write(writes, Deadline::never(), completion);
    ASSERT_TRUE(completion.wait(Deadline::after(60s)));
    EXPECT_TRUE(completion.failed());
    for (size_t i = 0; i < writes.size(); ++i) EXPECT_EQ(writes[i].result, i == 7 ? Code::kInvalidArgument : Code::kOk) << i;

    std::vector<Bytes> into(keys.size(), Bytes(bytes.size()));
    std::vector<TierRead> reads(keys.size());
    for (size_t i = 0; i < reads.size(); ++i) reads[i] = {.tenant = "default", .key = keys[i], .into = into[i]};
    Completion read;
    tier_->read(reads, Deadline::after(60s), read);
    ASSERT_TRUE(read.wait(Deadline::after(60s)));
    for (size_t i = 0; i < reads.size(); ++i) {
        EXPECT_EQ(reads[i].result, i == 7 ? Code::kNotFound : Code::kOk) << i;
        EXPECT_TRUE(i == 7 || into[i] == bytes) << i;
    }
}

TEST_P(TierConformance, WrongCallsAreRefused) {
    EXPECT_EQ(put(*tier_, "", 1, make_bytes(1, 10)), Code::kInvalidArgument);
    EXPECT_EQ(put(*tier_, "k", 1, {}), Code::kInvalidArgument);
    EXPECT_EQ(put(*tier_, std::string(kTierKeyBytesMax + 1, 'k'), 1, make_bytes(1, 10)), Code::kInvalidArgument);
    EXPECT_EQ(put(*tier_, std::string(kTierKeyBytesMax, 'k'), 1, make_bytes(1, 10)), Code::kOk);
    EXPECT_EQ(get(*tier_, std::string(kTierKeyBytesMax, 'k'), 10).code, Code::kOk);
    EXPECT_EQ(remove(*tier_, ""), Code::kInvalidArgument);
    EXPECT_FALSE(tier_->recover());
    reopen();
    EXPECT_TRUE(get(*tier_, std::string(kTierKeyBytesMax, 'k'), 10).bytes == make_bytes(1, 10));
}

TEST_P(TierConformance, OneAtATime) {
    const auto other = make();
    const auto found = other->recover();
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code(), Code::kBusy);
}

TEST_P(TierConformance, MakesRoomForWhatIsNew) {
    constexpr size_t kSize = 1 << 20;
    for (uint64_t i = 0; i < 2 * kCapacity / kSize; ++i)
        ASSERT_EQ(put(*tier_, "k" + std::to_string(i), i + 1, make_bytes(i, kSize)), Code::kOk) << i;
    EXPECT_LE(tier_->usage().used_bytes, kCapacity);
    const auto listed = list(*tier_);
    EXPECT_GT(listed.size(), kCapacity / kSize / 2);
    EXPECT_EQ(get(*tier_, "k0", kSize).code, Code::kNotFound);
    const uint64_t last = 2 * kCapacity / kSize - 1;
    EXPECT_TRUE(get(*tier_, "k" + std::to_string(last), kSize).bytes == make_bytes(last, kSize));
    const Lock lock(gone_.mutex);
    EXPECT_EQ(gone_.keys.size() + listed.size(), 2 * kCapacity / kSize);
}

TEST_P(TierConformance, AfterCloseNothingIsDone) {
    ASSERT_EQ(put(*tier_, "k", 1, make_bytes(1, 10)), Code::kOk);
    tier_->close();
    tier_->close();
    EXPECT_EQ(put(*tier_, "l", 1, make_bytes(1, 10)), Code::kCancelled);
    EXPECT_EQ(remove(*tier_, "k"), Code::kCancelled);
    EXPECT_EQ(get(*tier_, "k", 10).code, Code::kCancelled);
}

TEST_P(TierConformance, ManyThreadsAtOnce) {
    constexpr int kThreads = 4, kKeys = 40;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < kKeys; ++i) {
                const std::string key = std::to_string(t) + "-" + std::to_string(i);
                const auto seed = static_cast<uint64_t>(t * 1000 + i);
                const size_t size = 1000 + seed * 37 % 150'000;
                EXPECT_EQ(put(*tier_, key, 1, make_bytes(seed, size)), Code::kOk);
                EXPECT_TRUE(get(*tier_, key, size).bytes == make_bytes(seed, size));
                if (i % 3 != 0) continue;
                EXPECT_EQ(remove(*tier_, key), Code::kOk);
                EXPECT_EQ(get(*tier_, key, size).code, Code::kNotFound);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(list(*tier_).size(), static_cast<size_t>(kThreads * (kKeys - (kKeys + 2) / 3)));
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierConformance, testing::Values("memory", "simulated", "ring", "threads"),
                         [](const auto& tier) { return tier.param; });

}  // namespace
}  // namespace mooncake::store
