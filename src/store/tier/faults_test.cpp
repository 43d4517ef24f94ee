// SPDX-License-Identifier: Apache-2.0
// A disk that fails, is full, is slow or hangs: an error or a miss, and the tier goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/tier/arena.h"
#include "store/tier/log_tier.h"
#include "store/tier/testing/sim_disk.h"
#include "store/tier/testing/tier_calls.h"

namespace mooncake::store {
namespace {

using namespace tier_calls;
using Action = SimStore::Action;

class TierFaults : public testing::Test {
protected:
    TierFaults() {
        options_.capacity_bytes = 1 << 30;
        options_.file_bytes = 1 << 20;
        options_.scan_threads = 2;
        options_.small_buffers = 2;
        options_.large_buffers = 2;
    }
    void SetUp() override { open(); }
    void open() {
        tier_ = make_log_tier(disk_->mount(), options_);
        const auto found = tier_->recover();
        ASSERT_TRUE(found) << found.error().to_string();
        found_ = *found;
    }
    void reopen() {
        tier_ = nullptr;
        open();
    }
    void fail_on(Action action, int error) {
        disk_->set_plan([=](const SimStore::Event& event) { return SimStore::Fault{.error = event.action == action ? error : 0}; });
    }
    void hold(Action action) {
        disk_->set_plan([=](const SimStore::Event& event) { return SimStore::Fault{.hold = event.action == action}; });
    }
    void work_again() { disk_->set_plan(nullptr); }

