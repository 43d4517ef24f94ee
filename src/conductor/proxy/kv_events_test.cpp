// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/kv_events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "conductor/proxy/zmtp.h"

namespace mooncake::conductor {
namespace {

using Json = nlohmann::json;

std::string packed(const Json& value) {
    const auto bytes = Json::to_msgpack(value);
    return {bytes.begin(), bytes.end()};
}

Json stored(std::vector<uint64_t> hashes, Json parent, std::vector<uint32_t> tokens, uint32_t size = 4) {
    return {"BlockStored", hashes, parent, tokens, size, nullptr};
}

class KvViewTest : public testing::Test {
protected:
    KvViewTest() { index_.add_instance(0, 100); }
    void hear(const Json& event) {
        const auto events = parse_kv_events(packed(Json::array({1.5, Json::array({event})})));
        ASSERT_TRUE(events) << events.error().to_string();
        for (const KvEvent& one : *events) view_.apply(one, index_, 0);
    }
    /// How many blocks of it are known to be there.
    uint32_t match(const std::vector<uint32_t>& tokens) {
        std::vector<uint32_t> lengths;
        index_.match(hash_tokens(tokens, 4, 9), lengths);
        return lengths[0];
    }
    PrefixIndex index_;
    KvView view_{9, 4};
};

TEST_F(KvViewTest, KnowsBlocksByTheTokensThatLeadToThem) {
    hear(stored({111, 222}, nullptr, {1, 2, 3, 4, 5, 6, 7, 8}));
    hear(stored({333}, 222, {9, 10, 11, 12}));
    EXPECT_EQ(match({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}), 3u);
    EXPECT_EQ(match({1, 2, 3, 4, 9, 10, 11, 12}), 1u);
    hear(Json::array({"BlockRemoved", Json::array({222})}));
    EXPECT_EQ(match({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), 1u);
    hear(Json::array({"AllBlocksCleared"}));
    EXPECT_EQ(match({1, 2, 3, 4}), 0u);
    EXPECT_EQ(view_.size(), 0u);
}

TEST_F(KvViewTest, LeavesOutWhatItCannotName) {
    hear(stored({7}, 99, {1, 2, 3, 4}));
    hear(stored({8}, nullptr, {1, 2, 3, 4, 5, 6, 7, 8}, 8));
    hear(stored({9, 10}, nullptr, {1, 2, 3, 4}));  // tokens of one block only
    hear(Json::array({"BlockRemoved", Json::array({12345})}));
    hear({"SomethingNew", 1, 2});
    EXPECT_EQ(view_.size(), 1u);
    EXPECT_EQ(match({1, 2, 3, 4}), 1u);
}

TEST_F(KvViewTest, TakesDigestsAndMapsAsWell) {
    hear({"BlockStored", {Json::binary({1, 2, 3})}, nullptr, {1, 2, 3, 4}, 4});
    hear({{"event_type", "stored"},
          {"seq_hashes", {-5}},
          {"parent_hash", Json::binary({1, 2, 3})},
          {"token_ids", {5, 6, 7, 8}},
          {"block_size", 4}});
    EXPECT_EQ(match({1, 2, 3, 4, 5, 6, 7, 8}), 2u);
    hear({{"event_type", "removed"}, {"seq_hashes", {-5}}});
    EXPECT_EQ(match({1, 2, 3, 4, 5, 6, 7, 8}), 1u);
}

TEST(KvEvents, RefusesWhatIsNoBatch) {
    for (const Json& bad : {Json(1), Json::array(), Json{1.0, 2}, Json{1.0, {5}}, Json{1.0, {{"BlockStored", 1}}},
                            Json{1.0, {{"BlockStored", {1}, nullptr, "x"}}}, Json{1.0, {{"BlockStored", {nullptr}, nullptr, {1}}}}}) {
        EXPECT_FALSE(parse_kv_events(packed(bad))) << bad;
    }
    EXPECT_FALSE(parse_kv_events("\xc1"));
    EXPECT_FALSE(parse_kv_events(""));
}

TEST(KvEvents, KnowsGapsFromOldMessagesAndNewLives) {
    EXPECT_EQ(turn_of(std::nullopt, 7), Turn::kNext);
    EXPECT_EQ(turn_of(6, 7), Turn::kNext);
    EXPECT_EQ(turn_of(6, 8), Turn::kGap);
    EXPECT_EQ(turn_of(6, 6), Turn::kOld);
    EXPECT_EQ(turn_of(6, 0), Turn::kRestarted);
    EXPECT_EQ(turn_of(1'000'000, 3), Turn::kRestarted);
}

// ---- ZMTP

TEST(Zmtp, ReadsMessagesHoweverTheyAreCut) {
    const std::vector<std::string> first{"topic", std::string(8, '\1'), std::string(300, 'x')}, second{"", "y"};
    const std::string bytes = zmtp::greeting() + zmtp::ready("PUB") + zmtp::encode(first) + zmtp::encode(second);
    for (const size_t step : {size_t{1}, size_t{7}, size_t{64}, bytes.size()}) {
        zmtp::Parser parser;
        std::vector<zmtp::Message> heard;
        for (size_t at = 0; at < bytes.size(); at += step) {
            const auto some = parser.feed(std::string_view(bytes).substr(at, step));
            ASSERT_TRUE(some);
            heard.insert(heard.end(), some->begin(), some->end());
        }
        ASSERT_EQ(heard.size(), 2u);
        EXPECT_EQ(heard[0], first);
        EXPECT_EQ(heard[1], second);
    }
}

TEST(Zmtp, RefusesOtherProtocolsMechanismsAndSizes) {
    std::string plain = zmtp::greeting();
    plain.replace(12, 5, "PLAIN");
    std::string old = zmtp::greeting();
    old[10] = 1;
    std::string huge = zmtp::greeting() + '\2';
    huge += std::string("\x7f\xff\xff\xff\xff\xff\xff\xff", 8);
    std::string many = zmtp::greeting();
    for (int i = 0; i < 40; ++i) many += std::string("\1\0", 2);
    for (const std::string& bad : {std::string("HTTP/1.1 400"), plain, old, huge, many, zmtp::greeting() + std::string("\x80\0", 2)}) {
        zmtp::Parser parser;
        EXPECT_FALSE(parser.feed(bad));
    }
}

}  // namespace
}  // namespace mooncake::conductor
