// SPDX-License-Identifier: Apache-2.0
#include "store/node/range_pages.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace mooncake::store {
namespace {

/// Everything there is, with what was written into the records: generation -> key and offset.
using Content = std::map<uint64_t, std::pair<std::string, uint64_t>>;

Content content_of(const RangePages& pages) {
    Content content;
    std::optional<uint64_t> before;
    pages.for_each({}, [&](uint64_t generation, RangePages::Found found) {
        EXPECT_TRUE(!before || *before < generation) << "out of order";
        before = generation;
        content[generation] = {std::string(found.key()), found.record->offset};
        return true;
    });
    return content;
}

class Pages {
public:
    explicit Pages(uint64_t seed = 1) : random_(seed) {}

    void add(uint64_t generation, const std::string& key) {
        const auto found = pages_.add(generation, key);
        ASSERT_TRUE(found);
        ASSERT_EQ(found.record->offset, 0U) << "not a fresh one";
        found.record->offset = ++offset_;
        model_[generation] = {key, offset_};
    }
    void erase(uint64_t generation) {
        const auto found = pages_.find(generation);
        ASSERT_EQ(static_cast<bool>(found), model_.erase(generation) == 1);
        if (found) pages_.erase(found);
    }
    void tidy(size_t pages_max = SIZE_MAX) { pages_.tidy(pages_max); }
    void check_one(uint64_t generation) {
        const auto found = pages_.find(generation);
        const auto expected = model_.find(generation);
        ASSERT_EQ(static_cast<bool>(found), expected != model_.end()) << generation;
        if (!found) return;
        ASSERT_EQ(found.key(), expected->second.first);
        ASSERT_EQ(found.record->offset, expected->second.second);
    }
    void check() {
        ASSERT_EQ(pages_.size(), model_.size());
        ASSERT_EQ(content_of(pages_), model_);
        for (const auto& [generation, value] : model_) {
            check_one(generation);
            if (generation % 16 != 0) continue;
            check_one(generation + 1);
            check_one(generation - 1);
        }
    }
    uint64_t below(uint64_t limit) { return random_() % limit; }
    bool chance(unsigned percent) { return below(100) < percent; }
    uint64_t any() {
        const auto found = model_.lower_bound(model_.begin()->first + below(model_.rbegin()->first - model_.begin()->first + 1));
        return found->first;
    }

    RangePages pages_;
    Content model_;
    std::mt19937_64 random_;
    uint64_t offset_ = 0;
};

std::string key_of(uint64_t generation, size_t bytes = 0) { return std::to_string(generation) + std::string(bytes, 'k'); }

}  // namespace

TEST(RangePages, FindsNothingInNothing) {
    RangePages pages;
    EXPECT_FALSE(pages.find(0));
    EXPECT_FALSE(pages.find(UINT64_MAX));
    pages.tidy(SIZE_MAX);
    EXPECT_TRUE(pages.for_each({}, [](uint64_t, RangePages::Found) { return false; }));
    EXPECT_EQ(pages.size(), 0U);
}

TEST(RangePages, KeepsWhatComesInAnyOrder) {
    for (const bool rising : {true, false}) {
        Pages pages;
        for (uint64_t i = 1; i <= 40'000; ++i) pages.add(rising ? i * 3 : 3 * (40'001 - i), key_of(i));
        pages.check();
    }
    Pages pages;
    for (uint64_t i = 1; i <= 40'000; ++i) {
        const uint64_t generation = pages.random_();
        if (!pages.model_.contains(generation)) pages.add(generation, key_of(generation));
    }
    pages.check();
}

TEST(RangePages, TakesTheSmallestAndTheLargestGeneration) {
    Pages pages;
    for (const uint64_t generation : {uint64_t{5}, UINT64_MAX, uint64_t{0}, UINT64_MAX - 1, uint64_t{1}}) pages.add(generation, "key");
    pages.check();
    for (const uint64_t generation : {UINT64_MAX, uint64_t{0}}) pages.erase(generation);
    pages.tidy();
    pages.check();
    EXPECT_TRUE(pages.pages_.for_each(UINT64_MAX, [](uint64_t, RangePages::Found) { return false; })) << "nothing is behind the last one";
}

TEST(RangePages, GoesOnBehindTheLastOneVisited) {
    Pages pages;
    for (uint64_t i = 0; i < 1000; ++i) pages.add(i * 7, key_of(i));
    for (uint64_t i = 0; i < 1000; i += 3) pages.erase(i * 7);
    std::optional<uint64_t> after;
    size_t visits = 0, calls = 0;
    bool all = false;
    while (!all) {
        size_t part = 0;
        ++calls;
        all = pages.pages_.for_each(after, [&](uint64_t generation, RangePages::Found) {
            if (part == 10) return false;
            ++part;
            ++visits;
            after = generation;
            return true;
        });
        if (calls == 20) pages.tidy();  // places may change in between
    }
    EXPECT_EQ(visits, pages.model_.size());
    EXPECT_EQ(calls, (visits + 9) / 10);
}

