// SPDX-License-Identifier: Apache-2.0
// Memory of a device through all of an engine. The device traps on any touch by CPU.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "device/testing/fake_device.h"
#include "engine/engine.h"

namespace mooncake {
namespace {

Deadline soon() { return Deadline::after(30s); }

/// Devices of one process that has a fake one.
struct WithFakeDevice {
    testing::FakeDevice* device = nullptr;
    std::unique_ptr<Devices> devices;

    WithFakeDevice() {
        auto made = std::make_unique<testing::FakeDevice>();
        device = made.get();
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::move(made));
        devices = std::make_unique<Devices>(std::move(others));
    }
};

class KindsEngineTest : public ::testing::Test {
protected:
    static constexpr size_t kBytes = 1 << 20, kBlock = 4096;

    void SetUp() override {
        ASSERT_TRUE(ours);
        ASSERT_TRUE(theirs);
        for (const auto& [engine, host, card] :
             {std::tuple(ours.get(), host_here.data(), card_here), {theirs.get(), host_there.data(), card_there}}) {
            ASSERT_TRUE(engine->register_memory(host, kBytes));
            ASSERT_TRUE(engine->register_memory(card, kBytes));
        }
    }
    std::unique_ptr<Engine> make_engine(EngineOptions options = {}) {
        auto engine =
            Engine::create({.local_name = "127.0.0.1", .protocol = "tcp", .options = std::move(options), .memory = fake.devices.get()});
        EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
        return engine ? std::move(*engine) : nullptr;
    }
    std::vector<std::byte> noise(size_t length, uint32_t seed) {
        std::mt19937 random(seed);
        std::vector<std::byte> bytes(length);
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        return bytes;
    }
    /// Of either kind.
    std::vector<std::byte> read(const std::byte* from, size_t length) { return fake.device->read(from, length); }

    /// Within our own segment: blocks from both kinds to both kinds.
    std::vector<Block> all_pairs(size_t each) {
        std::vector<Block> blocks;
        for (size_t i = 0; i < each; ++i) {
            size_t at = i * 4 * kBlock;
            for (std::byte* const from : {host_here.data(), card_here})
                for (std::byte* const to : {host_here.data(), card_here}) {
                    blocks.push_back({.local = from + at, .remote = reinterpret_cast<uint64_t>(to + kBytes / 2 + at), .length = kBlock});
                    at += kBlock;
                }
        }
        return blocks;
    }
    void fill(uint32_t seed) {
        const auto bytes = noise(kBytes, seed);
        std::copy(bytes.begin(), bytes.end(), host_here.begin());
        fake.device->write(card_here, noise(kBytes, seed + 1));
    }
    void expect_arrived(const std::vector<Block>& blocks) {
        for (size_t i = 0; i < blocks.size(); ++i)
            EXPECT_EQ(read(blocks[i].local, kBlock), read(reinterpret_cast<const std::byte*>(blocks[i].remote), kBlock)) << i;
    }

    WithFakeDevice fake;
    std::vector<std::byte> host_here = std::vector<std::byte>(kBytes), host_there = std::vector<std::byte>(kBytes);
    std::byte* const card_here = fake.device->allocate(kBytes);
    std::byte* const card_there = fake.device->allocate(kBytes);
    std::unique_ptr<Engine> ours = make_engine(), theirs = make_engine();
};

TEST_F(KindsEngineTest, ATransferMayMixAllPairs) {
    const auto blocks = all_pairs(16);
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        fill(direction == Direction::kWrite ? 1 : 5);
        EXPECT_EQ(ours->transfer(ours->segment_name(), direction, blocks, soon()).value(), blocks.size() * kBlock);
        expect_arrived(blocks);
    }
}

TEST_F(KindsEngineTest, ABatchMayMixAllPairs) {
    fill(1);
    const auto blocks = all_pairs(16);
    const BatchId batch = ours->allocate_batch(blocks.size()).value();
    std::vector<Request> requests;
    const SegmentId own = ours->open_segment(ours->segment_name(), soon()).value();
    for (const Block& block : blocks)
        requests.push_back(
            {.direction = Direction::kWrite, .local = block.local, .segment = own, .remote = block.remote, .length = block.length});
    ASSERT_TRUE(ours->submit(batch, requests));
    const auto status = ours->wait_batch(batch, soon()).value();
    EXPECT_EQ(status.state, TransferState::kCompleted) << status.error.to_string();
    EXPECT_EQ(status.bytes, blocks.size() * kBlock);
    expect_arrived(blocks);
    EXPECT_TRUE(ours->free_batch(batch));
}

