// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "store/member/member.h"
#include "store/member/testing/fake_master.h"
#include "store/node/catalogue.h"

namespace mooncake::store::testing {

constexpr ClientId kClient{5, 5};
constexpr SegmentId kSegment{1, 1};

inline SegmentSpec spec(SegmentId id = kSegment) {
    return {.id = id, .name = "host:1", .base = 0x1000, .size = 1 << 20, .endpoint = "e", .protocol = "tcp"};
}
inline RangePlanned planned(uint64_t generation, uint64_t offset, std::string key) {
    return {.segment = kSegment, .offset = offset, .length = 100, .generation = generation, .tenant = "default", .key = std::move(key)};
}
inline RangeFilled filled(uint64_t generation) { return {.segment = kSegment, .generation = generation, .checksum = 1}; }

class Listener final : public MembershipListener {
public:
    void keys_changed(const std::vector<KeyChanged>& keys) override { note(format_text("changed {}", keys.size())); }
    void all_keys_changed() override { note("all changed"); }
    void master_lost() override {
        note("lost");
        if (in_lost) in_lost();
    }
    void master_found(uint64_t epoch) override { note(format_text("found {}", epoch)); }
    void copy_ordered(const CopyOrder& order) override { note("copy " + order.key); }

    std::vector<std::string> take() {
        Lock lock(mutex_);
        return std::exchange(heard_, {});
    }
    /// Of the master's comings and goings alone.
    std::vector<std::string> take_master() {
        std::vector<std::string> lines = take();
        std::erase_if(lines, [](const std::string& line) { return !line.starts_with("lost") && !line.starts_with("found"); });
        return lines;
    }
    std::function<void()> in_lost;

private:
    void note(std::string line) {
        Lock lock(mutex_);
        heard_.push_back(std::move(line));
    }
    Mutex mutex_;
    std::vector<std::string> heard_ MC_GUARDED_BY(mutex_);
};

/// A member whose time and turns are the test's.
class MemberTest : public ::testing::Test {
protected:
    MemberTest()
        : member_({.master = master_,
                   .client = kClient,
                   .listener = listener_,
                   .holdings = catalogue_,
                   .options = options(),
                   .clock = [this] { return now(); },
                   .lease_clock = [this] { return BootTime(now().time_since_epoch()); },
                   .wake = [this] { ++wakes_; }}) {}
    ~MemberTest() override { member_.leave(); }
    static MembershipOptions options() { return {.report_entries_max = 2}; }

    Time now() const { return now_.load(); }
    void advance(Duration duration) { now_ = now() + duration; }
    /// Goes to the time of the next turn and takes it.
    void beat() {
        if (next_ > now()) now_ = next_;
        next_ = member_.beat();
        master_.settle();
    }
    void join() {
        beat();
        ASSERT_TRUE(member_.standing());
        listener_.take();
        master_.take_log();
    }
    void join_with_values() {
        join();
        ASSERT_EQ(*member_.mount(spec(), Deadline::after(20s)), StoreCode::kOk);
        master_.tell({.planned = {planned(1, 0, "a"), planned(2, 128, "b"), planned(3, 256, "c"), planned(4, 384, "d")},
                      .filled = {filled(1), filled(2), filled(3)}});
        listener_.take();
        master_.take_log();
    }
    /// To another master, once this one is dead.
    void expect_nothing_is_reported() {
        master_.settle();
        master_.die();
        master_.come_back(101);
        beat();
        const std::vector<FakeMaster::Part> parts = master_.take_parts();
        ASSERT_EQ(parts.size(), 2U);
        for (const FakeMaster::Part& part : parts) EXPECT_TRUE(part.keys.empty() && part.writes == 0 && !part.exact);
        EXPECT_EQ(catalogue_.objects(), 0U);
    }
    std::vector<std::string> reported_keys() {
        std::vector<std::string> keys;
        for (const FakeMaster::Part& part : master_.take_parts()) keys.insert(keys.end(), part.keys.begin(), part.keys.end());
        return keys;
    }

    std::atomic<Time> now_{Time(std::chrono::hours(1))};
    Time next_{};
    std::atomic<int> wakes_{0};
    FakeMaster master_;
    Listener listener_;
    Catalogue catalogue_;
    Member member_;
};

}  // namespace mooncake::store::testing
