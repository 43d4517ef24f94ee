// SPDX-License-Identifier: Apache-2.0
// A late witness: what a node told was believed, and copied, before anybody said that the node was behind.
#include "store/service/remounting.h"

#include "store/master/ops/task_ops.h"
#include "store/master/testing/pool_segments.h"
#include "store/service/event_hub.h"

namespace mooncake::store {
namespace {

constexpr HistoryPoint kThen{500, 5}, kLater{500, 9};

class Remounting : public PoolSegmentsTest {
protected:
    Remounting() { options_.first_generation = 1000; }

    RemountReply::Segment report(uint64_t number, const std::vector<HeldObject>& objects) {
        const HeldSegment held{.segment = spec(number, kPool), .objects = objects, .exact = true};
        auto t = transaction();
        return remount_member(hub_, t, {.client = node(number), .segments = {&held, 1}, .heard = kThen}, now_).segments[0];
    }
    void witness(uint64_t number) {
        const Behind behind{.client = node(number), .since = kLater};
        auto t = transaction();
        remount_member(hub_, t, {.client = kOther, .behind = {&behind, 1}, .heard = kLater}, now_);
    }
    void carry(std::string_view key, uint64_t from, uint64_t to, TaskType type) {
        const std::string source = spec(from, kPool).name;
        auto t = transaction();
        const TaskReply reply = create_task(t,
                                            {.type = type,
                                             .key = key,
                                             .source = type == TaskType::kMove ? std::string_view(source) : std::string_view(),
                                             .targets = {spec(to, kPool).name}},
                                            now_);
        ASSERT_EQ(reply.code, StoreCode::kOk);
        run_jobs(t, now_);
        ASSERT_EQ(end_task(t, {.client = node(from), .task = reply.task, .code = StoreCode::kOk, .message = {}}, now_), StoreCode::kOk);
        ASSERT_LT(object(key).replicas.find(state().segments().find(spec(to, kPool).id)), object(key).replicas.size());
    }
    void end_node(uint64_t number) {
        auto t = transaction();
        end_client(t, state().clients().find(node(number)), ClientEnd::kSilent, now_);
    }
    HeldObject copy_of(std::string_view key) {
        HeldObject result = held(key, object(key).replicas[0].offset, object(key).generation);
        return result;
    }

    EventHub hub_{{.life = 1000}};
};

TEST_F(Remounting, CopiesOfWhatOnlyThatNodeToldGoWithIt) {
    ASSERT_EQ(report(1, {held("secret", 0, 5), held("kept", 4096, 6)}).adopted, 2u);
    add_node(2);
    carry("secret", 1, 2, TaskType::kCopy);
    ASSERT_EQ(put("ours"), StoreCode::kOk);
    witness(1);
    EXPECT_FALSE(holds("secret"));
    EXPECT_FALSE(holds("kept"));
    EXPECT_TRUE(holds("ours"));
}

TEST_F(Remounting, SoDoesWhatWasMoved) {
    ASSERT_EQ(report(1, {held("secret", 0, 5)}).adopted, 1u);
    add_node(2);
    add_node(3);
    carry("secret", 1, 2, TaskType::kMove);
    carry("secret", 2, 3, TaskType::kMove);
    witness(1);
    EXPECT_FALSE(holds("secret"));
}

TEST_F(Remounting, AlsoIfTheNodeHasGoneMeanwhile) {
    ASSERT_EQ(report(1, {held("secret", 0, 5)}).adopted, 1u);
    add_node(2);
    carry("secret", 1, 2, TaskType::kCopy);
    end_node(1);
    ASSERT_TRUE(holds("secret"));
    witness(1);
    EXPECT_FALSE(holds("secret"));
}

TEST_F(Remounting, WhatAnotherNodeToldByItselfStays) {
    ASSERT_EQ(report(1, {held("early", 0, 5), held("late", 4096, 6)}).adopted, 2u);
    ASSERT_EQ(report(2, {held("early", 0, 5)}).adopted, 1u);
    add_node(3);
    carry("early", 1, 3, TaskType::kCopy);
    carry("late", 1, 3, TaskType::kCopy);
    ASSERT_EQ(report(4, {held("late", 0, 6)}).adopted, 1u);
    witness(1);
    EXPECT_EQ(object("early").replicas.size(), 2u);
    EXPECT_EQ(object("late").replicas.size(), 2u);
    witness(2);
    EXPECT_FALSE(holds("early")) << "nobody is left who is believed";
    EXPECT_TRUE(holds("late"));
}

TEST_F(Remounting, ANodeThatHasItFromACopyDoesNotTellItByItself) {
    ASSERT_EQ(report(1, {held("secret", 0, 5)}).adopted, 1u);
    add_node(2);
    carry("secret", 1, 2, TaskType::kMove);
    const HeldObject copy = copy_of("secret");
    end_node(2);
    ASSERT_FALSE(holds("secret"));
    ASSERT_EQ(report(2, {copy}).adopted, 1u) << "as far as anybody knows";
    witness(1);
    EXPECT_FALSE(holds("secret"));
    EXPECT_EQ(state().segments().numbers().size(), 1u) << "its memory stays";
}

TEST_F(Remounting, NorDoesOneThatWasAwayWhenTheWitnessCame) {
    ASSERT_EQ(report(1, {held("secret", 0, 5)}).adopted, 1u);
    add_node(2);
    carry("secret", 1, 2, TaskType::kMove);
    const HeldObject copy = copy_of("secret");
    end_node(2);
    witness(1);
    EXPECT_EQ(report(2, {copy}).stale, 1u);
    EXPECT_EQ(report(3, {held("secret", 0, 5)}).adopted, 1u) << "this one is believed";
}

TEST_F(Remounting, WhatWasWrittenSinceIsNobodysWord) {
    ASSERT_EQ(report(1, {held("price", 0, 5)}).adopted, 1u);
    add_node(2);
    carry("price", 1, 2, TaskType::kMove);
    ASSERT_EQ(upsert("price", kKiB, {.preferred_segments = {spec(2, kPool).name}}).code, StoreCode::kOk);
    ASSERT_EQ(end("price"), StoreCode::kOk);
    EXPECT_EQ(state().tellers().size(), 0u);
    witness(1);
    EXPECT_TRUE(holds("price"));
}

TEST_F(Remounting, AWordThatTheMasterBetweenWasNotToldComesTooLate) {
    const std::vector<HeldObject> objects{held("secret", 0, 5)};
    const HeldSegment told{.segment = spec(1, kPool), .objects = objects, .exact = true};
    {
        auto t = transaction();
        remount_member(hub_, t, {.client = node(1), .segments = {&told, 1}, .heard = {600, 1}}, now_);
    }
    witness(1);
    EXPECT_TRUE(holds("secret")) << "that one has believed it, and the node has heard everything since";
}

TEST_F(Remounting, AGroupGoesAsAWhole) {
    HeldObject a = held("a", 0, 5), b = held("b", 0, 6);
    a.group = b.group = "g";
    ASSERT_EQ(report(1, {a}).adopted, 1u);
    ASSERT_EQ(report(2, {b}).adopted, 1u);
    add_node(3);
    carry("a", 1, 3, TaskType::kCopy);
    witness(1);
    EXPECT_FALSE(holds("a"));
    EXPECT_FALSE(holds("b"));
}

}  // namespace
}  // namespace mooncake::store
