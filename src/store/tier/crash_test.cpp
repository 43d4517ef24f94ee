// SPDX-License-Identifier: Apache-2.0
// Power failures at any moment: what was answered is there, what is gone stays gone, and no read brings anything else.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "store/tier/log_tier.h"
#include "store/tier/testing/sim_disk.h"
#include "store/tier/testing/tier_calls.h"

namespace mooncake::store {
namespace {

using namespace tier_calls;

/// What each key may read as. A call that failed leaves two possibilities, until a look after the next start says which one it was.
class Model final : public TierObserver {
public:
    struct Value {
        uint64_t generation = 0;  // 0: none
        size_t length = 0;
        friend auto operator<=>(const Value&, const Value&) = default;
    };
    using May = std::set<Value>;

    void on_gone(std::span<const TierObject> objects) noexcept override {
        const Lock lock(mutex_);
        for (const TierObject& object : objects) gone_.insert({std::string(object.key), object.generation});
    }
    May& operator[](const std::string& key) {
        May& may = keys_[key];
        if (may.empty()) may.insert(Value{});
        return may;
    }
    std::map<std::string, May>& keys() { return keys_; }
    bool is_gone(const std::string& key, uint64_t generation) {
        const Lock lock(mutex_);
        return gone_.contains({key, generation});
    }

private:
    std::map<std::string, May> keys_;
    Mutex mutex_;
    std::set<std::pair<std::string, uint64_t>> gone_ MC_GUARDED_BY(mutex_);
};

Bytes value_of(const std::string& key, const Model::Value& value) {
    return make_bytes(std::hash<std::string>{}(key) ^ value.generation * 7919, value.length);
}

class World {
public:
    /// `evicts`: there is so little room that a crash may meet an eviction, of which nobody is told then.
    World(uint64_t seed, LogTierOptions options, bool evicts) : random_(seed), options_(options), evicts_(evicts) {
        options_.observer = &model_;
    }

    void open() {
        tier_ = make_log_tier(disk_->mount(), options_);
        const auto found = tier_->recover();
        ASSERT_TRUE(found || disk_->is_off());
    }
    void restart(bool crash) {
        tier_ = nullptr;
        if (crash) disk_->crash(random_());
        crashed_ |= crash;
        open();
        if (disk_->is_off()) restart(true);  // in the middle of the start
    }

    void put(const std::string& key, size_t length) {
        const Model::Value value{++generation_, length};
        auto& may = model_[key];
        switch (tier_calls::put(*tier_, key, value.generation, value_of(key, value))) {
            case Code::kOk: may = {value}; break;
            case Code::kNoSpace: break;
            default: may.insert(value); break;
        }
    }
    void remove(const std::string& key) {
        auto& may = model_[key];
        if (tier_calls::remove(*tier_, key, generation_) == Code::kOk) {
            may = {Model::Value{}};
        } else {
            may.insert(Model::Value{});
            hidden_.insert(key);
        }
    }
    /// The one value of its generation goes, and is written once more.
    void put_again(const std::string& key) {
        auto& may = model_[key];
        if (may.size() != 1 || may.begin()->generation == 0 || hidden_.contains(key)) return;
        const Model::Value value = *may.begin();
        if (tier_calls::remove(*tier_, key, value.generation) != Code::kOk) {
            may.insert(Model::Value{});
            hidden_.insert(key);
            return;
        }
        may = {Model::Value{}};
        if (random(2) == 0) restart(random(2) == 0);
        switch (tier_calls::put(*tier_, key, value.generation, value_of(key, value))) {
            case Code::kOk: may = {value}; break;
            case Code::kStale: ADD_FAILURE() << key << " cannot be written again"; break;
            case Code::kNoSpace: break;
            default: may.insert(value); break;
        }
    }
    /// Each key reads as one of what it may be, or as nothing where it was evicted or its removal is in doubt.
    void check(const std::string& key, bool decides) {
        auto& may = model_[key];
        const auto listed = list(*tier_);
        const auto found = listed.find("default/" + key);
        if (found == listed.end()) {
            const bool may_miss = may.contains(Model::Value{}) || hidden_.contains(key) || was_evicted(key, may) || (evicts_ && crashed_);
            EXPECT_TRUE(may_miss) << key << " is missing";
            if (decides && may.contains(Model::Value{})) may = {Model::Value{}};
            return;
        }
        const Model::Value value{found->second.generation, found->second.length};
        EXPECT_TRUE(may.contains(value)) << key << " has generation " << value.generation;
        const Got got = get(*tier_, key, value.length);
        if (got.code == Code::kUnavailable && disk_->is_off()) return;  // something in the background made the last change
        if (got.code == Code::kNotFound && evicts_) return;             // what is moved makes room, too, after it was listed
        EXPECT_EQ(got.code, Code::kOk) << key;
        EXPECT_TRUE(got.bytes == value_of(key, value)) << key;
        if (decides) may = {value};
    }
    void check_all(bool decides) {
        std::vector<std::string> keys;
        for (const auto& [key, may] : model_.keys()) keys.push_back(key);
        for (const std::string& key : keys) check(key, decides);
        if (decides) hidden_.clear();
    }

    uint64_t random(uint64_t below) { return random_() % below; }
    SimStore& disk() { return *disk_; }
    StorageTier& tier() { return *tier_; }

private:
    bool was_evicted(const std::string& key, const Model::May& may) {
        return std::any_of(may.begin(), may.end(), [&](const Model::Value& value) { return model_.is_gone(key, value.generation); });
    }