    LogTierOptions options_;
    const std::shared_ptr<SimStore> disk_ = std::make_shared<SimStore>();
    std::unique_ptr<StorageTier> tier_;
    TierFound found_;
};

TEST_F(TierFaults, ShortReadsAndWritesAreGoneOnWith) {
    disk_->set_plan([](const SimStore::Event& event) { return SimStore::Fault{.short_to = event.length > 4096 ? 5000u : 0u}; });
    const Bytes bytes = make_bytes(1, 300'000);
    EXPECT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    EXPECT_TRUE(get(*tier_, "k", bytes.size()).bytes == bytes);
}

TEST_F(TierFaults, InterruptionsAreGoneOnWith) {
    auto calls = std::make_shared<std::atomic<int>>(0);
    ASSERT_EQ(put(*tier_, "first", 1, make_bytes(1, 100)), Code::kOk);
    disk_->set_plan([=](const SimStore::Event& event) {
        const bool data = event.action == Action::kRead || event.action == Action::kWrite || event.action == Action::kSync;
        const int call = ++*calls;
        return SimStore::Fault{.error = !data ? 0 : call % 3 == 0 ? EINTR : call % 3 == 1 ? EAGAIN : 0};
    });
    const Bytes bytes = make_bytes(1, 300'000);
    EXPECT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    EXPECT_TRUE(get(*tier_, "k", bytes.size()).bytes == bytes);
}

TEST_F(TierFaults, AWriteThatFailsIsAnErrorAndTheNextOneWorks) {
    options_.eviction = TierEviction::kNone;
    for (const Action action : {Action::kWrite, Action::kSync, Action::kCreate, Action::kSyncNames}) {
        for (const int error : {EIO, ENOSPC, EROFS, EDQUOT}) {
            const std::string key = "k" + std::to_string(static_cast<int>(action)) + "-" + std::to_string(error);
            reopen();  // so that a file must be made
            ASSERT_EQ(put(*tier_, key + "before", 1, make_bytes(1, 5000)), Code::kOk);
            reopen();
            fail_on(action, error);
            const Code code = put(*tier_, key, 1, make_bytes(2, 5000));
            EXPECT_EQ(code, error == ENOSPC || error == EDQUOT ? Code::kNoSpace : Code::kUnavailable) << key;
            EXPECT_EQ(get(*tier_, key, 5000).code, Code::kNotFound);
            EXPECT_EQ(get(*tier_, key + "before", 5000).code, Code::kOk);
            work_again();
            EXPECT_EQ(put(*tier_, key, 1, make_bytes(2, 5000)), Code::kOk) << key;
            EXPECT_TRUE(get(*tier_, key, 5000).bytes == make_bytes(2, 5000));
        }
    }
    reopen();
    for (const auto& [key, listed] : list(*tier_)) EXPECT_EQ(get(*tier_, key.substr(8), listed.length).code, Code::kOk) << key;
}

TEST_F(TierFaults, AKeyInDoubtCanBeRemovedForGood) {
    ASSERT_EQ(put(*tier_, "other", 1, make_bytes(1, 5000)), Code::kOk);
    // The sync fails, and so does cutting the file: the record lies there.
    disk_->set_plan([](const SimStore::Event& event) {
        return SimStore::Fault{.error = event.action == Action::kSync || event.action == Action::kTruncate ? EIO : 0};
    });
    EXPECT_EQ(put(*tier_, "k", 2, make_bytes(2, 5000)), Code::kUnavailable);
    work_again();
    EXPECT_EQ(get(*tier_, "k", 5000).code, Code::kNotFound);
    EXPECT_EQ(remove(*tier_, "k", 2), Code::kOk);
    tier_ = nullptr;
    open();
    EXPECT_EQ(get(*tier_, "k", 5000).code, Code::kNotFound);
    EXPECT_EQ(get(*tier_, "other", 5000).code, Code::kOk);
}

TEST_F(TierFaults, ARemovalThatFailsHidesTheValueAndCanBeRepeated) {
    ASSERT_EQ(put(*tier_, "k", 1, make_bytes(1, 5000)), Code::kOk);
    fail_on(Action::kWrite, EIO);
    EXPECT_EQ(remove(*tier_, "k", 1), Code::kUnavailable);
    EXPECT_EQ(get(*tier_, "k", 5000).code, Code::kNotFound);
    work_again();
    EXPECT_EQ(remove(*tier_, "k", 1), Code::kOk);
    reopen();
    EXPECT_EQ(get(*tier_, "k", 5000).code, Code::kNotFound);
}

TEST_F(TierFaults, AReadErrorIsAnErrorAndTheValueStays) {
    const Bytes bytes = make_bytes(1, 200'000);
    ASSERT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    fail_on(Action::kRead, EIO);
    EXPECT_EQ(get(*tier_, "k", bytes.size()).code, Code::kUnavailable);
    EXPECT_EQ(tier_->usage().read_errors, 1u);
    work_again();
    EXPECT_TRUE(get(*tier_, "k", bytes.size()).bytes == bytes);
}

TEST_F(TierFaults, ADamagedValueGoesAndTheOthersStay) {
    struct Gone final : TierObserver {
        void on_gone(std::span<const TierObject> objects) noexcept override {
            std::string texts;
            for (const TierObject& object : objects) {
                told.push_back(object.generation);
                found |= tier->find(object.generation, texts).has_value();
            }
        }
        StorageTier* tier = nullptr;
        std::vector<uint64_t> told;
        bool found = false;
    } gone;
    options_.observer = &gone;
    reopen();
    gone.tier = tier_.get();
    ASSERT_EQ(put(*tier_, "k", 1, make_bytes(1, 200'000)), Code::kOk);
    ASSERT_EQ(put(*tier_, "l", 2, make_bytes(2, 5000)), Code::kOk);
    const std::string name = disk_->names().front();
    auto contents = disk_->contents(name);
    const Bytes bytes = make_bytes(1, 200'000);
    const auto at = std::search(contents.begin(), contents.end(), bytes.begin(), bytes.begin() + 100);
    ASSERT_NE(at, contents.end());
    at[70'000] ^= std::byte{1};
    disk_->set_contents(name, contents);
    EXPECT_EQ(get_part(*tier_, "k", 0, 1000).code, Code::kOk);  // another chunk
    EXPECT_EQ(get_part(*tier_, "k", 69'000, 10).code, Code::kCorrupt);
    EXPECT_EQ(put(*tier_, "m", 3, make_bytes(3, 100)), Code::kOk);  // behind the tier's own removal
    EXPECT_EQ(gone.told, std::vector<uint64_t>{1});
    EXPECT_FALSE(gone.found) << "who is told may look whether it came again";
    EXPECT_EQ(get(*tier_, "k", 200'000).code, Code::kNotFound);
    EXPECT_EQ(get(*tier_, "l", 5000).code, Code::kOk);
    options_.observer = nullptr;
    reopen();
    EXPECT_EQ(get(*tier_, "k", 200'000).code, Code::kNotFound);
}

TEST_F(TierFaults, ASlowDiskCostsAMissAndNoByteComesLater) {
    const Bytes bytes = make_bytes(1, 200'000);
    ASSERT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    hold(Action::kRead);
    const Got got = get(*tier_, "k", bytes.size(), "default", Deadline::after(20ms));
    EXPECT_EQ(got.code, Code::kTimedOut);
    const Bytes before = got.bytes;
    EXPECT_GT(disk_->held(), 0u);
    work_again();
    disk_->release_held();
    EXPECT_TRUE(got.bytes == before);
    EXPECT_EQ(tier_->usage().timed_out, 1u);
    EXPECT_TRUE(get(*tier_, "k", bytes.size()).bytes == bytes);
}

TEST_F(TierFaults, WhenAllBuffersAreOutReadsEndAtTheirDeadlines) {
    const Bytes bytes = make_bytes(1, 5000);
    ASSERT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    hold(Action::kRead);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(get(*tier_, "k", bytes.size(), "default", Deadline::after(5ms)).code, Code::kTimedOut);
    EXPECT_EQ(disk_->held(), 2u);  // no more than there are buffers
    work_again();
    disk_->release_held();
    EXPECT_TRUE(get(*tier_, "k", bytes.size()).bytes == bytes);
}

TEST_F(TierFaults, ADirectReadIsAnsweredWhenTheDiskHasLetGo) {
    const Bytes bytes = make_bytes(1, 128 << 10);
    ASSERT_EQ(put(*tier_, "k", 1, bytes), Code::kOk);
    const auto pages = Pages::create(bytes.size());
    ASSERT_TRUE(pages);
    hold(Action::kRead);
    TierRead read{.tenant = "default", .key = "k", .into = pages->bytes(), .direct = true};
    Completion completion;
    tier_->read(std::span(&read, 1), Deadline::after(5ms), completion);
    EXPECT_FALSE(completion.wait(Deadline::after(50ms)));
    work_again();
    disk_->release_held();
    ASSERT_TRUE(completion.wait(Deadline::after(60s)));
    EXPECT_EQ(read.result, Code::kTimedOut);
}

TEST_F(TierFaults, QueuedWritesEndAtTheirDeadlinesWhileTheDiskHangs) {
    ASSERT_EQ(put(*tier_, "first", 1, make_bytes(1, 100)), Code::kOk);
    hold(Action::kSync);
    const Bytes bytes = make_bytes(1, 5000);
    TierWrite stuck;
    stuck.object = {.tenant = "default", .key = "stuck", .length = bytes.size(), .generation = 1};
    stuck.value = bytes;
    Completion under_way;
    tier_->write(std::span(&stuck, 1), Deadline::never(), under_way);
    while (disk_->held() == 0) std::this_thread::yield();
    TierWrite late = stuck;
    late.object.key = "late";
    Completion queued;
    tier_->write(std::span(&late, 1), Deadline::after(10ms), queued);
    ASSERT_TRUE(queued.wait(Deadline::after(60s)));
    EXPECT_EQ(late.result, Code::kTimedOut);
    EXPECT_TRUE(get(*tier_, "first", 100).bytes == make_bytes(1, 100));  // reads go on
    work_again();
    disk_->release_held();
    ASSERT_TRUE(under_way.wait(Deadline::after(60s)));
    EXPECT_EQ(stuck.result, Code::kOk);
    EXPECT_EQ(get(*tier_, "late", 5000).code, Code::kNotFound);
}

TEST_F(TierFaults, AFullQueueIsBusy) {
    options_.queued_max = 4;
    reopen();
    ASSERT_EQ(put(*tier_, "first", 1, make_bytes(1, 100)), Code::kOk);
    hold(Action::kSync);
    const Bytes bytes = make_bytes(1, 100);
    TierWrite stuck;
    stuck.object = {.tenant = "default", .key = "stuck", .length = bytes.size(), .generation = 1};
    stuck.value = bytes;
    Completion under_way;
    tier_->write(std::span(&stuck, 1), Deadline::never(), under_way);
    while (disk_->held() == 0) std::this_thread::yield();
    std::vector<TierWrite> more(4, stuck), too_many(1, stuck);
    const std::string keys[] = {"a", "b", "c", "d"};
    for (size_t i = 0; i < 4; ++i) more[i].object.key = keys[i];
    Completion queued, refused;
    tier_->write(more, Deadline::never(), queued);
    tier_->write(too_many, Deadline::never(), refused);
    ASSERT_TRUE(refused.wait(Deadline::after(60s)));
    EXPECT_EQ(too_many[0].result, Code::kBusy);
    work_again();
    disk_->release_held();
    ASSERT_TRUE(queued.wait(Deadline::after(60s)));
    for (const TierWrite& write : more) EXPECT_EQ(write.result, Code::kOk);
}

TEST_F(TierFaults, AFileThatCannotBeDeletedKeepsItsValues) {
    options_.capacity_bytes = 8 << 20;
    reopen();
    fail_on(Action::kRemove, EROFS);
    uint64_t stored = 0;
    for (uint64_t i = 0; i < 60; ++i) stored += put(*tier_, "k" + std::to_string(i), i + 1, make_bytes(i, 200'000)) == Code::kOk ? 1 : 0;
    EXPECT_LT(stored, 60u);
    EXPECT_GT(stored, 30u);
    for (const auto& [key, listed] : list(*tier_)) EXPECT_EQ(get(*tier_, key.substr(8), listed.length).code, Code::kOk);
    EXPECT_EQ(list(*tier_).size(), stored);
}

TEST_F(TierFaults, UnreadableBlocksAtTheStartCostTheirRecords) {
    for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(put(*tier_, "k" + std::to_string(i), i + 1, make_bytes(i, 9000)), Code::kOk);
    const std::string name = disk_->names().front();
    const auto unsealed = disk_->contents(name);
    tier_ = nullptr;
    disk_->set_contents(name, unsealed);
    disk_->set_plan([](const SimStore::Event& event) {
        constexpr uint64_t kBad = 5 * kBlockBytes;  // the header of the second record
        const bool hit = event.action == Action::kRead && event.offset <= kBad && kBad < event.offset + event.length;
        return SimStore::Fault{.error = hit ? EIO : 0};
    });
    open();
    EXPECT_EQ(found_.unreadable, 1u);
    EXPECT_EQ(list(*tier_).size(), 9u);
    work_again();
    for (const auto& [key, listed] : list(*tier_)) EXPECT_EQ(get(*tier_, key.substr(8), listed.length).code, Code::kOk);
    // The one that could not be read must not outlive its removal.
    EXPECT_EQ(remove(*tier_, "k1", 100), Code::kOk);
    reopen();
    EXPECT_EQ(list(*tier_).size(), 9u);
    EXPECT_FALSE(list(*tier_).contains("default/k1"));
}

TEST_F(TierFaults, DeadSpaceIsReclaimed) {
    options_.capacity_bytes = 16 << 20;
    options_.eviction = TierEviction::kNone;
    options_.moved_bytes_per_s = 1ull << 40;
    reopen();
    // Every file keeps one value of ten; without moving those nothing could be written after a while.
    uint64_t generation = 0;
    for (uint64_t round = 0; round < 12; ++round) {
        for (uint64_t i = 0; i < 100; ++i) {
            const std::string key = i % 10 == 0 ? "kept" + std::to_string(round) + "-" + std::to_string(i) : "k" + std::to_string(i);
            const Bytes bytes = make_bytes(i, 30'000);
            ++generation;
            Code code = put(*tier_, key, generation, bytes);
            // The thread that tidies up has its own pace.
            for (const Deadline hang = Deadline::after(120s); code == Code::kNoSpace && !hang.passed();) {
                std::this_thread::yield();
                code = put(*tier_, key, generation, bytes);
            }
            ASSERT_EQ(code, Code::kOk) << round << " " << i;
        }
    }
    const TierUsage usage = tier_->usage();
    EXPECT_GT(usage.moved_bytes, 0u);
    EXPECT_LE(usage.used_bytes, options_.capacity_bytes + options_.file_bytes);
    EXPECT_EQ(usage.evicted, 0u);
    EXPECT_EQ(usage.objects, 90u + 12 * 10);
    for (int i = 0; i < 2; ++i) {
        for (const auto& [key, listed] : list(*tier_)) EXPECT_EQ(get(*tier_, key.substr(8), listed.length).code, Code::kOk) << key;
        EXPECT_EQ(list(*tier_).size(), 90u + 12 * 10);
        reopen();
    }
}

TEST_F(TierFaults, PinnedValuesAreNotEvicted) {
    options_.capacity_bytes = 8 << 20;
    reopen();
    const Bytes bytes = make_bytes(1, 50'000);
    TierWrite write;
    write.object = {.tenant = "default", .key = "pinned", .length = bytes.size(), .generation = 1, .hard_pin = true};
    write.value = bytes;
    Completion completion;
    tier_->write(std::span(&write, 1), Deadline::never(), completion);
    ASSERT_TRUE(completion.wait(Deadline::after(60s)));
    for (uint64_t i = 0; i < 200; ++i) ASSERT_EQ(put(*tier_, "k" + std::to_string(i), i + 1, make_bytes(i, 100'000)), Code::kOk);
    EXPECT_GT(tier_->usage().evicted, 0u);
    EXPECT_TRUE(get(*tier_, "pinned", bytes.size()).bytes == bytes);
}

TEST_F(TierFaults, ForWhatHasNoPlaceNothingIsEvicted) {
    options_.capacity_bytes = 8 << 20;
    reopen();
    for (uint64_t i = 0; i < 40; ++i) ASSERT_EQ(put(*tier_, "k" + std::to_string(i), i + 1, make_bytes(i, 100'000)), Code::kOk);
    const size_t before = list(*tier_).size();
    EXPECT_EQ(put(*tier_, "long", 100, make_bytes(1, (8 << 20) - 4096)), Code::kNoSpace) << "with its header it is longer than the disk";
    EXPECT_EQ(list(*tier_).size(), before);
    EXPECT_EQ(tier_->usage().evicted, 0u);
    EXPECT_EQ(put(*tier_, "shorter", 101, make_bytes(1, 6 << 20)), Code::kOk);
    EXPECT_GT(tier_->usage().evicted, 0u);
}

}  // namespace
}  // namespace mooncake::store
