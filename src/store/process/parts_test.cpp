// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "base/format.h"
#include "store/client/write_sessions.h"
#include "store/master/ops/segment_ops.h"
#include "store/process/testing/pool.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store::testing {
namespace {

constexpr int64_t kInvalidParams = static_cast<int64_t>(StoreCode::kInvalidParams);

class Parts : public ClientTest {};

TEST_F(Parts, OfValuesOfAllSizesAreTheRightBytes) {
    const auto node = client(), other = requester();
    std::minstd_rand random(1);
    for (const size_t length : {size_t{1}, size_t{100}, size_t{65536}, size_t{65537}, size_t{200'000}, size_t{1'000'000}}) {
        const std::string key = std::to_string(length);
        auto value = pattern(length, length);
        ASSERT_EQ(put(*node, key, value), StoreCode::kOk);
        for (int i = 0; i < 50; ++i) {
            const size_t from = random() % length, size = random() % (length - from + 1);
            std::vector<std::byte> into(size);
            StoreClient& reader = i % 2 == 0 ? *node : *other;
            ASSERT_EQ(part(reader, key, from, into), static_cast<int64_t>(size)) << length << " " << from;
            ASSERT_TRUE(std::equal(into.begin(), into.end(), value.begin() + static_cast<std::ptrdiff_t>(from)))
                << length << " " << from << " " << size;
        }
    }
}

TEST_F(Parts, OfOneCallMayOverlapAndRepeat) {
    const auto node = client(), other = requester();
    auto a = pattern(300'000, 1), b = pattern(1000, 2);
    ASSERT_EQ(put(*node, "a", a), StoreCode::kOk);
    ASSERT_EQ(put(*node, "b", b), StoreCode::kOk);
    std::vector<std::vector<std::byte>> into;
    std::vector<PartToRead> parts;
    struct Wanted {
        std::string_view key;
        uint64_t offset, length;
    };
    const std::vector<Wanted> wanted = {{"a", 0, 300'000}, {"a", 65'535, 2}, {"b", 10, 10}, {"a", 65'530, 100},
                                        {"a", 299'999, 1}, {"b", 0, 1000},   {"a", 100, 0}};
    for (const Wanted& one : wanted) into.emplace_back(one.length);
    for (size_t i = 0; i < wanted.size(); ++i)
        parts.push_back({.key = wanted[i].key, .offset = wanted[i].offset, .to = {into[i].data(), into[i].size()}});
    const auto results = other->read_parts(parts);
    for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_EQ(results[i], static_cast<int64_t>(wanted[i].length)) << i;
        const auto& value = wanted[i].key == "a" ? a : b;
        EXPECT_TRUE(std::equal(into[i].begin(), into[i].end(), value.begin() + static_cast<std::ptrdiff_t>(wanted[i].offset))) << i;
    }
    EXPECT_EQ(master().calls("get_replicas"), 1);
}

TEST_F(Parts, BeyondTheEndAreRefusedWithoutHarmToOthers) {
    const auto node = client();
    auto value = pattern(100'000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    std::vector<std::byte> into(10), other(10);
    const std::vector<PartToRead> parts = {{.key = "k", .offset = 99'991, .to = {into.data(), 10}},
                                           {.key = "k", .offset = 99'990, .to = {other.data(), 10}},
                                           {.key = "k", .offset = UINT64_MAX, .to = {into.data(), 10}},
                                           {.key = "k", .offset = 0, .to = {nullptr, 10}},
                                           {.key = "missing", .offset = 0, .to = {into.data(), 10}}};
    EXPECT_EQ(node->read_parts(parts), (std::vector<int64_t>{kInvalidParams, 10, kInvalidParams, kInvalidParams, -704}));
    EXPECT_EQ(0, std::memcmp(other.data(), value.data() + 99'990, 10));
}

TEST_F(Parts, ThatAreDamagedAreNeverGivenOut) {
    const auto node = client(), other = requester();
    auto value = pattern(300'000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    damage(*other, "k", 100'000);
    std::vector<std::byte> into(10);
    EXPECT_EQ(part(*other, "k", 70'000, into), static_cast<int64_t>(StoreCode::kChecksumMismatch));
    EXPECT_EQ(part(*node, "k", 131'000, into), static_cast<int64_t>(StoreCode::kChecksumMismatch));
    EXPECT_EQ(part(*other, "k", 0, into), 10);  // another chunk
    EXPECT_EQ(part(*node, "k", 200'000, into), 10);
    damage(*other, "k", 300'000 + 8);  // the table itself
    EXPECT_EQ(part(*other, "k", 0, into), static_cast<int64_t>(StoreCode::kChecksumMismatch));
}

TEST_F(Parts, AreReadAsTheyLieWhereNothingIsVerified) {
    const Change unchecked = [](StoreConfig& config) { config.options.checksum = false; };
    const auto node = client(unchecked), other = requester(unchecked);
    auto value = pattern(300'000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    std::vector<std::byte> into(100'000);
    EXPECT_EQ(part(*other, "k", 50'001, into), 100'000);
    EXPECT_EQ(0, std::memcmp(into.data(), value.data() + 50'001, into.size()));
}

class ReadSessionsTest : public ClientTest {};

TEST_F(ReadSessionsTest, ReadWithoutAskingAgain) {
    const auto node = client(), other = requester();
    auto value = pattern(200'000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    const std::vector<std::string_view> keys = {"k", "missing"};
    EXPECT_EQ(other->open_reads(keys), (std::vector{StoreCode::kOk, StoreCode::kObjectNotFound}));
    const int asked = master().calls("get_replicas");
    for (uint64_t offset = 0; offset < value.size(); offset += 40'000) {
        std::vector<std::byte> into(40'000);
        const PartToRead one{.key = "k", .offset = offset, .to = {into.data(), into.size()}};
        EXPECT_EQ(other->read_open({&one, 1}).at(0), 40'000);
        EXPECT_EQ(0, std::memcmp(into.data(), value.data() + offset, into.size()));
    }
    EXPECT_EQ(master().calls("get_replicas"), asked);
    std::vector<std::byte> into(10);
    const std::vector<PartToRead> mixed = {{.key = "missing", .offset = 0, .to = {into.data(), 10}},
                                           {.key = "k", .offset = 5, .to = {into.data(), 10}},
                                           {.key = "k", .offset = 199'999, .to = {into.data(), 10}}};
    EXPECT_EQ(other->read_open(mixed), (std::vector<int64_t>{kInvalidParams, 10, kInvalidParams}));
    EXPECT_FALSE(other->close_reads(keys));
    EXPECT_EQ(other->read_open({&mixed[1], 1}).at(0), kInvalidParams);
}

TEST_F(ReadSessionsTest, EndWithTheirLease) {
    options_.lease_ttl = 20ms;
    const auto node = client();
    auto value = pattern(1000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    const std::string_view key = "k";
    ASSERT_EQ(node->open_reads({&key, 1}).at(0), StoreCode::kOk);
    std::vector<std::byte> into(10);
    const PartToRead one{.key = "k", .offset = 0, .to = {into.data(), into.size()}};
    EXPECT_TRUE(eventually([&] { return node->read_open({&one, 1}).at(0) == static_cast<int64_t>(StoreCode::kLeaseExpired); }));
    EXPECT_EQ(node->read_open({&one, 1}).at(0), kInvalidParams);
}

TEST_F(ReadSessionsTest, ThatNobodyClosesAreForgottenWhenThereAreMany) {
    options_.lease_ttl = 20ms;
    const auto node = client();
    auto value = pattern(16, 1);
    std::vector<std::byte> into(value.size());
    std::vector<std::string> names = {"first", "second"};
    for (int i = 0; i < 1100; ++i) names.push_back(format_text("other{}", i));
    for (const std::string& name : names) ASSERT_EQ(put(*node, name, value), StoreCode::kOk);
    const std::vector<std::string_view> keys(names.begin(), names.end());
    const auto opened = [&](size_t from, size_t count) { return node->open_reads(std::span(keys).subspan(from, count)); };
    const auto read = [&](size_t i) {
        const PartToRead one{.key = keys[i], .offset = 0, .to = {into.data(), into.size()}};
        return node->read_open({&one, 1}).at(0);
    };
    ASSERT_THAT(opened(0, 1), ::testing::Each(StoreCode::kOk));
    ASSERT_THAT(opened(1, 1), ::testing::Each(StoreCode::kOk));
    ASSERT_TRUE(eventually([&] { return read(1) == static_cast<int64_t>(StoreCode::kLeaseExpired); }));
    ASSERT_THAT(opened(2, 1050), ::testing::Each(StoreCode::kOk));
    ASSERT_THAT(opened(1060, 10), ::testing::Each(StoreCode::kOk));
    EXPECT_EQ(read(0), kInvalidParams) << "it is not even known to have ended";
}

class WriteSessionsTest : public ClientTest {
protected:
    static StoreCode open(StoreClient& client, std::string_view key, uint64_t length, const WriteConfig& config = {}) {
        const StoreClient::Reservation one{.key = key, .length = length};
        return client.open_writes({&one, 1}, config).at(0);
    }
    static int64_t write(StoreClient& client, std::string_view key, uint64_t offset, std::byte* from, uint64_t length) {
        const PartToWrite one{.key = key, .offset = offset, .from = {from, length}};
        return client.write_open({&one, 1}).at(0);
    }
    static StoreCode end(StoreClient& client, std::string_view key, bool revoke = false) {
        return client.close_writes({&key, 1}, revoke).at(0);
    }
};

TEST_F(WriteSessionsTest, MakeAValueOutOfPartsInAnyOrder) {
    const auto a = client(), b = client(), writer = requester();
    for (const uint64_t length : {uint64_t{1}, uint64_t{65'536}, uint64_t{65'537}, uint64_t{500'000}}) {
        const std::string key = std::to_string(length);
        auto value = pattern(length, length);
        ASSERT_EQ(open(*writer, key, length, {.replica_num = 2}), StoreCode::kOk);
        EXPECT_EQ(exists(*a, key), 0);
        constexpr uint64_t kStep = 50'000;  // not in step with the chunks
        for (uint64_t from = length / kStep * kStep;; from -= kStep) {
            const uint64_t size = std::min(kStep, length - from);
            ASSERT_EQ(write(*writer, key, from, value.data() + from, size), static_cast<int64_t>(size));
            if (from == 0) break;
        }
        ASSERT_EQ(end(*writer, key), StoreCode::kOk);
        EXPECT_TRUE(holds(*a, key, value));
        EXPECT_TRUE(holds(*b, key, value));
        EXPECT_TRUE(holds(*writer, key, value));
        std::vector<std::byte> into(1);
        EXPECT_EQ(part(*writer, key, length - 1, into), 1);
    }
}

TEST_F(WriteSessionsTest, TakeWholeChunksWithoutReadingThemBack) {
    const auto node = client(), writer = requester();
    auto value = pattern(4 * kChunkBytes + 100, 1);
    ASSERT_EQ(open(*writer, "k", value.size()), StoreCode::kOk);
    EXPECT_EQ(write(*writer, "k", 2 * kChunkBytes, value.data() + 2 * kChunkBytes, value.size() - 2 * kChunkBytes),
              static_cast<int64_t>(value.size() - 2 * kChunkBytes));
    EXPECT_EQ(write(*writer, "k", 0, value.data(), 2 * kChunkBytes), static_cast<int64_t>(2 * kChunkBytes));
    EXPECT_EQ(end(*writer, "k"), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", value));
}

TEST_F(WriteSessionsTest, RefuseAValueWithHoles) {
    const auto node = client();
    auto value = pattern(100'000, 1);
    ASSERT_EQ(open(*node, "k", value.size()), StoreCode::kOk);
    EXPECT_EQ(write(*node, "k", 0, value.data(), 50'000), 50'000);
    EXPECT_EQ(write(*node, "k", 50'001, value.data() + 50'001, 49'999), 49'999);
    EXPECT_EQ(end(*node, "k"), StoreCode::kInvalidWrite);
    EXPECT_EQ(exists(*node, "k"), 0);
    EXPECT_EQ(put(*node, "k", value), StoreCode::kOk);  // the place was given up
    EXPECT_TRUE(holds(*node, "k", value));
}

TEST_F(WriteSessionsTest, AreGivenUpOnRequest) {
    const auto node = client();
    auto value = pattern(100'000, 1);
    ASSERT_EQ(open(*node, "k", value.size()), StoreCode::kOk);
    EXPECT_EQ(write(*node, "k", 0, value.data(), 50'000), 50'000);
    EXPECT_EQ(end(*node, "k", true), StoreCode::kOk);
    EXPECT_EQ(end(*node, "k", true), StoreCode::kInvalidParams);
    EXPECT_EQ(exists(*node, "k"), 0);
    ASSERT_EQ(open(*node, "k", value.size()), StoreCode::kOk);
    EXPECT_EQ(end(*node, "k", true), StoreCode::kOk);
}

TEST_F(WriteSessionsTest, NeedArgumentsThatMakeSense) {
    const auto node = client();
    auto value = pattern(1000, 1);
    EXPECT_EQ(open(*node, "", 10), StoreCode::kInvalidParams);
    EXPECT_EQ(open(*node, "k", 0), StoreCode::kInvalidParams);
    EXPECT_EQ(open(*node, "k", UINT64_MAX), StoreCode::kInvalidParams);
    ASSERT_EQ(open(*node, "k", 1000), StoreCode::kOk);
    EXPECT_EQ(open(*node, "k", 1000), StoreCode::kInvalidParams);
    EXPECT_EQ(write(*node, "nobody", 0, value.data(), 10), kInvalidParams);
    EXPECT_EQ(write(*node, "k", 991, value.data(), 10), kInvalidParams);
    EXPECT_EQ(write(*node, "k", UINT64_MAX, value.data(), 10), kInvalidParams);
    EXPECT_EQ(write(*node, "k", 0, nullptr, 10), kInvalidParams);
    EXPECT_EQ(write(*node, "k", 0, value.data(), 1000), 1000);
    EXPECT_EQ(end(*node, "k"), StoreCode::kOk);
    EXPECT_EQ(open(*node, "k", 1000), StoreCode::kObjectAlreadyExists);
    EXPECT_EQ(end(*node, "k"), StoreCode::kInvalidParams);
    const std::vector<StoreClient::Reservation> twice = {{.key = "t", .length = 1}, {.key = "t", .length = 1}};
    EXPECT_EQ(node->open_writes(twice, {}), (std::vector{StoreCode::kOk, StoreCode::kInvalidParams}));
}

TEST_F(WriteSessionsTest, EndWhenTheMasterHasGivenTheClientUp) {
    const auto node = client(), writer = requester();
    auto value = pattern(100'000, 1);
    ASSERT_EQ(open(*writer, "k", value.size()), StoreCode::kOk);
    ASSERT_EQ(write(*writer, "k", 0, value.data(), 50'000), 50'000);
    const int joins = master().calls("remount");
    master().act([&](Transaction& t, Time now) { end_client(t, t.state().clients().find(writer->id()), ClientEnd::kSilent, now); });
    ASSERT_TRUE(eventually([&] { return master().calls("remount") > joins && writer->master_reachable(); })) << "the same one, again";
    EXPECT_EQ(write(*writer, "k", 50'000, value.data() + 50'000, 50'000), static_cast<int64_t>(StoreCode::kRpcFail))
        << "what it had reserved may be somebody else's";
    EXPECT_NE(end(*writer, "k"), StoreCode::kOk);
    EXPECT_EQ(put(*writer, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", value));
}

TEST_F(WriteSessionsTest, WriteNothingOnceTheirTimeIsOver) {
    options_.put_release_timeout = 2s;
    const auto node = client(), writer = requester();
    auto value = pattern(1000, 1);
    ASSERT_EQ(open(*writer, "k", value.size()), StoreCode::kOk);
    int64_t written = 0;
    ASSERT_TRUE(eventually([&] { return (written = write(*writer, "k", 0, value.data(), value.size())) != 1000; }));
    EXPECT_EQ(written, static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_NE(end(*writer, "k"), StoreCode::kOk);
    EXPECT_EQ(exists(*node, "k"), 0);
}

TEST_F(WriteSessionsTest, RefusePartsOfOneCallThatOverlap) {
    const auto a = client(), b = client(), writer = requester();
    constexpr uint64_t kBytes = 1 << 20;
    for (int round = 0; round < 5; ++round) {
        const std::string key = std::to_string(round);
        ASSERT_EQ(open(*writer, key, kBytes, {.replica_num = 2}), StoreCode::kOk);
        std::vector<std::vector<std::byte>> values;
        for (uint64_t i = 0; i < 8; ++i) values.push_back(pattern(kBytes, i));
        std::vector<PartToWrite> parts;
        for (auto& value : values) parts.push_back({.key = key, .offset = 0, .from = {value.data(), kBytes}});
        parts.push_back({.key = key, .offset = kBytes - 1, .from = {values[1].data(), 1}});
        parts.push_back({.key = key, .offset = 5, .from = {values[1].data(), 0}});
        std::vector<int64_t> expected(10, kInvalidParams);
        expected[0] = kBytes;
        expected[9] = 0;
        EXPECT_EQ(writer->write_open(parts), expected);
        ASSERT_EQ(end(*writer, key), StoreCode::kOk);
        EXPECT_TRUE(holds(*a, key, values[0]));
        EXPECT_TRUE(holds(*b, key, values[0]));
    }
}

TEST_F(WriteSessionsTest, TakeOfPartsThatFollowEachOtherTheLast) {
    const auto node = client(), writer = requester();
    auto first = pattern(200'000, 1), second = pattern(200'000, 2);
    ASSERT_EQ(open(*writer, "k", first.size()), StoreCode::kOk);
    EXPECT_EQ(write(*writer, "k", 0, first.data(), first.size()), 200'000);
    EXPECT_EQ(write(*writer, "k", 50'000, second.data() + 50'000, 100'000), 100'000);
    ASSERT_EQ(end(*writer, "k"), StoreCode::kOk);
    std::copy(second.begin() + 50'000, second.begin() + 150'000, first.begin() + 50'000);
    EXPECT_TRUE(holds(*node, "k", first));
}

TEST(PartsUnderWayTest, DoNotShareAByte) {
    PartsUnderWay parts;
    EXPECT_TRUE(parts.add(10, 20));
    EXPECT_TRUE(parts.add(20, 30));
    EXPECT_TRUE(parts.add(0, 10));
    for (const auto& [from, to] :
         {std::pair{0, 1}, std::pair{5, 15}, std::pair{19, 20}, std::pair{29, 40}, std::pair{0, 100}, std::pair{12, 13}})
        EXPECT_FALSE(parts.add(static_cast<uint64_t>(from), static_cast<uint64_t>(to))) << from;
    EXPECT_TRUE(parts.add(15, 15)) << "of no bytes";
    parts.remove(15, 15);
    parts.remove(10, 20);
    EXPECT_FALSE(parts.add(9, 11));
    EXPECT_TRUE(parts.add(12, 18));
}

TEST(CoverageTest, KnowsWhenEveryByteWasWritten) {
    Coverage coverage;
    EXPECT_TRUE(coverage.covers(0));
    EXPECT_FALSE(coverage.covers(1));
    coverage.add(10, 20);
    coverage.add(30, 40);
    coverage.add(5, 5);
    EXPECT_FALSE(coverage.covers(40));
    coverage.add(20, 30);
    EXPECT_FALSE(coverage.covers(40));
    coverage.add(0, 12);
    EXPECT_TRUE(coverage.covers(40));
    EXPECT_FALSE(coverage.covers(41));
    coverage.add(3, 100);
    EXPECT_TRUE(coverage.covers(100));
}

}  // namespace
}  // namespace mooncake::store::testing