    std::mt19937_64 random_;
    LogTierOptions options_;
    const bool evicts_;
    bool crashed_ = false;
    Model model_;
    std::set<std::string> hidden_;  // a removal failed: cannot be read, may be back
    const std::shared_ptr<SimStore> disk_ = std::make_shared<SimStore>();
    std::unique_ptr<StorageTier> tier_;
    uint64_t generation_ = 0;
};

LogTierOptions small_options(uint64_t capacity) {
    LogTierOptions options;
    options.capacity_bytes = capacity;
    options.file_bytes = 128 << 10;
    options.scan_threads = 2;
    options.small_buffers = 4;
    options.large_buffers = 2;
    options.moved_bytes_per_s = 1ull << 40;
    return options;
}

size_t some_length(World& world) {
    constexpr size_t kLengths[] = {1, 3000, 5000, 33'000, 70'000, 150'000};
    return kLengths[world.random(std::size(kLengths))];
}

void run_random(uint64_t seed, uint64_t capacity, TierEviction eviction) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LogTierOptions options = small_options(capacity);
    options.eviction = eviction;
    World world(seed, options, capacity < 64 << 20);
    world.open();
    for (int step = 0; step < 60 && !testing::Test::HasFailure(); ++step) {
        const std::string key = "k" + std::to_string(world.random(12));
        switch (world.random(13)) {
            case 0:
            case 1: world.remove(key); break;
            case 2:
            case 3: world.check(key, false); break;
            case 4:
                if (world.random(2) == 0) world.disk().power_off_after(world.random(12));
                break;
            case 5:
                world.restart(world.disk().is_off() || world.random(2) == 0);
                world.check_all(true);
                break;
            case 6: world.put_again(key); break;
            default: world.put(key, some_length(world)); break;
        }
        if (world.disk().is_off()) {
            world.restart(true);
            world.check_all(true);
        }
    }
    world.restart(false);
    world.check_all(true);
}

class RandomRuns : public testing::TestWithParam<int> {};

TEST_P(RandomRuns, WithRoomForEverything) {
    for (uint64_t seed = 0; seed < 40; ++seed) run_random(static_cast<uint64_t>(GetParam()) * 1000 + seed, 1 << 30, TierEviction::kFifo);
}

TEST_P(RandomRuns, WithEvictionOfTheOldest) {
    for (uint64_t seed = 0; seed < 40; ++seed) run_random(static_cast<uint64_t>(GetParam()) * 1000 + seed, 1 << 20, TierEviction::kFifo);
}

TEST_P(RandomRuns, WithEvictionOfWhatIsNotRead) {
    for (uint64_t seed = 0; seed < 40; ++seed) run_random(static_cast<uint64_t>(GetParam()) * 1000 + seed, 1 << 20, TierEviction::kLru);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomRuns, testing::Range(0, 6));

class CrashAtEveryChange : public testing::TestWithParam<uint64_t> {};

TEST_P(CrashAtEveryChange, OfAScenario) {
    bool ended = false;
    for (uint64_t changes = 0; !ended; ++changes) {
        SCOPED_TRACE("after " + std::to_string(changes) + " changes");
        ASSERT_LT(changes, 2000u);
        World world(changes, small_options(GetParam()), GetParam() < 64 << 20);
        world.open();
        world.disk().power_off_after(changes);
        for (int i = 0; i < 6; ++i) world.put("a" + std::to_string(i), 40'000);
        for (int i = 0; i < 6; i += 2) world.put("a" + std::to_string(i), 5000);
        for (int i = 0; i < 6; i += 3) world.remove("a" + std::to_string(i));
        for (int i = 0; i < 8; ++i) world.put("b" + std::to_string(i), 90'000);
        world.remove("b1");
        world.put("a0", 100);
        world.remove("a0");
        ended = !world.disk().is_off();
        world.restart(true);
        world.check_all(true);
        world.restart(true);  // what was found stays
        world.check_all(true);
        if (testing::Test::HasFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Capacities, CrashAtEveryChange, testing::Values(900 << 10, 1 << 30));

TEST(Crash, ARemovedKeyDoesNotComeBackWhenItsRemovalsFileGoes) {
    LogTierOptions options = small_options(1 << 30);
    World world(1, options, false);
    world.open();
    world.put("kept", 60'000);  // keeps the first file alive
    world.put("k", 20'000);
    world.put("fill1", 100'000);  // the next file
    world.remove("k");
    world.put("fill2", 100'000);
    world.remove("fill1");
    world.remove("fill2");  // files with nothing but the removal go
    for (int i = 0; i < 3; ++i) {
        world.restart(i == 1);
        world.check_all(true);
        EXPECT_EQ(list(world.tier()).size(), 1u);
    }
}

TEST(Crash, AnOlderValueDoesNotComeBackWhenItsSuccessorIsEvicted) {
    LogTierOptions options = small_options(1 << 20);
    options.eviction = TierEviction::kLru;
    World world(1, options, true);
    world.open();
    world.put("k", 3000);
    for (int i = 0; i < 3; ++i) world.put("with" + std::to_string(i), 30'000);
    world.put("k", 4000);
    for (int i = 0; i < 40; ++i) {
        world.put("fill" + std::to_string(i), 60'000);
        world.check("with0", false);  // the file of the older value is the one that is read
    }
    world.check_all(false);
    world.restart(true);
    world.check_all(true);
}

}  // namespace
}  // namespace mooncake::store
