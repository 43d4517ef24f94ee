// SPDX-License-Identifier: Apache-2.0
#include "store/member/mover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

namespace mooncake::store {
namespace {

constexpr uint64_t kSmall = 4096, kLarge = 8 << 20;  // on the caller's thread, and by the engine's threads
constexpr std::byte kOurs{0x77}, kTheirs{0xee};

std::unique_ptr<Engine> make_engine(uint16_t port = 0) {
    EngineConfig config{.local_name = "127.0.0.1:" + std::to_string(port), .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
    config.options.transports = {"tcp"};
    config.options.legacy_port_binding = port != 0;
    auto engine = Engine::create(std::move(config));
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
    return engine ? std::move(*engine) : nullptr;
}

/// A node that restarts with the same name, the same port and memory at the same addresses.
class MoverTest : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_TRUE(node_->register_memory(far_.data(), far_.size())); }

    SegmentHandle segment(Incarnation life) const {
        SegmentRecord record{.number = 1, .spec = {.id = {1, 1}, .name = name_, .endpoint = name_, .protocol = "tcp"}};
        record.spec.base = reinterpret_cast<uint64_t>(far_.data());
        record.spec.size = far_.size();
        record.spec.incarnation = life;
        return std::make_shared<const SegmentRecord>(std::move(record));
    }
    Code move(Direction direction, const SegmentHandle& to, uint64_t length) {
        Move move{.segment = to, .bytes = length, .patience = 60s, .outcome = {}};
        move.blocks.push_back({.local = near_.data(), .remote = to->spec.base, .length = length});
        mover_.run(direction, {&move, 1});
        return move.outcome ? Code::kOk : move.outcome.error().code();
    }
    /// For a moment it is remembered that nobody was there.
    Code move_once_it_is_back(Direction direction, const SegmentHandle& to, uint64_t length) {
        Code code = move(direction, to, length);
        while (code == Code::kUnavailable) code = move(direction, to, length);
        return code;
    }
    void restart() {
        const uint16_t port = node_->rpc_port();
        node_.reset();
        std::fill(far_.begin(), far_.end(), kTheirs);
        node_ = make_engine(port);
        ASSERT_TRUE(node_);
        ASSERT_TRUE(node_->register_memory(far_.data(), far_.size()));
    }
    bool untouched() const {
        return std::all_of(far_.begin(), far_.end(), [](std::byte byte) { return byte == kTheirs; });
    }

    std::vector<std::byte> near_ = std::vector<std::byte>(kLarge, kOurs), far_ = std::vector<std::byte>(kLarge);
    std::unique_ptr<Engine> node_ = make_engine(), engine_ = make_engine();
    const std::string name_ = node_->segment_name();
    Mover mover_{*engine_, "another host"};
};

TEST_F(MoverTest, NothingIsWrittenIntoTheNextLifeOfANode) {
    for (const uint64_t length : {kSmall, kLarge}) {
        const SegmentHandle before = segment(node_->incarnation());
        ASSERT_EQ(move(Direction::kWrite, before, length), Code::kOk);
        restart();
        const SegmentHandle now = segment(node_->incarnation());
        EXPECT_EQ(move_once_it_is_back(Direction::kWrite, before, length), Code::kStale) << length;
        for (const uint64_t again : {kSmall, kLarge}) EXPECT_EQ(move(Direction::kWrite, before, again), Code::kStale) << "however often";
        EXPECT_TRUE(untouched());
        EXPECT_EQ(move(Direction::kWrite, now, length), Code::kOk) << "those who know the node's new life are not kept away";
        EXPECT_EQ(move(Direction::kWrite, before, length), Code::kStale) << "whoever else got there";
    }
}

TEST_F(MoverTest, NothingIsReadFromTheNextLifeOfANode) {
    for (const uint64_t length : {kSmall, kLarge}) {
        const SegmentHandle before = segment(node_->incarnation());
        ASSERT_EQ(move(Direction::kRead, before, length), Code::kOk);
        restart();
        std::fill(near_.begin(), near_.end(), kOurs);
        EXPECT_EQ(move_once_it_is_back(Direction::kRead, before, length), Code::kStale) << length;
        EXPECT_EQ(move(Direction::kRead, before, length), Code::kStale) << length;
        EXPECT_EQ(near_[0], kOurs);
        EXPECT_EQ(move(Direction::kRead, segment(node_->incarnation()), length), Code::kOk);
        EXPECT_EQ(near_[0], kTheirs);
    }
}

TEST_F(MoverTest, TheFirstMoveToANodesNewLifeSucceeds) {
    for (const uint64_t length : {kSmall, kLarge}) {
        ASSERT_EQ(move(Direction::kWrite, segment(node_->incarnation()), length), Code::kOk);
        restart();
        EXPECT_EQ(move_once_it_is_back(Direction::kWrite, segment(node_->incarnation()), length), Code::kOk) << length;
    }
}

TEST_F(MoverTest, ANodeThatDoesNotTellItsLifeIsNotAskedForIt) {
    for (const uint64_t length : {kSmall, kLarge}) EXPECT_EQ(move(Direction::kWrite, segment({}), length), Code::kOk);
    EXPECT_EQ(far_[0], kOurs);
}

}  // namespace
}  // namespace mooncake::store
