// SPDX-License-Identifier: Apache-2.0
#include "store/tier/index.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace mooncake::store::log {
namespace {

class IndexTest : public testing::Test {
protected:
    IndexTest() {
        for (uint32_t number = 1; number <= 3; ++number) files_.push_back(std::make_shared<LogFile>(number, 0, nullptr));
    }
    LogFile& file(uint32_t number) { return *files_[number - 1]; }
    Fact fact(State state, const std::string& key, uint64_t generation, uint32_t number, uint32_t block = 2, std::string_view group = {}) {
        Fact fact{.state = state, .block = block, .file = &file(number)};
        fact.header.tenant = "t";
        fact.header.key = key;
        fact.header.group = group;
        fact.header.generation = generation;
        fact.header.length = 1000;
        lay_out(fact.header);
        return fact;
    }
    Fact value(const std::string& key, uint64_t generation, uint32_t number, uint32_t block = 2, std::string_view group = {}) {
        return fact(State::kValue, key, generation, number, block, group);
    }
    Fact removal(const std::string& key, uint64_t generation, uint32_t number) { return fact(State::kRemoved, key, generation, number); }

    std::vector<std::shared_ptr<LogFile>> files_;
    Index index_;
};

TEST_F(IndexTest, TheHigherGenerationCountsInWhateverOrderTheyCome) {
    EXPECT_TRUE(index_.merge(value("k", 5, 2)));
    EXPECT_FALSE(index_.merge(value("k", 4, 3)));
    EXPECT_TRUE(index_.merge(value("k", 6, 1)));
    EXPECT_EQ(index_.find("t", "k")->generation, 6u);
    EXPECT_EQ(index_.look("t", "k")->low, 1u);
    EXPECT_EQ(index_.look("t", "k")->high, 3u);
    EXPECT_EQ(index_.values(), 1u);
    EXPECT_EQ(file(1).values, 1u);
    EXPECT_EQ(file(2).values, 0u);
    EXPECT_EQ(file(2).live_bytes, 0u);
}

TEST_F(IndexTest, ARemovalOutranksItsOwnGenerationBeforeIt) {
    EXPECT_TRUE(index_.merge(removal("k", 5, 2)));
    EXPECT_FALSE(index_.merge(value("k", 5, 1)));
    EXPECT_FALSE(index_.find("t", "k"));
    EXPECT_TRUE(index_.merge(value("k", 5, 3))) << "written again";
    EXPECT_TRUE(index_.find("t", "k"));
    EXPECT_TRUE(index_.merge(removal("k", 5, 3)));
    EXPECT_TRUE(index_.merge(value("k", 6, 2)));
    EXPECT_TRUE(index_.find("t", "k"));
    EXPECT_TRUE(index_.merge(removal("k", 6, 3)));
    EXPECT_FALSE(index_.find("t", "k"));
    EXPECT_EQ(index_.removals(), 1u);
    EXPECT_EQ(index_.values(), 0u);
}

TEST_F(IndexTest, InFilesWithoutOrderARemovalOutranksItsOwnGeneration) {
    for (const uint32_t unordered : {2u, 3u}) {
        Index index;
        for (const auto& one : files_) {
            one->first_value = one->first_removal = nullptr;
            one->ordered = one->number != unordered;
        }
        EXPECT_TRUE(index.merge(removal("k", 5, 2)));
        EXPECT_FALSE(index.merge(value("k", 5, 3)));
        EXPECT_FALSE(index.find("t", "k"));
    }
}

TEST_F(IndexTest, OfEqualRecordsTheLaterPlaceCounts) {
    EXPECT_TRUE(index_.merge(value("k", 5, 2, 10)));
    EXPECT_FALSE(index_.merge(value("k", 5, 1, 20)));
    EXPECT_EQ(index_.find("t", "k")->file->number, 2u);
    EXPECT_TRUE(index_.merge(value("k", 5, 3, 2)));
    EXPECT_EQ(index_.find("t", "k")->file->number, 3u);
}

TEST_F(IndexTest, AKeyInDoubtRemembersTheFile) {
    index_.doubt("t", "k", 5, file(2));
    EXPECT_FALSE(index_.find("t", "k"));
    ASSERT_NE(index_.look("t", "k"), nullptr);
    EXPECT_EQ(index_.look("t", "k")->state, State::kDoubtful);
    EXPECT_TRUE(index_.merge(value("k", 5, 3)));
    EXPECT_TRUE(index_.find("t", "k"));
    EXPECT_EQ(index_.look("t", "k")->low, 2u);
}

TEST_F(IndexTest, ARemovalKnowsOfANewerRecordInDoubt) {
    index_.merge(removal("k", 5, 1));
    index_.doubt("t", "k", 8, file(2));
    EXPECT_TRUE(index_.look("t", "k")->in_doubt());
    index_.merge(removal("k", 5, 3));  // written again: nothing has changed
    EXPECT_TRUE(index_.look("t", "k")->in_doubt());
    index_.merge(removal("k", 8, 3));
    EXPECT_FALSE(index_.look("t", "k")->in_doubt());
}

TEST_F(IndexTest, WhatIsHiddenCannotBeRead) {
    index_.merge(value("k", 5, 1));
    index_.hide("t", "k", file(2));
    EXPECT_FALSE(index_.find("t", "k"));
    EXPECT_EQ(index_.look("t", "k")->high, 2u);
    EXPECT_EQ(file(1).values, 0u);
}

TEST_F(IndexTest, TheGroupMayChange) {
    index_.merge(value("k", 5, 1, 2, "a group"));
    EXPECT_EQ(index_.look("t", "k")->group(), "a group");
    index_.merge(value("k", 6, 1, 3, "another one"));
    EXPECT_EQ(index_.look("t", "k")->group(), "another one");
    EXPECT_EQ(index_.look("t", "k")->key(), "k");
    EXPECT_EQ(file(1).values, 1u);
}

TEST_F(IndexTest, UnreadablePlacesReachIntoEveryKey) {
    index_.set_floor(2);
    index_.merge(value("k", 5, 3));
    EXPECT_EQ(index_.look("t", "k")->low, 2u);
}

TEST_F(IndexTest, DoesWhatAMapDoes) {
    std::mt19937_64 random(1);
    std::map<std::string, uint64_t> model;
    for (uint64_t step = 1; step < 50'000; ++step) {
        const std::string key = "k" + std::to_string(random() % 5000);
        if (random() % 3 != 0) {
            index_.merge(value(key, step, static_cast<uint32_t>(1 + random() % 3), static_cast<uint32_t>(step)));
            model[key] = step;
        } else if (model.erase(key) != 0) {
            index_.forget(*const_cast<Entry*>(index_.look("t", key)));
        }
    }
    EXPECT_EQ(index_.values(), model.size());
    for (uint64_t i = 0; i < 5000; ++i) {
        const std::string key = "k" + std::to_string(i);
        const auto found = index_.find("t", key);
        const auto expected = model.find(key);
        ASSERT_EQ(found.has_value(), expected != model.end()) << key;
        ASSERT_TRUE(!found || found->generation == expected->second) << key;
    }
    size_t listed = 0;
    std::vector<TierObject> objects;
    std::vector<char> texts;
    for (size_t part = 0; part < Index::kParts; ++part) {
        index_.collect(part, objects, texts);
        listed += objects.size();
        for (const TierObject& object : objects) EXPECT_EQ(model.at(std::string(object.key)), object.generation);
    }
    EXPECT_EQ(listed, model.size());
    EXPECT_EQ(file(1).values + file(2).values + file(3).values, model.size());
}

TEST(FileTable, KnowsWhichNumbersExist) {
    FileTable files;
    for (const uint32_t number : {2u, 5u, 9u}) files.add(std::make_shared<LogFile>(number, 0, nullptr));
    EXPECT_TRUE(files.any_other(1, 3, 5));
    EXPECT_FALSE(files.any_other(2, 2, 2));
    EXPECT_TRUE(files.any_other(2, 5, 2));
    EXPECT_FALSE(files.any_other(6, 8, 1));
    EXPECT_EQ(files.first_other(3, 9, 5), 9u);
    files.add_unreadable(7);
    EXPECT_TRUE(files.any_other(6, 8, 1));
    files.remove(9);
    EXPECT_EQ(files.size(), 2u);
}

}  // namespace
}  // namespace mooncake::store::log
