// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "store/process/testing/pool.h"

namespace mooncake::store::testing {
namespace {

class Values : public ClientTest {};

TEST_F(Values, AreReadBackByTheirWriterAndByOthers) {
    const auto node = client(), writer = requester(), reader = requester();
    for (const size_t length : {size_t{1}, size_t{7}, size_t{4096}, size_t{65536}, size_t{65537}, size_t{1 << 20}, size_t{3'000'001}}) {
        const std::string key = "k" + std::to_string(length);
        auto value = pattern(length, length);
        ASSERT_EQ(put(*writer, key, value), StoreCode::kOk) << length;
        EXPECT_TRUE(holds(*writer, key, value));
        EXPECT_TRUE(holds(*reader, key, value));
        EXPECT_TRUE(holds(*node, key, value));
        EXPECT_EQ(exists(*reader, key), 1);
    }
}

TEST_F(Values, OfABatchGoInOneQuestionAndOneAnswerEachWay) {
    const auto node = client(), other = requester();
    constexpr size_t kCount = 200;
    std::vector<std::vector<std::byte>> values;
    std::vector<std::string> keys;
    std::vector<Piece> pieces;
    for (size_t i = 0; i < kCount; ++i) {
        values.push_back(pattern(1 + i * 97, i));
        keys.push_back("key" + std::to_string(i));
    }
    for (auto& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<ValueToWrite> writes;
    for (size_t i = 0; i < kCount; ++i) writes.push_back({.key = keys[i], .pieces = {&pieces[i], 1}});
    const auto codes = other->write(writes, {}, false);
    ASSERT_EQ(codes.size(), kCount);
    for (const StoreCode code : codes) EXPECT_EQ(code, StoreCode::kOk);
    EXPECT_EQ(master().calls("put_start"), 1);
    EXPECT_EQ(master().calls("put_end"), 1);

    std::vector<std::vector<std::byte>> into;
    std::vector<ValueToRead> reads;
    std::vector<Piece> to;
    for (auto& value : values) into.emplace_back(value.size());
    for (auto& one : into) to.push_back({one.data(), one.size()});
    for (size_t i = 0; i < kCount; ++i) reads.push_back({.key = keys[i], .pieces = {&to[i], 1}});
    const auto got = other->read(reads);
    ASSERT_EQ(got.size(), kCount);
    for (size_t i = 0; i < kCount; ++i) {
        EXPECT_EQ(got[i], static_cast<int64_t>(values[i].size()));
        EXPECT_EQ(into[i], values[i]) << i;
    }
    EXPECT_EQ(master().calls("get_replicas"), 1);
}

TEST_F(Values, AreTheConcatenationOfTheirPieces) {
    const auto node = client(), other = requester();
    auto value = pattern(200'000, 5);
    const std::vector<Piece> pieces = {{value.data(), 1}, {nullptr, 0}, {value.data() + 1, 70'000}, {value.data() + 70'001, 129'999}};
    const ValueToWrite write{.key = "k", .pieces = pieces};
    ASSERT_EQ(other->write({&write, 1}, {}, false).at(0), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", value));
    std::vector<std::byte> a(3), b(199'990), c(100, std::byte{9});
    const std::vector<Piece> to = {{a.data(), a.size()}, {b.data(), b.size()}, {c.data(), c.size()}};
    const ValueToRead read{.key = "k", .pieces = to};
    ASSERT_EQ(other->read({&read, 1}).at(0), 200'000);
    EXPECT_EQ(0, std::memcmp(a.data(), value.data(), 3));
    EXPECT_EQ(0, std::memcmp(b.data(), value.data() + 3, b.size()));
    EXPECT_EQ(0, std::memcmp(c.data(), value.data() + 199'993, 7));
    EXPECT_EQ(c[7], std::byte{9});
}

TEST_F(Values, ThatExistAreNotWrittenAgainByAPut) {
    const auto node = client();
    auto first = pattern(5000, 1), second = pattern(5000, 2);
    ASSERT_EQ(put(*node, "k", first), StoreCode::kOk);
    EXPECT_EQ(put(*node, "k", second), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", first));
}

TEST_F(Values, AreReplacedByAnUpsertForEverybody) {
    const auto node = client(), other = requester();
    auto first = pattern(5000, 1), second = pattern(100'000, 2);
    ASSERT_EQ(put(*node, "k", first), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", first));
    EXPECT_EQ(upsert(*node, "k", second), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, "k", second));
    EXPECT_TRUE(holds(*other, "k", second));  // although it held a lease on the first
}

TEST_F(Values, NamedTwiceInOneBatchAreWrittenOnce) {
    const auto node = client();
    auto first = pattern(5000, 1), second = pattern(5000, 2), third = pattern(70'000, 3);
    const Piece a{first.data(), first.size()}, b{second.data(), second.size()}, c{third.data(), third.size()};
    const std::vector<ValueToWrite> twice = {
        {.key = "k", .pieces = {&a, 1}}, {.key = "l", .pieces = {&a, 1}}, {.key = "k", .pieces = {&b, 1}}, {.key = "k", .pieces = {&c, 1}}};
    EXPECT_EQ(node->write(twice, {}, false), std::vector<StoreCode>(4, StoreCode::kOk));
    EXPECT_TRUE(holds(*node, "k", first));
    EXPECT_EQ(node->write(twice, {}, true), std::vector<StoreCode>(4, StoreCode::kOk));
    EXPECT_TRUE(holds(*node, "k", third));
    EXPECT_TRUE(holds(*node, "l", first));
}

TEST_F(Values, ThatAreNotThereAreAMiss) {
    const auto node = client();
    std::vector<std::byte> into(10);
    EXPECT_EQ(get(*node, "nothing", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
    EXPECT_EQ(exists(*node, "nothing"), 0);
    EXPECT_EQ(remove(*node, "nothing"), StoreCode::kObjectNotFound);
    const std::string_view key = "nothing";
    EXPECT_EQ(node->find({&key, 1}).at(0).code, StoreCode::kObjectNotFound);
}

TEST_F(Values, NeedArgumentsThatMakeSense) {
    const auto node = client();
    auto value = pattern(100, 1);
    std::vector<std::byte> empty;
    EXPECT_EQ(put(*node, "", value), StoreCode::kInvalidParams);
    EXPECT_EQ(put(*node, "k", empty), StoreCode::kInvalidParams);
    const Piece null{nullptr, 5}, huge{value.data(), UINT64_MAX}, good{value.data(), value.size()};
    const std::vector<Piece> wraps = {good, huge};
    const std::vector<ValueToWrite> writes = {
        {.key = "n", .pieces = {&null, 1}}, {.key = "w", .pieces = wraps}, {.key = "g", .pieces = {&good, 1}}};
    EXPECT_EQ(node->write(writes, {}, false), (std::vector{StoreCode::kInvalidParams, StoreCode::kInvalidParams, StoreCode::kOk}));
    EXPECT_EQ(put(*node, "r", value, {.replica_num = 0}), StoreCode::kInvalidParams);
    std::vector<std::byte> tight(99);
    EXPECT_EQ(get(*node, "g", tight), static_cast<int64_t>(StoreCode::kInvalidParams));
    const ValueToRead into_null{.key = "g", .pieces = {&null, 1}};
    EXPECT_EQ(node->read({&into_null, 1}).at(0), static_cast<int64_t>(StoreCode::kInvalidParams));
    EXPECT_TRUE(node->write({}, {}, false).empty());
    EXPECT_TRUE(node->read({}).empty());
    EXPECT_TRUE(node->exist({}).empty());
    EXPECT_TRUE(node->remove({}, false).empty());
    EXPECT_TRUE(node->find({}).empty());
    EXPECT_TRUE(node->read_parts({}).empty());
}

TEST_F(Values, OfKeysOfOddBytesAndGreatLengthAreFound) {
    const auto node = client();
    auto value = pattern(64, 1);
    const std::string long_key(kKeyBytesMax, 'x'), odd("a\0b\xff\n", 5);
    EXPECT_EQ(put(*node, long_key, value), StoreCode::kOk);
    EXPECT_EQ(put(*node, odd, value), StoreCode::kOk);
    EXPECT_TRUE(holds(*node, long_key, value));
    EXPECT_TRUE(holds(*node, odd, value));
}

TEST_F(Values, OfKeysThatAreTooLongAreRefusedWithoutHarmToOthers) {
    const auto node = client();
    auto value = pattern(64, 1);
    const Piece piece{value.data(), value.size()};
    ASSERT_EQ(put(*node, "here", value), StoreCode::kOk);
    for (const size_t length : {kKeyBytesMax + 1, size_t{65} << 20}) {
        const std::string key(length, 'x');
        constexpr auto kRefused = StoreCode::kInvalidParams;
        constexpr auto kNumber = static_cast<int64_t>(kRefused);
        const std::vector<std::string_view> keys = {"here", key, "nothing"};
        EXPECT_EQ(put(*node, key, value), kRefused);
        const std::vector<ValueToWrite> writes = {{.key = key, .pieces = {&piece, 1}}, {.key = "here", .pieces = {&piece, 1}}};
        EXPECT_EQ(node->write(writes, {}, true), (std::vector{kRefused, StoreCode::kOk}));
        std::vector<std::byte> into(64);
        const Piece to{into.data(), into.size()};
        const std::vector<ValueToRead> reads = {{.key = key, .pieces = {&to, 1}}, {.key = "here", .pieces = {&to, 1}}};
        EXPECT_EQ(node->read(reads), (std::vector<int64_t>{kNumber, 64}));
        const std::vector<PartToRead> parts = {{.key = key, .to = to}, {.key = "here", .to = to}};
        EXPECT_EQ(node->read_parts(parts), (std::vector<int64_t>{kNumber, 64}));
        EXPECT_EQ(node->exist(keys), (std::vector<int32_t>{1, static_cast<int32_t>(kNumber), 0}));
        EXPECT_EQ(node->find(keys).at(1).code, kRefused);
        EXPECT_EQ(node->find(keys).at(0).code, StoreCode::kOk);
        EXPECT_EQ(node->open_reads(keys), (std::vector{StoreCode::kOk, kRefused, StoreCode::kObjectNotFound}));
        const StoreClient::Reservation reserved{.key = key, .length = 64};
        EXPECT_EQ(node->open_writes({&reserved, 1}, {}).at(0), kRefused);
        EXPECT_EQ(node->replica_clear(keys, "").at(1), kRefused);
        EXPECT_EQ(node->create_task({.key = key, .targets = {"s"}}).code, kRefused);
        EXPECT_EQ(node->remove(std::vector<std::string_view>{key, "nothing"}, true), (std::vector{kRefused, StoreCode::kObjectNotFound}));
        EXPECT_EQ(node->remove(std::vector<std::string_view>{key}, true).at(0), kRefused);
        EXPECT_EQ(node->exist(std::vector<std::string_view>{key}).at(0), static_cast<int32_t>(kNumber));
    }
    const std::string group(kGroupBytesMax + 1, 'g');
    const ValueToWrite grouped{.key = "g", .pieces = {&piece, 1}, .group = group};
    EXPECT_EQ(node->write({&grouped, 1}, {}, false).at(0), StoreCode::kInvalidParams);
    const StoreClient::Reservation reserved{.key = "g", .length = 64, .group = group};
    EXPECT_EQ(node->open_writes({&reserved, 1}, {}).at(0), StoreCode::kInvalidParams);
    const std::string_view fits = std::string_view(group).substr(1);
    const ValueToWrite good{.key = "g", .pieces = {&piece, 1}, .group = fits};
    EXPECT_EQ(node->write({&good, 1}, {}, false).at(0), StoreCode::kOk);
}

TEST_F(Values, AreRefusedAtOnceWhenThePoolIsFull) {
    const auto node = client();
    auto value = pattern(10 * kMiB, 1), more = pattern(10 * kMiB, 2);
    ASSERT_EQ(put(*node, "k", value, {.hard_pin = true}), StoreCode::kOk);
    EXPECT_EQ(put(*node, "l", more), StoreCode::kNoAvailableHandle);
    EXPECT_EQ(exists(*node, "l"), 0);
    auto huge = pattern(17 * kMiB, 3);
    EXPECT_EQ(put(*node, "m", huge), StoreCode::kNoAvailableHandle);
}

TEST_F(Values, HaveAsManyReplicasAsAskedFor) {
    const auto a = client(), b = client(), c = client(), reader = requester();
    auto value = pattern(100'000, 1);
    ASSERT_EQ(put(*reader, "k", value, {.replica_num = 3}), StoreCode::kOk);
    const std::string_view key = "k";
    const ValueInfo info = reader->find({&key, 1}).at(0);
    ASSERT_EQ(info.replicas.size(), 3u);
    std::set<std::string> names;
    for (const ReplicaInfo& replica : info.replicas) {
        names.insert(replica.segment_name);
        EXPECT_EQ(replica.length, 100'000u);
        EXPECT_EQ(0, std::memcmp(reinterpret_cast<const void*>(replica.address), value.data(), value.size()));
    }
    EXPECT_EQ(names, (std::set{a->name(), b->name(), c->name()}));
    for (StoreClient* const one : {a.get(), b.get(), c.get(), reader.get()}) EXPECT_TRUE(holds(*one, "k", value));
}

TEST_F(Values, GoToThePreferredSegment) {
    const auto a = client(), b = client(), writer = requester();
    auto value = pattern(1000, 1);
    for (int i = 0; i < 20; ++i) {
        const std::string key = "k" + std::to_string(i);
        ASSERT_EQ(put(*writer, key, value, {.preferred_segments = {b->name()}}), StoreCode::kOk);
        const std::string_view view = key;
        EXPECT_EQ(writer->find({&view, 1}).at(0).replicas.at(0).segment_name, b->name());
    }
}

TEST_F(Values, AreRemovedForEverybody) {
    const auto node = client(), other = requester();
    auto value = pattern(1000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    EXPECT_EQ(remove(*node, "k"), StoreCode::kOk);
    EXPECT_EQ(exists(*other, "k"), 0);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    EXPECT_TRUE(holds(*other, "k", value));
    EXPECT_EQ(remove(*node, "k"), StoreCode::kObjectHasLease);
    EXPECT_EQ(remove(*node, "k", true), StoreCode::kOk);
    EXPECT_EQ(exists(*other, "k"), 0);  // although there is a soft lease
    std::vector<std::byte> into(1000);
    EXPECT_EQ(get(*other, "k", into), static_cast<int64_t>(StoreCode::kObjectNotFound));
}

TEST_F(Values, AreRemovedByPatternOrAltogether) {
    const auto node = client();
    auto value = pattern(1000, 1);
    for (const char* const key : {"a1", "a2", "b1"}) ASSERT_EQ(put(*node, key, value), StoreCode::kOk);
    EXPECT_EQ(node->remove_by_regex("^a", false), 2);
    EXPECT_EQ(exists(*node, "a1"), 0);
    EXPECT_EQ(exists(*node, "b1"), 1);
    EXPECT_EQ(node->remove_by_regex("[", false), static_cast<int64_t>(StoreCode::kInvalidParams));
    EXPECT_EQ(node->remove_by_regex("", false), static_cast<int64_t>(StoreCode::kInvalidParams));
    EXPECT_EQ(node->remove_all(false), 0);  // a soft lease
    EXPECT_EQ(node->remove_all(true), 1);
    EXPECT_EQ(exists(*node, "b1"), 0);
}

TEST_F(Values, AreClearedByTheirWriterOnly) {
    const auto node = client(), other = requester();
    auto value = pattern(1000, 1);
    ASSERT_EQ(put(*node, "k", value), StoreCode::kOk);
    const std::string_view key = "k";
    EXPECT_EQ(other->replica_clear({&key, 1}, "").at(0), StoreCode::kIllegalClient);
    EXPECT_EQ(node->replica_clear({&key, 1}, "").at(0), StoreCode::kOk);
    EXPECT_EQ(exists(*node, "k"), 0);
}

}  // namespace
}  // namespace mooncake::store::testing
