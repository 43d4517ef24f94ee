// SPDX-License-Identifier: Apache-2.0
// What a node answers to readers elsewhere, and to those who lie, hoard or never come back.
#include "store/node/stage_service.h"

#include <gtest/gtest.h>

#include <cstring>

#include "store/node/testing/disk_node.h"
#include "store/protocol/messages_segments.h"
#include "store/protocol/messages_tiers.h"

namespace mooncake::store::testing {
namespace {

using tier_calls::make_bytes;

constexpr uint64_t kMiB = 1 << 20;

class StageServiceTest : public ::testing::Test {
protected:
    void start(StageOptions options = {}) {
        ASSERT_TRUE(tier_.recover());
        auto made = StageService::create({.engine = engine_, .tier = tier_, .metrics = tier_metrics_, .reads = reads_, .segment = {1, 2}},
                                         options);
        ASSERT_TRUE(made) << made.error().to_string();
        service_ = std::move(*made);
        address_ = "127.0.0.1:" + std::to_string(service_->port());
    }
    void TearDown() override {
        client_->stop();
        if (service_) service_->stop();
        tier_.close();
        service_.reset();
    }
    StageReply ask(const std::vector<StageItem>& items, SegmentId segment = {1, 2}) {
        const auto body = client_->call(address_, rpc::Method::kNodeStage, encode_stage_request({.segment = segment, .items = items}),
                                        soon());
        EXPECT_TRUE(body) << (body ? "" : body.error().to_string());
        if (!body) return {};
        auto reply = decode_stage_reply(*body);
        EXPECT_TRUE(reply);
        EXPECT_EQ(reply->parts.size(), items.size());
        EXPECT_EQ(reply->engine, engine_->incarnation());
        return std::move(*reply);
    }
    void release(const std::vector<uint64_t>& leases) {
        EXPECT_TRUE(client_->call(address_, rpc::Method::kNodeRelease, encode_release_request({.leases = leases}), soon()));
    }
    /// As a reader elsewhere would.
    std::vector<std::byte> fetch(const StagedPart& part) {
        std::vector<std::byte> bytes(part.length);
        const Block block{.local = bytes.data(), .remote = part.address, .length = part.length};
        const auto moved = other_->transfer(engine_->segment_name(), Direction::kRead, {&block, 1}, soon());
        EXPECT_TRUE(moved) << (moved ? "" : moved.error().to_string());
        return bytes;
    }