TEST_F(KindsEngineTest, APlanMayMixAllPairsAndIsPostedAgainAndAgain) {
    const auto blocks = all_pairs(8);
    const auto plan = ours->prepare(ours->segment_name(), blocks).value();
    for (uint32_t round = 0; round < 4; ++round) {
        fill(10 * round);
        EXPECT_EQ(plan->run(Direction::kWrite).value(), blocks.size() * kBlock);
        expect_arrived(blocks);
        fill(10 * round + 5);
        const BatchId batch = plan->submit(Direction::kRead).value();
        const auto status = ours->wait_batch(batch, soon()).value();
        EXPECT_EQ(status.state, TransferState::kCompleted) << status.error.to_string();
        expect_arrived(blocks);
        EXPECT_TRUE(ours->free_batch(batch));
    }
}

TEST_F(KindsEngineTest, APlanSeesThatMemoryOfADeviceWasTakenBack) {
    const std::vector<Block> blocks = {{.local = card_here, .remote = reinterpret_cast<uint64_t>(host_here.data()), .length = kBlock}};
    const auto plan = ours->prepare(ours->segment_name(), blocks).value();
    ASSERT_TRUE(plan->run(Direction::kWrite));
    ASSERT_TRUE(ours->unregister_memory(card_here));
    EXPECT_FALSE(plan->run(Direction::kWrite)) << "nobody may touch it any more, least of all by CPU";
    ASSERT_TRUE(ours->register_memory(card_here, kBytes));
    EXPECT_TRUE(plan->run(Direction::kWrite));
}

TEST_F(KindsEngineTest, APeerTellsWhichOfItsMemoryIsNotTheHosts) {
    const std::vector<DeviceRange> told = {{reinterpret_cast<uint64_t>(card_there), kBytes, MemoryKind::kCuda, 0}};
    EXPECT_EQ(ours->describe(theirs->segment_name(), 0, soon())->device_memory, told);
    EXPECT_EQ(ours->describe(theirs->segment_name(), 1000, soon())->device_memory, told);
    ASSERT_TRUE(theirs->unregister_memory(card_there));
    EXPECT_TRUE(ours->describe(theirs->segment_name(), 0, soon())->device_memory.empty());
    EXPECT_TRUE(ours->describe(theirs->segment_name(), 1000, soon())->device_memory.empty());
}

TEST_F(KindsEngineTest, MemoryOfOurDeviceGoesToHostMemoryOfAnotherEngine) {
    fill(1);
    std::vector<Block> blocks;
    for (size_t i = 0; i < 16; ++i)
        blocks.push_back({.local = (i % 2 == 0 ? card_here : host_here.data()) + i * kBlock,
                          .remote = reinterpret_cast<uint64_t>(host_there.data() + i * kBlock),
                          .length = kBlock});
    EXPECT_EQ(ours->transfer(theirs->segment_name(), Direction::kWrite, blocks, soon()).value(), 16 * kBlock);
    expect_arrived(blocks);
}

TEST_F(KindsEngineTest, MemoryOfDevicesGoesToThatOfAnotherEngine) {
    fill(1);
    std::vector<Block> blocks;
    for (size_t i = 0; i < 16; ++i)
        blocks.push_back({.local = (i % 2 == 0 ? card_here : host_here.data()) + i * kBlock,
                          .remote = reinterpret_cast<uint64_t>((i % 3 == 0 ? host_there.data() : card_there) + i * kBlock),
                          .length = kBlock});
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        EXPECT_EQ(ours->transfer(theirs->segment_name(), direction, blocks, soon()).value(), 16 * kBlock);
        expect_arrived(blocks);
        fill(7);
    }
}

TEST_F(KindsEngineTest, APairThatNothingCarriesIsRefusedAndTheRestGoesOn) {
    EngineOptions only_shm;
    only_shm.transports = {"shm"};
    ours = make_engine(only_shm);  // and nobody shares memory of this device
    ASSERT_TRUE(ours);
    ASSERT_TRUE(ours->register_memory(host_here.data(), kBytes));
    ASSERT_TRUE(ours->register_memory(card_here, kBytes));
    fill(1);
    const Block good{.local = host_here.data(), .remote = reinterpret_cast<uint64_t>(host_there.data()), .length = kBlock};
    const Block bad{.local = card_here, .remote = reinterpret_cast<uint64_t>(card_there), .length = kBlock};
    const std::string& name = theirs->segment_name();
    ASSERT_TRUE(ours->transfer(name, Direction::kWrite, {&good, 1}, soon()));
    const auto refused = ours->transfer(name, Direction::kWrite, {&bad, 1}, soon());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kNotSupported) << refused.error().to_string();
    EXPECT_TRUE(ours->transfer(name, Direction::kWrite, {&good, 1}, soon()));
    expect_arrived({good});
}

}  // namespace
}  // namespace mooncake