TEST(RangePages, AKeyCanChange) {
    Pages pages;
    for (uint64_t i = 1; i <= 200; ++i) pages.add(i, key_of(i));
    for (uint64_t i = 1; i <= 200; i += 2) {
        pages.pages_.set_key(pages.pages_.find(i), "another");
        pages.model_[i].first = "another";
    }
    pages.check();
    pages.tidy();
    pages.check();
    // Again and again: that must not collect texts of the past.
    for (uint64_t turn = 0; turn < 40'000; ++turn) {
        pages.pages_.set_key(pages.pages_.find(7), turn % 2 == 0 ? "one text" : "another text");
        pages.tidy(16);
    }
    EXPECT_LT(pages.pages_.memory_bytes(), 256U << 10);
}

TEST(RangePages, LongKeysHavePagesOfTheirOwn) {
    Pages pages;
    for (uint64_t i = 1; i <= 300; ++i) pages.add(i * 10, key_of(i, i % 3 == 0 ? 40'000 : 10'000));
    for (uint64_t i = 1; i <= 300; ++i) pages.add(i * 10 - 5, key_of(i, i % 2 == 0 ? 70'000 : 1));                     // between the others
    for (const uint64_t generation : {3, 2, 4, 1, 6, 7, 9, 8, 11}) pages.add(generation, key_of(generation, 70'000));  // and before
    pages.check();
    for (uint64_t i = 1; i <= 300; i += 2) pages.erase(i * 10);
    pages.tidy();
    pages.check();
}

TEST(RangePages, AgreesWithAModel) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        Pages pages(seed);
        uint64_t generation = 1000;
        for (int step = 0; step < 400 && !testing::Test::HasFatalFailure(); ++step) {
            const uint64_t count = pages.below(300);
            const uint64_t gap = pages.chance(80) ? 1 + pages.below(4) : pages.below(1 << 20) + 1;
            for (uint64_t i = 0; i < count; ++i) {
                const bool late = pages.chance(seed % 4 == 0 ? 40 : 2);
                const uint64_t number = late ? pages.below(generation) : generation += gap;
                if (!pages.model_.contains(number)) pages.add(number, key_of(number, pages.below(60)));
            }
            // Sometimes the oldest, sometimes any; sometimes more than came.
            const uint64_t gone = std::min<uint64_t>(pages.model_.size(), pages.below(pages.chance(10) ? 2000 : seed % 2 == 0 ? 100 : 320));
            const bool oldest = pages.chance(50);
            for (uint64_t i = 0; i < gone; ++i) pages.erase(oldest ? pages.model_.begin()->first : pages.any());
            pages.erase(generation + 1);  // never came
            pages.tidy(pages.chance(50) ? 16 : SIZE_MAX);
            if (step % 100 == 0) pages.check();
        }
        pages.check();
        while (!pages.model_.empty()) pages.erase(pages.any());
        pages.tidy();
        pages.check();
        EXPECT_EQ(pages.pages_.pages(), 0U);
    }
}

TEST(RangePages, WhatIsGoneTakesAtMostAQuarterMoreMemory) {
    constexpr uint64_t kCount = 20'000, kBatch = 128;
    const auto full_bytes = [] {
        RangePages pages;
        for (uint64_t i = 1; i <= kCount; ++i) pages.add(i, key_of(1'000'000, 90));
        return pages.memory_bytes();
    }();
    EXPECT_LT(full_bytes / kCount, 97U + 64 + 10);
    for (const bool oldest : {true, false}) {
        RangePages pages;
        std::mt19937_64 random(1);
        std::vector<uint64_t> live;
        uint64_t generation = 0;
        size_t begin = 0;
        for (uint64_t turn = 0; turn < 20 * kCount / kBatch; ++turn) {
            for (uint64_t i = 0; i < kBatch; ++i) {
                pages.add(++generation, key_of(1'000'000, 90));
                live.push_back(generation);
            }
            for (uint64_t i = 0; i < kBatch && live.size() - begin > kCount; ++i) {
                if (!oldest) std::swap(live[begin], live[begin + random() % (live.size() - begin)]);
                pages.erase(pages.find(live[begin++]));
            }
            pages.tidy(128);
        }
        EXPECT_EQ(pages.size(), kCount);
        EXPECT_LT(pages.memory_bytes(), oldest ? full_bytes * 11 / 10 : full_bytes * 135 / 100);
    }
}

TEST(RangePages, AFewThatStayForAlwaysDoNotKeepTheRest) {
    RangePages pages;
    for (uint64_t i = 1; i <= 1'000'000; ++i) {
        pages.add(i, key_of(i));
        if (i > 1000 && (i - 1000) % 1000 != 0) pages.erase(pages.find(i - 1000));
        if (i % 100 == 0) pages.tidy(16);
    }
    EXPECT_EQ(pages.size(), 999U + 1000);
    EXPECT_LT(pages.memory_bytes(), pages.size() * 200 + (64U << 10));
    EXPECT_LT(pages.pages(), 100U);
}

}  // namespace mooncake::store