    const std::shared_ptr<Engine> engine_ = make_engine(), other_ = make_engine();
    MemberMetrics metrics_{""};
    TierMetrics tier_metrics_{metrics_};
    ReadPressure reads_;
    MemoryTier tier_{std::make_shared<MemoryTier::Shelf>(), 512 * kMiB};
    std::unique_ptr<StageService> service_;
    std::unique_ptr<rpc::Client> client_ = rpc::Client::create({.hello = {.incarnation = Incarnation::random()}});
    std::string address_;
};

TEST_F(StageServiceTest, StagesValuesAndPartsOfThemWithTheirHashes) {
    start();
    const auto value = make_bytes(1, 200'000);
    ASSERT_EQ(tier_calls::put(tier_, "k", 5, value), Code::kOk);
    const StageReply reply = ask({{.tenant = "default", .key = "k", .generation = 5, .offset = 0, .length = 200'000},
                                  {.tenant = "default", .key = "k", .generation = 5, .offset = 65'536, .length = 65'536},
                                  {.tenant = "whoever", .key = "k", .generation = 5, .offset = 100, .length = 7},
                                  {.tenant = "default", .key = "k", .generation = 5, .offset = 0, .length = 0}});
    EXPECT_GE(reply.lease_time, 5s);
    EXPECT_EQ(fetch(reply.parts[0]), value);
    ASSERT_EQ(reply.parts[0].hash_count, 4u);
    for (size_t i = 0; i < 4; ++i) {
        const auto chunk = std::span(value).subspan(i * kChunkBytes, std::min<size_t>(kChunkBytes, value.size() - i * kChunkBytes));
        EXPECT_EQ(reply.hashes[reply.parts[0].first_hash + i], hash_bytes(chunk));
    }
    ASSERT_EQ(reply.parts[1].hash_count, 1u);
    EXPECT_EQ(reply.hashes[reply.parts[1].first_hash], hash_bytes(std::span(value).subspan(65'536, 65'536)));
    EXPECT_EQ(fetch(reply.parts[2]), std::vector<std::byte>(value.begin() + 100, value.begin() + 107));
    EXPECT_EQ(reply.parts[3].code, StoreCode::kOk);
    EXPECT_EQ(reply.parts[3].lease, 0u);
    EXPECT_EQ(service_->leases(), 3u);
    release({reply.parts[0].lease, reply.parts[1].lease, reply.parts[2].lease, 0, 12345});
    EXPECT_EQ(service_->leases(), 0u);
}

TEST_F(StageServiceTest, AnswersAMissForWhatIsNotThere) {
    start();
    ASSERT_EQ(tier_calls::put(tier_, "k", 5, make_bytes(1, 1000)), Code::kOk);
    const StageReply reply = ask({{.tenant = "default", .key = "k", .generation = 6, .length = 10},
                                  {.tenant = "default", .key = "other", .generation = 5, .length = 10},
                                  {.tenant = "default", .key = "k", .generation = 5, .offset = 990, .length = 11},
                                  {.tenant = "default", .key = "k", .generation = 5, .offset = ~uint64_t{0}, .length = 2},
                                  {.tenant = "default", .key = "k", .generation = 5, .offset = 2, .length = ~uint64_t{0}}});
    EXPECT_EQ(reply.parts[0].code, StoreCode::kObjectNotFound);
    EXPECT_EQ(reply.parts[1].code, StoreCode::kObjectNotFound);
    for (size_t i = 2; i < 5; ++i) EXPECT_EQ(reply.parts[i].code, StoreCode::kInvalidParams) << i;
    EXPECT_EQ(ask({{.tenant = "default", .key = "k", .generation = 5, .length = 10}}, {9, 9}).parts[0].code, StoreCode::kSegmentNotFound);
    EXPECT_EQ(service_->leases(), 0u);
}

TEST_F(StageServiceTest, ALongValueComesInPartsThatEndWithChunks) {
    start({.arena = {.bytes_max = kMiB, .slab_bytes = kMiB}});
    const auto value = make_bytes(1, 3'000'000);
    ASSERT_EQ(tier_calls::put(tier_, "k", 5, value), Code::kOk);
    std::vector<std::byte> got;
    for (int rounds = 0; got.size() < value.size() && rounds < 100; ++rounds) {
        const StageReply reply = ask(
            {{.tenant = "default", .key = "k", .generation = 5, .offset = got.size(), .length = value.size() - got.size()}});
        ASSERT_EQ(reply.parts[0].code, StoreCode::kOk);
        const auto part = fetch(reply.parts[0]);
        got.insert(got.end(), part.begin(), part.end());
        EXPECT_TRUE(got.size() == value.size() || got.size() % kChunkBytes == 0);
        release({reply.parts[0].lease});
    }
    EXPECT_EQ(got, value);
    EXPECT_LE(service_->staging_bytes(), kMiB);
}

TEST_F(StageServiceTest, WhoHoardsGetsNoMoreUntilItsLeasesAreOver) {
    start({.arena = {.bytes_max = kMiB, .slab_bytes = kMiB}, .lease = 300ms});
    ASSERT_EQ(tier_calls::put(tier_, "k", 5, make_bytes(1, 200'000)), Code::kOk);
    const StageItem item{.tenant = "default", .key = "k", .generation = 5, .length = 200'000};
    bool refused = false;
    for (int i = 0; i < 20 && !refused; ++i) refused = ask({item}).parts[0].code == StoreCode::kNoAvailableHandle;
    EXPECT_TRUE(refused);
    EXPECT_TRUE(eventually([&] { return ask({item}).parts[0].code == StoreCode::kOk; })) << "what is not given back runs out";
}

TEST_F(StageServiceTest, NobodyGivesBackWhatOthersGot) {
    start();
    ASSERT_EQ(tier_calls::put(tier_, "k", 5, make_bytes(1, 1000)), Code::kOk);
    const StageReply reply = ask({{.tenant = "default", .key = "k", .generation = 5, .length = 1000}});
    const auto stranger = rpc::Client::create({.hello = {.incarnation = Incarnation::random()}});
    EXPECT_TRUE(stranger->call(address_, rpc::Method::kNodeRelease, encode_release_request({.leases = {reply.parts[0].lease}}), soon()));
    EXPECT_EQ(service_->leases(), 1u);
    release({reply.parts[0].lease});
    EXPECT_EQ(service_->leases(), 0u);
    stranger->stop();
}

TEST_F(StageServiceTest, PeersMayReadTheStagingMemoryAndNotWriteIt) {
    start();
    const auto value = make_bytes(1, 1000);
    ASSERT_EQ(tier_calls::put(tier_, "k", 5, value), Code::kOk);
    const StageReply reply = ask({{.tenant = "default", .key = "k", .generation = 5, .length = 1000}});
    std::vector<std::byte> other(1000);
    const Block block{.local = other.data(), .remote = reply.parts[0].address, .length = 1000};
    EXPECT_FALSE(other_->transfer(engine_->segment_name(), Direction::kWrite, {&block, 1}, soon()));
    EXPECT_EQ(fetch(reply.parts[0]), value);
}

TEST_F(StageServiceTest, NonsenseCostsItsSenderAnError) {
    start();
    const std::vector<std::byte> nonsense(100, std::byte{0xab});
    EXPECT_FALSE(client_->call(address_, rpc::Method::kNodeStage, nonsense, soon()));
    EXPECT_FALSE(client_->call(address_, rpc::Method::kNodeRelease, nonsense, soon()));
    EXPECT_TRUE(ask({}).parts.empty());
}

TEST_F(StageServiceTest, ManyReadersAtOnce) {
    start({.arena = {.bytes_max = 4 * kMiB, .slab_bytes = kMiB}});
    std::vector<std::vector<std::byte>> values;
    for (uint64_t i = 0; i < 8; ++i) {
        values.push_back(make_bytes(i, 100'000));
        ASSERT_EQ(tier_calls::put(tier_, "k" + std::to_string(i), i + 1, values.back()), Code::kOk);
    }
    std::vector<std::jthread> threads;
    std::atomic<int> wrong{0};
    for (uint64_t i = 0; i < 8; ++i)
        threads.emplace_back([&, i] {
            const std::string key = "k" + std::to_string(i);
            for (int round = 0; round < 20; ++round) {
                const StageReply reply = ask({{.tenant = "default", .key = key, .generation = i + 1, .length = values[i].size()}});
                if (reply.parts[0].code == StoreCode::kNoAvailableHandle) continue;
                if (reply.parts[0].length == values[i].size() && fetch(reply.parts[0]) != values[i]) ++wrong;
                release({reply.parts[0].lease});
            }
        });
    threads.clear();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(service_->leases(), 0u);
}

TEST(StagingArena, GivesMemoryBackThatWasNotNeededForAWhile) {
    const auto engine = make_engine();
    StagingArena arena(engine, {.bytes_max = 4 * kMiB, .slab_bytes = 2 * kMiB, .idle = 1s});
    const Time now = Clock::now();
    const auto a = arena.take(kMiB), b = arena.take(kMiB), c = arena.take(kMiB);
    ASSERT_TRUE(a && b && c);
    EXPECT_EQ(arena.slab_bytes(), 4 * kMiB);
    EXPECT_FALSE(arena.take(2 * kMiB)) << "longer than the longest piece";
    arena.give_back(*c, now);
    arena.tidy(now + 500ms);
    EXPECT_EQ(arena.slab_bytes(), 4 * kMiB);
    arena.tidy(now + 2s);
    EXPECT_EQ(arena.slab_bytes(), 2 * kMiB);
    EXPECT_TRUE(arena.take(kMiB)) << "made anew";
    arena.close();
    EXPECT_FALSE(arena.take(1));
}

}  // namespace
}  // namespace mooncake::store::testing
