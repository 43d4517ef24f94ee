// SPDX-License-Identifier: Apache-2.0
// What goes when there is no more room, and what stays.
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

#include "store/tier/log_tier.h"
#include "store/tier/testing/sim_disk.h"
#include "store/tier/testing/tier_calls.h"

namespace mooncake::store {
namespace {

using namespace tier_calls;
using Action = SimStore::Action;

class TierEvictions : public testing::Test {
protected:
    static constexpr uint64_t kLength = 50'000;

    void open(TierEviction eviction) {
        LogTierOptions options;
        options.capacity_bytes = kCapacity;
        options.file_bytes = kFile;
        options.scan_threads = 2;
        options.eviction = eviction;
        tier_ = make_log_tier(disk_->mount(), options);
        ASSERT_TRUE(tier_->recover());
    }
    Code put_next() {
        ++last_;
        return put(*tier_, name(last_), last_, make_bytes(last_, kLength));
    }
    static std::string name(uint64_t number) { return "k" + std::to_string(number); }
    bool is_there(uint64_t number) {
        const auto got = get(*tier_, name(number), kLength);
        const bool there = got.code == Code::kOk;
        EXPECT_TRUE(!there || got.bytes == make_bytes(number, kLength)) << number;
        return there;
    }

    static constexpr uint64_t kCapacity = 8 << 20, kFile = 1 << 20;
    const std::shared_ptr<SimStore> disk_ = std::make_shared<SimStore>();
    std::unique_ptr<StorageTier> tier_;
    uint64_t last_ = 0;
};

TEST_F(TierEvictions, WhatIsReadNowAndThenStays) {
    open(TierEviction::kLru);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(put_next(), Code::kOk);
        ASSERT_TRUE(i % 30 != 0 || is_there(1)) << i;
    }
    EXPECT_FALSE(is_there(2));
    EXPECT_GT(tier_->usage().moved_bytes, 0u);
    tier_ = nullptr;
    open(TierEviction::kLru);
    EXPECT_TRUE(is_there(1));
}

TEST_F(TierEvictions, WhatIsNotReadAnyMoreGoesLater) {
    open(TierEviction::kLru);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(put_next(), Code::kOk);
    ASSERT_TRUE(is_there(1));
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(put_next(), Code::kOk);
    EXPECT_FALSE(is_there(1));
}

TEST_F(TierEvictions, TheOldestGoWhereThatWasAskedFor) {
    open(TierEviction::kFifo);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(put_next(), Code::kOk);
        ASSERT_TRUE(i >= 100 || is_there(1)) << i;
    }
    EXPECT_FALSE(is_there(1));
    EXPECT_EQ(tier_->usage().moved_bytes, 0u);
}

TEST_F(TierEvictions, RoomIsMadeWhereEverythingWasRead) {
    open(TierEviction::kLru);
    for (int i = 0; i < 600; ++i) {
        ASSERT_EQ(put_next(), Code::kOk);
        ASSERT_TRUE(is_there(last_));
    }
    const TierUsage usage = tier_->usage();
    EXPECT_LE(usage.used_bytes, kCapacity + kFile);
    EXPECT_LE(usage.moved_bytes, usage.written_bytes * 2);
    EXPECT_GT(usage.objects, 50u);
}

TEST_F(TierEvictions, WhatCannotBeReadAgainGoesAlone) {
    open(TierEviction::kLru);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(put_next(), Code::kOk);
    for (uint64_t i = 1; i <= 10; ++i) ASSERT_TRUE(is_there(i));
    disk_->set_plan([](const SimStore::Event& event) { return SimStore::Fault{.error = event.action == Action::kRead ? EIO : 0}; });
    for (int i = 0; i < 100; ++i) ASSERT_EQ(put_next(), Code::kOk);
    disk_->set_plan(nullptr);
    EXPECT_FALSE(is_there(1));
    EXPECT_TRUE(is_there(last_));
}

TEST_F(TierEvictions, ADiskThatFailsMeanwhileCostsAMiss) {
    open(TierEviction::kLru);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(put_next(), Code::kOk);
    for (uint64_t round = 0; round < 8; ++round) {
        for (uint64_t i = 1; i <= last_; ++i) (void)is_there(i);
        disk_->set_plan([round, calls = std::make_shared<uint64_t>(0)](const SimStore::Event& event) {
            const bool writes = event.action == Action::kWrite || event.action == Action::kSync;
            return SimStore::Fault{.error = writes && ++*calls % 7 == round % 7 ? EIO : 0};
        });
        for (int i = 0; i < 40; ++i) (void)put_next();
        disk_->set_plan(nullptr);
        for (int i = 0; i < 40; ++i) ASSERT_EQ(put_next(), Code::kOk);
        EXPECT_TRUE(is_there(last_));
        tier_ = nullptr;
        open(TierEviction::kLru);
        for (uint64_t i = 1; i <= last_; ++i) (void)is_there(i);  // right, or not there
    }
}

}  // namespace
}  // namespace mooncake::store
