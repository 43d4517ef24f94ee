// SPDX-License-Identifier: Apache-2.0
// The list of a large pool's keys, read while others write.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <unordered_map>

#include "base/thread.h"
#include "net/http_client.h"
#include "store/admin/admin_views.h"
#include "store/admin/http_admin.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

namespace {

constexpr size_t kKeys = 300'000;
constexpr size_t kBatch = 500;
constexpr ClientId kWriter{2, 1};

class LargePoolTest : public testing::Test {
protected:
    LargePoolTest() {
        const SegmentSpec segment{
            .id = {3, 1}, .name = "node:1", .base = 1 << 20, .size = uint64_t{1} << 36, .endpoint = "e", .protocol = "tcp"};
        master_.run([&](Transaction& t, Time now) {
            remount(t, {.client = kWriter, .segments = {}}, now);
            return mount_segment(t, {.client = kWriter, .segment = segment}, now);
        });
    }

    /// As a client's batch would.
    void put(const std::string& prefix, size_t first, size_t count) {
        std::vector<std::string> keys;
        std::vector<PutItem> items;
        for (size_t i = first; i < first + count; ++i) keys.push_back(format_text("{}-{}", prefix, i));
        for (const std::string& key : keys) items.push_back({.key = key, .length = 64});
        const PutStartReply begun = master_.run(
            [&](Transaction& t, Time now) { return put_start(t, {.client = kWriter, .items = items}, now); });
        std::vector<PutEndItem> ends;
        for (size_t i = 0; i < count; ++i) {
            MC_CHECK(begun.items[i].code == StoreCode::kOk);
            ends.push_back({.key = keys[i], .generation = begun.items[i].generation});
        }
        master_.run([&](Transaction& t, Time now) { return put_end(t, {.client = kWriter, .items = ends}, now); });
    }
    void remove_one(const std::string& key) {
        const std::string_view view = key;
        master_.run([&](Transaction& t, Time now) { return remove(t, {.keys = {&view, 1}, .force = true}, now); });
    }

    LockedMaster master_{MasterOptions(), nullptr, nullptr};
    MasterMetrics metrics_;
    AdminService admin_{master_, metrics_, {.address = "127.0.0.1:1"}};
};

TEST_F(LargePoolTest, IsListedCompletelyAndOnceWhileOthersPutAndRemove) {
    for (size_t first = 0; first < kKeys; first += kBatch) put("old", first, kBatch);
    auto server = net::HttpServer::create({.host = "127.0.0.1"});
    ASSERT_TRUE(server);
    admin_.attach(**server);
    (*server)->start();

    std::atomic<bool> done{false};
    std::atomic<size_t> written{0};
    const std::jthread writer = start_thread("writer", [&] {
        for (size_t first = 0; !done; first += kBatch) {
            put("new", first, kBatch);
            if (first != 0) remove_one(format_text("new-{}", first - 1));  // so that new ones take the places of old ones
            written = first + kBatch;
        }
    });
    while (written == 0) std::this_thread::yield();
    const size_t before = written;
    const auto answer = net::http_request({.url = format_text("http://127.0.0.1:{}/get_all_keys", (*server)->port())},
                                          Deadline::after(60s));
    EXPECT_GT(written, before);  // nobody had to wait for the end of it
    done = true;
    ASSERT_TRUE(answer) << answer.error().to_string();

    std::unordered_map<std::string, int> seen;
    for (size_t begin = 0, end = 0; begin < answer->body.size(); begin = end + 1) {
        end = answer->body.find('\n', begin);
        ASSERT_NE(end, std::string::npos);
        ++seen[answer->body.substr(begin, end - begin)];
    }
    for (size_t i = 0; i < kKeys; ++i) ASSERT_EQ(seen[format_text("old-{}", i)], 1) << i;
}

TEST_F(LargePoolTest, IsWalkedInPiecesOfBoundedSizeAndEndsHoweverManyKeysCome) {
    put("old", 0, 10'000);
    auto walk = KeyWalk::begin(master_, std::nullopt);
    ASSERT_TRUE(walk);
    size_t pieces = 0, lines = 0, next = 0;
    for (std::string piece = walk->next_lines(); !piece.empty(); piece = walk->next_lines(), ++pieces) {
        EXPECT_LE(piece.size(), 64u * 1024 + 16);
        lines += static_cast<size_t>(std::count(piece.begin(), piece.end(), '\n'));
        put("new", next, 2000);
        next += 2000;
    }
    EXPECT_GE(lines, 10'000u);
    EXPECT_LT(pieces, 20u);
    EXPECT_EQ(walk->next_lines(), "");
}

TEST_F(LargePoolTest, IsWalkedInSmallPiecesWhenItsKeysAreLong) {
    const std::string prefix(10'000, 'k');
    put(prefix, 0, 100);
    auto walk = KeyWalk::begin(master_, "default");
    ASSERT_TRUE(walk);
    size_t lines = 0;
    for (std::string piece = walk->next_lines(); !piece.empty(); piece = walk->next_lines()) {
        EXPECT_LT(piece.size(), 64u * 1024 + 11'000);
        lines += static_cast<size_t>(std::count(piece.begin(), piece.end(), '\n'));
    }
    EXPECT_EQ(lines, 100u);
}

TEST(KeyWalk, KnowsWhichTenantsThereAre) {
    MasterOptions options;
    const LockedMaster without_tenants(options, nullptr, nullptr);
    EXPECT_TRUE(KeyWalk::begin(without_tenants, "anybody"));
    options.tenants = true;
    const LockedMaster with_tenants(options, nullptr, nullptr);
    const auto walk = KeyWalk::begin(with_tenants, "anybody");
    ASSERT_FALSE(walk);
    EXPECT_EQ(walk.error(), StoreCode::kTenantNotRegistered);
}

}  // namespace

}  // namespace mooncake::store
