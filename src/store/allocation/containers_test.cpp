// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/allocation/address_index.h"
#include "store/allocation/index_list.h"
#include "store/allocation/slab.h"
#include "store/allocation/slot_index.h"

namespace mooncake::store {
namespace {

TEST(Slab, GivesNumbersFromOneAndReusesTheLastGivenBackFirst) {
    Slab<int, 4> slab;
    EXPECT_EQ(slab.take(), 1u);
    EXPECT_EQ(slab.take(), 2u);
    slab[1] = 7;
    slab.give_back(1);
    slab.give_back(2);
    EXPECT_EQ(slab.take(), 2u);
    EXPECT_EQ(slab.take(), 1u);
    EXPECT_EQ(slab[1], 0) << "a fresh value";
    EXPECT_EQ(slab.size(), 2u);
}

TEST(Slab, NeverMovesWhatItHolds) {
    Slab<int, 4> slab;
    const int* first = &slab[slab.take()];
    for (int i = 0; i < 1000; ++i) slab.take();
    EXPECT_EQ(&slab[1], first);
    EXPECT_EQ(slab.limit(), 1002u);
}

TEST(Slab, GivesEmptyChunksBackAndShowsFreshRecordsInTheirPlace) {
    constexpr uint32_t kChunk = 64, kRecords = 100 * kChunk;
    Slab<std::string, kChunk> slab;
    for (uint32_t i = 0; i < kRecords; ++i) slab[slab.take()] = "a text that is too long to lie in the record itself";
    const size_t full = slab.memory_bytes();
    for (uint32_t number = kRecords; number > 0; --number)
        if (number != 70) slab.give_back(number);
    EXPECT_LT(slab.memory_bytes(), full / 4);
    EXPECT_EQ(slab.limit(), kRecords + 1);
    for (uint32_t number = 1; number < slab.limit(); ++number) ASSERT_EQ(std::as_const(slab)[number].empty(), number != 70) << number;
    for (uint32_t i = 1; i < kRecords; ++i) ASSERT_EQ(slab[slab.take()], "") << i;
    EXPECT_EQ(slab[70], "a text that is too long to lie in the record itself");
    EXPECT_EQ(slab.size(), kRecords);
    EXPECT_EQ(slab.limit(), kRecords + 1) << "the numbers given back are used again";
}

TEST(Slab, KeepsItsChunkForARecordThatComesAndGoes) {
    Slab<int, 4> slab;
    const int* record = &slab[slab.take()];
    for (int i = 0; i < 3; ++i) {
        slab.give_back(1);
        ASSERT_EQ(slab.take(), 1u);
        EXPECT_EQ(&slab[1], record);
    }
}

TEST(AddressIndex, AgreesWithAMap) {
    std::mt19937_64 random(5);
    AddressIndex index;
    std::map<uint64_t, uint32_t> model;
    EXPECT_EQ(index.find(7), 0u);
    for (uint32_t step = 1; step <= 50'000; ++step) {
        const uint64_t offset = random() % 20'000;
        const bool grow = step < 20'000 || (step > 35'000 && step < 40'000);  // and shrink, down to nothing
        if (grow && model.try_emplace(offset, step).second) index.insert(offset, step);
        if (!grow && !model.empty()) {
            const auto victim = model.lower_bound(offset) == model.end() ? model.begin() : model.lower_bound(offset);
            index.erase(victim->first);
            model.erase(victim);
        }
        const uint64_t asked = random() % 20'100;
        const auto behind = model.upper_bound(asked);
        ASSERT_EQ(index.find(asked), behind == model.begin() ? 0 : std::prev(behind)->second) << step;
        ASSERT_EQ(index.size(), model.size());
    }
    EXPECT_TRUE(model.empty());
}

TEST(IndexList, KeepsOrderUnderEveryChange) {
    std::vector<Links> links(10);
    const auto at = [&](uint32_t number) -> Links& { return links[number]; };
    const auto order = [&](const IndexList& list) {
        std::vector<uint32_t> forward, backward;
        for (uint32_t n = list.first(); n != 0; n = links[n].next) forward.push_back(n);
        for (uint32_t n = list.last(); n != 0; n = links[n].previous) backward.push_back(n);
        std::reverse(backward.begin(), backward.end());
        EXPECT_EQ(forward, backward);
        EXPECT_EQ(forward.size(), list.size());
        return forward;
    };
    IndexList list;
    for (uint32_t n : {1, 2, 3}) list.push_back(n, at);
    list.push_front(4, at);
    EXPECT_EQ(order(list), (std::vector<uint32_t>{4, 1, 2, 3}));
    list.replace(1, 5, at);
    list.erase(3, at);
    EXPECT_EQ(order(list), (std::vector<uint32_t>{4, 5, 2}));
    list.replace(4, 6, at);
    list.replace(2, 7, at);
    EXPECT_EQ(order(list), (std::vector<uint32_t>{6, 5, 7}));
    for (uint32_t n : {5, 6, 7}) list.erase(n, at);
    EXPECT_TRUE(order(list).empty());
}

template <unsigned kShardBits>
void compare_with_a_map(uint64_t seed, uint64_t hash_mask) {
    std::mt19937_64 random(seed);
    SlotIndex<kShardBits> index;
    std::unordered_map<uint32_t, uint64_t> model;  // number -> hash
    uint32_t next = 1;
    for (int step = 0; step < 20'000; ++step) {
        if (random() % 5 < 3) {
            const uint64_t hash = random() & hash_mask;
            index.insert(hash, next);
            model[next++] = hash;
        } else if (!model.empty()) {
            const auto victim = model.begin();
            index.erase(victim->second, victim->first);
            model.erase(victim);
        }
    }
    ASSERT_EQ(index.size(), model.size());
    for (const auto& [number, hash] : model) {
        ASSERT_EQ(index.find(hash, [&, wanted = number](uint32_t found) { return found == wanted; }), number);
        ASSERT_EQ(index.find(hash, [](uint32_t) { return false; }), 0u);
    }
}

TEST(SlotIndex, AgreesWithAMap) {
    compare_with_a_map<0>(1, UINT64_MAX);
    compare_with_a_map<4>(2, UINT64_MAX);
    compare_with_a_map<0>(3, 0xff);               // clusters at the start, many equal hashes
    compare_with_a_map<0>(4, 0xffffff00 | 0x0f);  // wraps around the end
}

TEST(SlotIndex, ShrinksWhenMostOfItIsGone) {
    SlotIndex<2> index;
    const auto hash = [](uint32_t number) { return number * 0x9e3779b97f4a7c15; };
    for (uint32_t number = 1; number <= 100'000; ++number) index.insert(hash(number), number);
    const size_t full = index.memory_bytes();
    for (uint32_t number = 1; number <= 99'000; ++number) index.erase(hash(number), number);
    EXPECT_LT(index.memory_bytes(), full / 10);
    for (uint32_t number = 1; number <= 100'000; ++number)
        ASSERT_EQ(index.find(hash(number), [&](uint32_t found) { return found == number; }), number > 99'000 ? number : 0) << number;
}

TEST(SlotIndex, FindsNothingWhenEmpty) {
    SlotIndex<2> index;
    EXPECT_EQ(index.guess(42), 0u);
    index.prefetch(42);
}

}  // namespace
}  // namespace mooncake::store
