// SPDX-License-Identifier: Apache-2.0
// Patterns that take their time, and keys as long as they may be: who waits for them, and what they must not do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>

#include "store/service/master_server.h"
#include "store/service/testing/served_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;
using ::testing::ElementsAre;

constexpr ClientId kNode{1, 1}, kOther{2, 2};
/// As costly as patterns may be: a key of 64 KiB takes some tenths of a second.
constexpr std::string_view kSlow = "[a-q][^u-z]{499}x";

class LongPatterns : public ::testing::Test {
protected:
    LongPatterns() {
        server_->start();
        caller_.emplace(format_text("127.0.0.1:{}", server_->port()));
        caller_->join(kNode, 1);
    }
    static std::vector<std::string> long_keys(int count) {
        std::vector<std::string> keys;
        std::minstd_rand random(1);  // where every byte may begin a match or not, there is no short cut
        for (int i = 0; i < count; ++i) {
            std::string& key = keys.emplace_back(format_text("{:06}", i));
            while (key.size() < kKeyBytesMax) key += random() % 2 == 0 ? 'a' : 'r';
        }
        return keys;
    }
    std::future<Result<int64_t>> remove_matching(std::string_view pattern, Deadline deadline) {
        return std::async(std::launch::async, [this, pattern, deadline]() -> Result<int64_t> {
            const auto rpc = rpc::Client::create({});
            MC_ASSIGN_OR_RETURN(const rpc::Bytes reply, rpc->call(caller_->address(), rpc::Method::kStoreRemoveMatching,
                                                                  encode_remove_matching_request({}, pattern, true), deadline));
            return decode_remove_matching_reply(reply);
        });
    }
    bool keeps_a_pattern() {
        return server_->master().look([](const MasterState& state, Time) { return state.tombstones().has_patterns(); });
    }

    std::unique_ptr<MasterServer> server_ = MasterServer::create({.core = {.client_ttl = 1h}, .threads = 2}).value();
    std::optional<Caller> caller_;
};

TEST_F(LongPatterns, AreRefusedWhenTheyAreTooCostly) {
    constexpr auto kRefused = static_cast<int64_t>(StoreCode::kInvalidParams);
    EXPECT_EQ(caller_->remove_matching("[a-q][^u-z]{999}x", true), kRefused);
    EXPECT_EQ(caller_->remove_matching("\\p{L}{20}", true), kRefused);
    for (const char* good : {".*_rank_[0-3]_.*", "^[0-9a-f]{64}@\\d+$", ".{255}"})
        EXPECT_EQ(caller_->remove_matching(good, true), 0) << good;
    EXPECT_EQ(caller_->remove_matching(kSlow, true), 0);
}

TEST_F(LongPatterns, EndWithTheMaster) {
    caller_->put(kNode, long_keys(200));
    auto removal = remove_matching(kSlow, Deadline::never());
    ASSERT_TRUE(eventually([&] { return keeps_a_pattern(); })) << "it has begun";
    server_->stop();
    EXPECT_FALSE(removal.get()) << "nobody waited until all keys were tried";
}

TEST_F(LongPatterns, DoNotCarryOutLaterWhatWasAnsweredAsTooLate) {
    caller_->put(kNode, long_keys(8));
    caller_->put(kNode, {"old"});
    auto slow = remove_matching(kSlow, Deadline::never());
    ASSERT_TRUE(eventually([&] { return keeps_a_pattern(); }));
    const auto late = remove_matching("", Deadline::after(50ms)).get();
    ASSERT_FALSE(late) << "it waits for the one before it";
    EXPECT_EQ(late.error().code(), Code::kTimedOut);
    caller_->put(kNode, {"new"});
    const auto first = slow.get();
    ASSERT_TRUE(first) << first.error().to_string();
    EXPECT_EQ(*first, 0);
    EXPECT_EQ(caller_->remove_matching("^nothing$", true), 0) << "comes after it";
    EXPECT_THAT(caller_->exist({"old", "new"}).results, ElementsAre(1, 1));
}

TEST_F(LongPatterns, KeepNobodyWaitingWhileANodeReports) {
    EXPECT_EQ(caller_->remove_matching(kSlow, true), 0);
    ASSERT_TRUE(keeps_a_pattern());
    const std::vector<std::string> keys = long_keys(8);
    std::vector<HeldObject> objects;
    for (size_t i = 0; i < keys.size(); ++i) objects.push_back({.key = keys[i], .offset = i * 4096, .length = 100, .generation = i + 1});
    const HeldSegment held{.segment = Caller::segment(2), .objects = objects, .exact = true};
    std::atomic<bool> reported{false};
    auto report = std::async(std::launch::async, [&] {
        Caller node(caller_->address());
        const RemountReply reply = node.remount({.client = kOther, .segments = {&held, 1}});
        reported = true;
        return reply.segments.at(0).adopted;
    });
    int answers = 0;
    for (; !reported; ++answers) ASSERT_EQ(caller_->exist({"nothing"}).results.at(0), 0);
    EXPECT_GT(answers, 20) << "all others waited for the patterns";
    EXPECT_EQ(report.get(), keys.size());
}

TEST_F(LongPatterns, OfKeysThatAreTooLongNothingIsKnown) {
    const std::string key(kKeyBytesMax + 1, 'k');
    EXPECT_EQ(caller_->put_start(kNode, {key}).items.at(0).code, StoreCode::kInvalidParams);
    EXPECT_THAT(caller_->put_end(kNode, {key}).codes, ElementsAre(StoreCode::kInvalidParams));
    EXPECT_THAT(caller_->exist({key, "nothing"}).results, ElementsAre(static_cast<int32_t>(StoreCode::kInvalidParams), 0));
    EXPECT_EQ(caller_->get({key}).items.at(0).code, StoreCode::kInvalidParams);
    EXPECT_THAT(caller_->remove({key}, true).codes, ElementsAre(StoreCode::kInvalidParams));
    const HeldObject object{.key = key, .length = 100, .generation = 1};
    const HeldSegment held{.segment = Caller::segment(2), .objects = {&object, 1}};
    EXPECT_EQ(caller_->remount({.client = kOther, .segments = {&held, 1}}).segments.at(0).refused, 1u);
}

/// More than a stream may have waiting, and more than an update may have.
TEST_F(LongPatterns, OfManyLongKeysANodeIsToldAll) {
    constexpr int kKeys = 1200, kAtOnce = 40;
    for (int from = 0; from < kKeys; from += kAtOnce) {
        std::vector<std::string> keys;
        for (int i = from; i < from + kAtOnce; ++i) keys.push_back(format_text("{:0>65536}", i));
        caller_->put(kNode, keys);
    }
    Following node(caller_->address(), kNode);
    ASSERT_TRUE(node.wait_complete()) << (node.end() ? node.end()->to_string() : "");
    size_t told = 0;
    for (const EventUpdate& update : node.updates()) told += update.filled.size();
    EXPECT_EQ(told, static_cast<size_t>(kKeys));
}

}  // namespace
}  // namespace mooncake::store
