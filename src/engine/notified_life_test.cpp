// SPDX-License-Identifier: Apache-2.0
// A notification that follows bytes is for the life of the peer that has them.
#include <gtest/gtest.h>

#include <thread>

#include "device/testing/fake_device.h"
#include "engine/engine.h"
#include "engine/messages.h"
#include "rpc/rpc.h"

namespace mooncake {
namespace {

Deadline soon() { return Deadline::after(60s); }

class NotifiedLifeTest : public ::testing::Test {
protected:
    std::unique_ptr<Engine> make_engine(uint16_t port = 0) {
        EngineConfig config{
            .local_name = "127.0.0.1:" + std::to_string(port), .metadata = "P2PHANDSHAKE", .protocol = "tcp", .memory = devices.get()};
        config.options.transports = {"tcp"};
        config.options.legacy_port_binding = port != 0;
        auto engine = Engine::create(std::move(config));
        EXPECT_TRUE(engine) << (engine ? "" : engine.error().to_string());
        return engine ? std::move(*engine) : nullptr;
    }
    void SetUp() override {
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::make_unique<testing::FakeDevice>());
        device = static_cast<testing::FakeDevice*>(others.front().get());
        devices = std::make_unique<Devices>(std::move(others));
        card = device->allocate(kBytes);
        for (auto* const engine : {&ours, &theirs, &third}) ASSERT_TRUE(*engine = make_engine());
        name = theirs->segment_name();
        ASSERT_TRUE(ours->register_memory(local.data(), kBytes));
        ASSERT_TRUE(ours->register_memory(card, kBytes));
        ASSERT_TRUE(theirs->register_memory(far.data(), kBytes));
        ASSERT_TRUE(third->register_memory(elsewhere.data(), kBytes));
    }
    void TearDown() override {
        device->resume();
        for (auto* const engine : {&ours, &theirs, &third}) engine->reset();
        device->free(card);
    }
    /// The same name, another life.
    void restart() {
        const uint16_t port = theirs->rpc_port();
        theirs.reset();
        ASSERT_TRUE(theirs = make_engine(port));
        ASSERT_TRUE(theirs->register_memory(far.data(), kBytes));
    }
    Request write(std::byte* from, const std::string& to, std::vector<std::byte>& at, uint64_t length) {
        return {.direction = Direction::kWrite,
                .local = from,
                .segment = ours->open_segment(to, soon()).value(),
                .remote = reinterpret_cast<uint64_t>(at.data()),
                .length = length};
    }

    static constexpr size_t kBytes = 4096;
    testing::FakeDevice* device = nullptr;
    std::unique_ptr<Devices> devices;
    std::byte* card = nullptr;
    std::vector<std::byte> local = std::vector<std::byte>(kBytes), far = local, elsewhere = local;
    std::unique_ptr<Engine> ours, theirs, third;
    std::string name;
};

TEST_F(NotifiedLifeTest, TheNextLifeIsNotToldOfBytesThatItNeverGot) {
    const std::vector<Request> requests = {write(local.data(), name, far, kBytes), write(card, third->segment_name(), elsewhere, kBytes)};
    const BatchId batch = ours->allocate_batch(2).value();
    const Notification notification{.name = "bytes", .message = "are there"}, later{.name = "later", .message = "to whoever lives"};
    device->hold();
    ASSERT_TRUE(ours->submit(batch, requests, &notification));
    const auto over = [&] { return ours->task_status(batch, 0).value().state == TransferState::kCompleted && device->held() > 0; };
    for (const Deadline patience = soon(); !over() && !patience.passed();) std::this_thread::yield();
    ASSERT_TRUE(over());
    restart();
    device->resume();
    ASSERT_EQ(ours->wait_batch(batch, soon()).value().state, TransferState::kCompleted);
    // Those of one peer are sent in order: when a later one has come, the first has had its turn.
    std::vector<Notification> taken;
    for (const Deadline patience = soon(); taken.empty() && !patience.passed();) {
        const Request nothing = write(local.data(), name, far, 0);
        const BatchId next = ours->allocate_batch(1).value();
        ASSERT_TRUE(ours->submit(next, {&nothing, 1}, &later));
        ASSERT_EQ(ours->wait_batch(next, soon()).value().state, TransferState::kCompleted);
        // It may be lost with the connection of the former life.
        for (const Deadline a_while = Deadline::after(1s); taken.empty() && !a_while.passed(); std::this_thread::yield())
            taken = theirs->take_notifications();
    }
    ASSERT_FALSE(taken.empty());
    for (const Notification& one : taken) EXPECT_EQ(one.name, later.name);
}

TEST_F(NotifiedLifeTest, AnEngineTakesWhatIsForItOrForWhoeverIsThere) {
    const auto client = rpc::Client::create({});
    const Incarnation life = ours->describe(name, 0, soon()).value().incarnation;
    const Notification notification{.name = "n", .message = "m"};
    const auto send = [&](Incarnation target) {
        return client->call(name, rpc::Method::kNotify, encode_notification(notification, target), soon());
    };
    ASSERT_TRUE(send(life));
    ASSERT_TRUE(send({}));
    const auto refused = send(Incarnation{life.value + 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kStale);
    EXPECT_EQ(theirs->take_notifications().size(), 2u);
}

TEST_F(NotifiedLifeTest, OneThatFollowsATransferAtOnceArrives) {
    const Block block{.local = local.data(), .remote = reinterpret_cast<uint64_t>(far.data()), .length = kBytes};
    const Notification notification{.name = "n", .message = "m"};
    ASSERT_TRUE(ours->transfer(name, Direction::kWrite, {&block, 1}, soon(), &notification));
    const Incarnation life = ours->describe(name, 0, soon()).value().incarnation;
    ASSERT_TRUE(ours->transfer(name, Direction::kWrite, {&block, 1}, soon(), &notification, life));
    ASSERT_TRUE(ours->transfer(name, Direction::kWrite, {}, soon(), &notification));
    EXPECT_EQ(theirs->take_notifications().size(), 3u);
}

}  // namespace
}  // namespace mooncake
