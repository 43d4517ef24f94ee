// SPDX-License-Identifier: Apache-2.0
#include "engine/pairs.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "engine/batch.h"
#include "engine/testing/fake_world.h"

namespace mooncake {
namespace {

using testing::FakeScript;
using testing::FakeTransport;
using testing::FakeWorld;

constexpr MemoryKind kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda, kAscend = MemoryKind::kAscend;
constexpr KindPair kHostToHost{}, kHostToCuda{kHost, kCuda}, kCudaToHost{kCuda, kHost}, kCudaToCuda{kCuda, kCuda};

TEST(PeerMemory, KnowsTheKindOfEveryByteAndHowFarItGoes) {
    PeerMemory memory;
    EXPECT_TRUE(memory.empty());
    memory.replace({{100, 50, kCuda, 0}, {150, 50, kAscend, 1}, {300, 10, kCuda, 0}});
    EXPECT_FALSE(memory.empty());
    const PeerMemory::Reading reading(memory);
    const auto expect = [&](uint64_t address, uint64_t length, MemoryKind kind, uint64_t run) {
        const auto found = reading.at(address, length);
        EXPECT_EQ(found.kind, kind) << address;
        EXPECT_EQ(found.length, run) << address;
    };
    expect(0, 10, kHost, 10);
    expect(0, 1000, kHost, 100);
    expect(100, 1000, kCuda, 50);
    expect(149, 1, kCuda, 1);
    expect(150, 1000, kAscend, 50);
    expect(200, 1000, kHost, 100);
    expect(309, 5, kCuda, 1);
    expect(310, UINT64_MAX - 310, kHost, UINT64_MAX - 310);
    memory.replace({});
    expect(100, 10, kCuda, 10);  // who reads keeps what it began with
    EXPECT_EQ(PeerMemory::Reading(memory).at(100, 10).kind, kHost);
}

TEST(PeerMemory, IsReadWhileItIsRenewed) {
    PeerMemory memory;
    std::atomic<bool> stop{false};
    std::vector<std::jthread> readers;
    for (int i = 0; i < 3; ++i)
        readers.emplace_back([&] {
            while (!stop) {
                const PeerMemory::Reading reading(memory);
                const auto run = reading.at(1000, 8);
                EXPECT_EQ(run.length, 8u);
                EXPECT_EQ(reading.at(1000, 8).kind, run.kind);
            }
        });
    for (int round = 0; round < 2000; ++round)
        memory.replace(round % 2 == 0 ? PeerMemory::Ranges{{1000, 100, kCuda, 0}} : PeerMemory::Ranges{});
    stop = true;
}

/// A peer that is reached over "fake", which carries host memory, and over "device" and "any", which carry that of a device as well. Half
/// of both sides' memory stands for that of a device.
class PairsTest : public ::testing::Test {
protected:
    static constexpr size_t kHalf = 1 << 16;

    void SetUp() override {
        ASSERT_TRUE(world.registry->add({.address = local.data(), .length = kHalf}));
        ASSERT_TRUE(world.registry->add({.address = local.data() + kHalf, .length = kHalf, .kind = kCuda}));
        peer_has_device_memory(true);
        for (size_t i = 0; i < local.size(); ++i) local[i] = static_cast<std::byte>(i * 13 + 1);
    }
    void peer_has_device_memory(bool has) {
        Lock lock(world.mutex);
        world.device_memory.clear();
        if (has) world.device_memory = {{address(kHalf), kHalf, kCuda, 0}};
    }
    std::vector<std::unique_ptr<Transport>> transports() {
        std::vector<std::unique_ptr<Transport>> made;
        made.push_back(
            std::make_unique<FakeTransport>(device, "device", Reach::kNetwork, 1, KindPairs{kHostToCuda, kCudaToHost, kCudaToCuda}));
        made.push_back(std::make_unique<FakeTransport>(any, "any", Reach::kNetwork, 2, KindPairs{kHostToCuda, kCudaToHost, kCudaToCuda}));
        return made;
    }
    uint64_t address(size_t offset) { return reinterpret_cast<uint64_t>(remote.data() + offset); }
    /// `index`: one of many, 64 bytes each.
    Block block(KindPair pair, size_t index, uint64_t length = 64) {
        return {.local = local.data() + (pair.local == kHost ? 0 : kHalf) + index * 64,
                .remote = address((pair.remote == kHost ? 0 : kHalf) + index * 64),
                .length = length};
    }
    std::vector<Block> one_of_each() {
        return {block(kHostToHost, 0), block(kCudaToHost, 1), block(kHostToCuda, 2), block(kCudaToCuda, 3)};
    }
    bool arrived(const Block& moved) { return std::memcmp(moved.local, reinterpret_cast<const void*>(moved.remote), moved.length) == 0; }
    void expect_arrived(const std::vector<Block>& blocks) {
        for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(arrived(blocks[i])) << i;
    }
    Result<uint64_t> write(const std::vector<Block>& blocks, Deadline deadline = Deadline::after(10s)) {
        Completion completion;
        std::vector<Slice> slices;
        world.registry->resolve(blocks, &completion, slices);
        Incarnation life;
        const auto section = world.sessions->section();
        return run_transfer(world.core, world.session("peer"), life, Direction::kWrite, slices, completion, deadline, Clock::now());
    }
    /// One task for each block.
    void submit(const std::vector<Block>& blocks, Duration time = 10s) {
        std::vector<Request> requests;
        for (const Block& one : blocks)
            requests.push_back({.direction = Direction::kWrite,
                                .local = one.local,
                                .segment = world.id("peer"),
                                .remote = one.remote,
                                .length = one.length});
        ASSERT_TRUE(batch->submit(requests, nullptr, [time](uint64_t) { return Deadline::after(time); }));
    }
    /// One task for all of them.
    void submit_as_one(const std::vector<Block>& blocks, Duration time = 10s) {
        ASSERT_TRUE(batch->submit(*world.sessions->get("peer"), {}, Direction::kWrite, blocks, nullptr, Deadline::after(time)));
    }
    TransferState state(size_t task) { return batch->task_status(task).value().state; }
    static void wait_for(const std::atomic<int>& count, int value) {
        const Deadline limit = Deadline::after(60s);
        while (count < value && !limit.passed()) std::this_thread::yield();
        ASSERT_GE(count, value);
    }
    /// Until a transport has slices that wait for release().
    static void wait_held(FakeScript& script, size_t slices) {
        const Deadline limit = Deadline::after(60s);
        for (size_t held = 0; held < slices && !limit.passed(); std::this_thread::yield()) {
            Lock lock(script.mutex);
            held = script.held.size();
        }
    }
    /// As long as its owner has registered no device memory with us, a transport that takes it for host memory is told that it is not.
    void refuse_device_memory(FakeScript& script) {
        script.on_slice = [this](const Slice& slice) -> Result<> {
            if (slice.remote >= address(kHalf)) return fail(Code::kNotSupported, "memory of a device begins there");
            return {};
        };
    }

    std::vector<std::byte> local = std::vector<std::byte>(2 * kHalf), remote = std::vector<std::byte>(2 * kHalf);
    FakeScript device, any;
    FakeWorld world{{}, transports()};
    std::shared_ptr<Batch> batch = std::make_shared<Batch>(world.core, 4096);
};

// ---- on the caller's thread

TEST_F(PairsTest, EveryPairGoesOverTheNearestTransportThatCarriesIt) {
    const auto blocks = one_of_each();
    std::atomic<int> host_slices{0}, device_slices{0};
    world.script.on_slice = [&](const Slice&) {
        ++host_slices;
        return Result<>();
    };
    device.on_slice = [&](const Slice&) {
        ++device_slices;
        return Result<>();
    };
    EXPECT_EQ(write(blocks).value(), 4u * 64);
    expect_arrived(blocks);
    EXPECT_EQ(host_slices, 1);
    EXPECT_EQ(device_slices, 3);
    EXPECT_EQ(any.connects, 0) << "nobody needs it";
    EXPECT_EQ(write(blocks).value(), 4u * 64);
    EXPECT_EQ(world.script.connects, 1);
    EXPECT_EQ(device.connects, 1) << "kept for the next";
}

TEST_F(PairsTest, BytesOfOnePairGoAsTheyAre) {
    const std::vector<Block> blocks = {block(kCudaToCuda, 0), block(kCudaToCuda, 2)};
    EXPECT_EQ(write(blocks).value(), 128u);
    expect_arrived(blocks);
    EXPECT_EQ(device.submits, 1);
    EXPECT_EQ(world.script.submits, 0);
    const std::string text = world.metrics.to_prometheus_text();
    EXPECT_NE(text.find("mooncake_transfer_bytes_total{direction=\"write\",path=\"device\"} 128"), std::string::npos) << text;
}

TEST_F(PairsTest, ASliceIsCutWhereThePeersMemoryChangesItsKind) {
    std::vector<Block> blocks = {{.local = local.data(), .remote = address(kHalf - 64), .length = 128}};
    EXPECT_EQ(write(blocks).value(), 128u);
    expect_arrived(blocks);
    EXPECT_EQ(world.script.submits, 1);
    EXPECT_EQ(device.submits, 1);
}

TEST_F(PairsTest, MemoryThatThePeerRegisteredLaterIsFoundByAskingAgainOnce) {
    peer_has_device_memory(false);
    refuse_device_memory(world.script);
    const std::vector<Block> blocks = {block(kHostToHost, 0), block(kHostToCuda, 1), block(kHostToCuda, 3)};
    ASSERT_TRUE(write({block(kHostToHost, 0)}));
    peer_has_device_memory(true);
    const int fetched = world.fetches;
    EXPECT_EQ(write(blocks).value(), 3u * 64);
    expect_arrived(blocks);
    EXPECT_EQ(world.fetches, fetched + 2) << "one to ask what memory it has, one to connect";
    const int submits = world.script.submits;
    EXPECT_EQ(write(blocks).value(), 3u * 64);
    EXPECT_EQ(world.script.submits, submits + 1) << "known now: nothing is refused any more";
    EXPECT_EQ(world.fetches, fetched + 2);
}

TEST_F(PairsTest, MemoryThatIsNotOfThatKindAnyMoreGoesTheOtherWay) {
    ASSERT_TRUE(write({block(kHostToCuda, 0)}));
    peer_has_device_memory(false);
    device.on_slice = [](const Slice&) { return Result<>(fail(Code::kNotSupported, "that is host memory")); };
    const std::vector<Block> blocks = {block(kHostToCuda, 1)};
    EXPECT_EQ(write(blocks).value(), 64u);
    expect_arrived(blocks);
    EXPECT_EQ(any.connects, 0);
    EXPECT_EQ(world.script.submits, 1);
}

TEST_F(PairsTest, ARefusalOfAPairThatIsWhatItSeemedLeavesTheTransportOutForThatPairAlone) {
    device.on_slice = [](const Slice& slice) -> Result<> {
        if (local_kind(slice) == kCuda) return fail(Code::kNotSupported, "no peer memory here");
        return {};
    };
    const auto blocks = one_of_each();
    EXPECT_EQ(write(blocks).value(), 4u * 64);
    expect_arrived(blocks);
    EXPECT_EQ(device.submits, 3);
    EXPECT_EQ(any.submits, 2);
    EXPECT_EQ(world.script.submits, 1);
}

TEST_F(PairsTest, APairThatNobodyCarriesIsRefusedAndCostsTheRestNothing) {
    ASSERT_TRUE(world.registry->remove(local.data() + kHalf, Deadline::after(5s)));
    ASSERT_TRUE(world.registry->add({.address = local.data() + kHalf, .length = kHalf, .kind = kAscend}));
    ASSERT_TRUE(write({block(kHostToHost, 0)}));
    const int fetched = world.fetches;
    const auto moved = write({block(kCudaToHost, 1)});
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), Code::kNotSupported);
    EXPECT_NE(moved.error().to_string().find("ascend to host"), std::string::npos) << moved.error().to_string();
    EXPECT_EQ(world.fetches, fetched);
    EXPECT_TRUE(write({block(kHostToHost, 0)}));
    EXPECT_EQ(world.script.connects, 1);
}

TEST_F(PairsTest, PartsOfOneTransferNeverGoToTwoLives) {
    ASSERT_TRUE(write({block(kHostToHost, 0)}));
    world.script.on_slice = [&](const Slice&) {
        world.restart();  // and our link has not noticed yet
        return Result<>();
    };
    const auto moved = write({block(kHostToHost, 0), block(kHostToCuda, 1)});
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), Code::kStale) << moved.error().to_string();
    EXPECT_EQ(device.submits, 0);
    world.script.on_slice = nullptr;
    EXPECT_TRUE(write({block(kHostToHost, 0), block(kHostToCuda, 1)}))
        << "who calls again has been told, and all links lead to the new life";
    EXPECT_EQ(world.script.connects, 2);
    EXPECT_EQ(device.connects, 1);
}

TEST_F(PairsTest, ADeadlineStopsThePartThatHangs) {
    device.hold = true;
    const auto moved = write({block(kHostToHost, 0), block(kHostToCuda, 1)}, Deadline::after(20ms));
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), Code::kTimedOut);
    EXPECT_EQ(device.cancels, 1);
    EXPECT_EQ(world.script.cancels, 0);
}

TEST_F(PairsTest, APartThatBreaksStartsOverByItself) {
    int failures = 1;
    device.on_slice = [&](const Slice&) -> Result<> {
        if (failures-- > 0) {
            device.peers_usable = false;
            return fail(Code::kUnavailable, "reset");
        }
        return {};
    };
    device.on_connect = [&] {
        device.peers_usable = true;
        return Result<>();
    };
    const auto blocks = one_of_each();
    EXPECT_EQ(write(blocks).value(), 4u * 64);
    expect_arrived(blocks);
    EXPECT_EQ(world.script.submits, 1) << "what has arrived is not moved again";
    EXPECT_EQ(device.connects, 2);
}

// ---- batches

TEST_F(PairsTest, TheTasksOfABatchGoOverSeveralTransportsAtOnce) {
    world.script.hold = device.hold = true;
    const auto blocks = one_of_each();
    submit(blocks);
    wait_held(world.script, 1);
    wait_held(device, 3);
    for (size_t task = 0; task < 4; ++task) EXPECT_EQ(state(task), TransferState::kWaiting);
    device.release();
    for (size_t task = 1; task < 4; ++task) EXPECT_EQ(state(task), TransferState::kCompleted) << task;
    EXPECT_EQ(state(0), TransferState::kWaiting);
    EXPECT_TRUE(batch->busy());
    world.script.release();
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(batch->status().state, TransferState::kCompleted);
    EXPECT_EQ(batch->status().bytes, 4u * 64);
    expect_arrived(blocks);
}

TEST_F(PairsTest, ATaskOfSeveralPairsIsDoneWhenAllOfThemAre) {
    world.script.hold = device.hold = true;
    const auto blocks = one_of_each();
    submit_as_one(blocks);
    wait_held(world.script, 1);
    wait_held(device, 3);
    world.script.release();
    EXPECT_EQ(state(0), TransferState::kWaiting);
    device.release();
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(state(0), TransferState::kCompleted);
    EXPECT_EQ(batch->task_status(0)->bytes, 4u * 64);
    expect_arrived(blocks);
}

TEST_F(PairsTest, OnlyThePartOfATaskThatFailedIsMovedAgain) {
    std::atomic<int> failures{1}, host_slices{0}, device_slices{0};
    world.script.on_slice = [&](const Slice&) {
        ++host_slices;
        return Result<>();
    };
    device.on_slice = [&](const Slice&) -> Result<> {
        ++device_slices;
        if (failures-- > 0) return fail(Code::kUnavailable, "reset");
        return {};
    };
    const std::vector<Block> blocks = {block(kHostToHost, 0), block(kHostToHost, 2), block(kHostToCuda, 4), block(kHostToCuda, 6)};
    submit_as_one(blocks);
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(state(0), TransferState::kCompleted) << batch->status().error.to_string();
    EXPECT_EQ(batch->task_status(0)->bytes, 4u * 64) << "what the first attempt moved counts";
    EXPECT_EQ(host_slices, 2);
    EXPECT_EQ(device_slices, 4);
    expect_arrived(blocks);
    const std::string text = world.metrics.to_prometheus_text();
    EXPECT_NE(text.find("mooncake_transfer_bytes_total{direction=\"write\",path=\"fake\"} 128"), std::string::npos) << text;
    EXPECT_NE(text.find("mooncake_transfer_bytes_total{direction=\"write\",path=\"device\"} 128"), std::string::npos) << text;
}

TEST_F(PairsTest, ABatchAsksAgainWhatMemoryThePeerHasAndIsSplitAnew) {
    peer_has_device_memory(false);
    refuse_device_memory(world.script);
    ASSERT_TRUE(write({block(kHostToHost, 0)}));
    peer_has_device_memory(true);
    const std::vector<Block> blocks = {block(kHostToHost, 0), block(kHostToCuda, 1), block(kHostToCuda, 3)};
    submit(blocks);
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(batch->status().state, TransferState::kCompleted) << batch->status().error.to_string();
    expect_arrived(blocks);
    EXPECT_EQ(any.connects, 0) << "the transport was not unfit, the pair was a mistake";
    EXPECT_EQ(device.submits, 1);
}

TEST_F(PairsTest, ARefusedPartOfABatchGoesOverTheNextTransport) {
    device.on_slice = [](const Slice&) { return Result<>(fail(Code::kNotSupported, "no peer memory here")); };
    const auto blocks = one_of_each();
    submit(blocks);
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(batch->status().state, TransferState::kCompleted) << batch->status().error.to_string();
    expect_arrived(blocks);
    EXPECT_EQ(world.script.submits, 1);
    EXPECT_EQ(any.submits, 3) << "a part for each pair";
}

TEST_F(PairsTest, AFailureThatStaysIsReportedByTheTasksOfItsPart) {
    device.on_slice = [](const Slice&) { return Result<>(fail(Code::kNotRegistered, "not yours")); };
    submit(one_of_each());
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(state(0), TransferState::kCompleted);
    for (size_t task = 1; task < 4; ++task) EXPECT_EQ(state(task), TransferState::kFailed);
    const std::string text = batch->status().error.to_string();
    EXPECT_NE(text.find("peer over device"), std::string::npos) << text;
}

TEST_F(PairsTest, CancelStopsEveryPartAtItsOwnPeer) {
    world.script.hold = device.hold = true;
    const auto blocks = one_of_each();
    submit(blocks);
    wait_held(world.script, 1);
    wait_held(device, 3);
    batch->cancel();
    EXPECT_FALSE(batch->busy());
    for (size_t task = 0; task < 4; ++task) EXPECT_EQ(state(task), TransferState::kCancelled);
    EXPECT_EQ(world.script.cancels, 1);
    EXPECT_EQ(device.cancels, 3);
    world.script.release();
    device.release();
    for (const Block& one : blocks) EXPECT_FALSE(arrived(one));
}

TEST_F(PairsTest, CancelAsksAllPeersAtOnce) {
    world.script.hold = device.hold = true;
    const auto other_was_asked = [](FakeScript& other) {
        for (const Deadline end = Deadline::after(30s); other.cancels == 0 && !end.passed();) std::this_thread::yield();
        EXPECT_GT(other.cancels, 0) << "each would wait for its peer until the fence time is over";
    };
    world.script.before_cancel = [&] { other_was_asked(device); };
    device.before_cancel = [&] { other_was_asked(world.script); };
    submit(one_of_each());
    wait_held(world.script, 1);
    wait_held(device, 3);
    batch->cancel();
    EXPECT_FALSE(batch->busy());
    for (size_t task = 0; task < 4; ++task) EXPECT_EQ(state(task), TransferState::kCancelled);
}

TEST_F(PairsTest, CancelKeepsWhatAPartHasDone) {
    device.hold = true;
    submit(one_of_each());
    wait_held(device, 3);
    batch->cancel();
    EXPECT_EQ(state(0), TransferState::kCompleted);
    for (size_t task = 1; task < 4; ++task) EXPECT_EQ(state(task), TransferState::kCancelled);
    EXPECT_EQ(world.script.cancels, 0);
}

TEST_F(PairsTest, AWriteIsInDoubtAlsoWhereAPartHadBrokenBeforeItWasStopped) {
    device.hold = true;
    world.script.on_slice = [](const Slice&) { return Result<>(fail(Code::kUnavailable, "reset")); };
    world.script.on_cancel = Stopped::kRemoteInDoubt;
    submit(one_of_each());
    wait_held(device, 3);
    batch->cancel();
    const std::string text = batch->task_status(0)->error.to_string();
    EXPECT_NE(text.find("in doubt"), std::string::npos) << text;
    EXPECT_EQ(world.script.cancels, 1);
}

TEST_F(PairsTest, TheDeadlineEndsEveryPart) {
    device.hold = true;
    submit(one_of_each(), 20ms);
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(state(0), TransferState::kCompleted);
    for (size_t task = 1; task < 4; ++task) EXPECT_EQ(state(task), TransferState::kTimedOut);
}

TEST_F(PairsTest, ABatchNeverGoesToTwoLives) {
    ASSERT_TRUE(write({block(kHostToHost, 0)}));
    world.restart();  // our link has not noticed yet; the next one leads to the new life
    submit(one_of_each());
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(batch->status().error.code(), Code::kStale) << batch->status().error.to_string();
    EXPECT_EQ(device.submits, 0);
    EXPECT_EQ(world.script.submits, 1) << "none of its parts went anywhere";
    submit(one_of_each());
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    for (size_t task = 4; task < 8; ++task) EXPECT_EQ(state(task), TransferState::kCompleted) << task;
}

TEST_F(PairsTest, ARetryOverAnotherTransportWaitsUntilNothingOfThatPartCanLand) {
    device.on_slice = [this](const Slice&) -> Result<> {
        device.peers_usable = false;
        device.on_connect = [] { return Result<>(fail(Code::kUnavailable, "no path")); };
        return fail(Code::kUnavailable, "no path is left");
    };
    device.on_cancel = Stopped::kRemoteInDoubt;
    submit({block(kHostToHost, 0), block(kHostToCuda, 1)});
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(state(0), TransferState::kCompleted);
    EXPECT_EQ(state(1), TransferState::kFailed);
    EXPECT_EQ(any.submits, 0);
    EXPECT_NE(batch->status().error.to_string().find("in doubt"), std::string::npos) << batch->status().error.to_string();
}

TEST_F(PairsTest, ManyTasksOfAllPairsSurviveABatchThatFailsHereAndThere) {
    constexpr KindPair kAll[] = {kHostToHost, kCudaToHost, kHostToCuda, kCudaToCuda};
    std::vector<Block> blocks;
    for (size_t i = 0; i < 1000; ++i) blocks.push_back(block(kAll[i % 4], i));
    std::atomic<int> count{0};
    const auto sometimes = [&](const Slice&) -> Result<> {
        if (++count % 97 == 0 && count < 800) return fail(Code::kUnavailable, "reset");
        return {};
    };
    world.script.on_slice = device.on_slice = sometimes;
    submit(blocks);
    ASSERT_TRUE(batch->wait(Deadline::after(60s)));
    EXPECT_EQ(batch->status().state, TransferState::kCompleted) << batch->status().error.to_string();
    EXPECT_EQ(batch->status().bytes, 64'000u);
    expect_arrived(blocks);
}

TEST_F(PairsTest, CancelRacesWithTheEndOfEveryPartWithoutHarm) {
    for (int round = 0; round < 200; ++round) {
        batch = std::make_shared<Batch>(world.core, 8);
        world.script.hold = device.hold = true;
        submit(one_of_each());
        std::jthread first([&] { world.script.release(); });
        std::jthread second([&] { device.release(); });
        std::jthread canceller([&] { batch->cancel(); });
        EXPECT_TRUE(batch->wait(Deadline::after(60s)));
        for (size_t task = 0; task < 4; ++task) {
            const TransferState now = state(task);
            EXPECT_TRUE(now == TransferState::kCompleted || now == TransferState::kCancelled);
        }
    }
}

// ---- links

TEST_F(PairsTest, ASessionKeepsALinkForEachTransportThatSomePairNeeds) {
    Session& session = world.session("peer");
    const auto first = *session.link(Deadline::after(10s));
    const auto other = *session.link(Deadline::after(10s), {.pair = kHostToCuda});
    const auto last = *session.link(Deadline::after(10s), {.pair = kHostToCuda, .unfit = {other->transport}});
    EXPECT_EQ(first->path(), "fake");
    EXPECT_EQ(other->path(), "device");
    EXPECT_EQ(last->path(), "any");
    EXPECT_EQ(first->memory, other->memory) << "they lead to one life";
    EXPECT_EQ(*session.link(Deadline::after(10s), {.pair = kCudaToCuda}), other);
    EXPECT_EQ(*session.link(Deadline::after(10s), {.pair = kCudaToCuda, .unfit = {other->transport}}), last);
    EXPECT_EQ(*session.link(Deadline::after(10s)), first);
    EXPECT_EQ(device.connects + any.connects + world.script.connects, 3);
    EXPECT_EQ(session.link(Deadline::after(10s), {.pair = {kAscend, kHost}}).error().code(), Code::kNotSupported);
}

TEST_F(PairsTest, ALinkThatWasMadeForDeviceMemoryIsNotTakenForWhatANearerOneCarries) {
    world.aliases["other"] = "peer";
    const auto far = *world.session("peer").link(Deadline::after(10s), {.pair = kHostToCuda});
    EXPECT_EQ(far->path(), "device");
    const auto near = *world.session("other").link(Deadline::after(10s));
    EXPECT_EQ(near->path(), "fake");
    EXPECT_EQ(*world.session("peer").link(Deadline::after(10s)), near);
    EXPECT_EQ(*world.session("other").link(Deadline::after(10s), {.pair = kHostToCuda}), far);
    EXPECT_EQ(world.script.connects + device.connects, 2);
}

TEST_F(PairsTest, ALinkThatWasMadeForDeviceMemoryServesWhileTheNearerOneFails) {
    Session& session = world.session("peer");
    const auto far = *session.link(Deadline::after(10s), {.pair = kHostToCuda});
    world.script.on_connect = [] { return Result<>(fail(Code::kUnavailable, "no path")); };
    EXPECT_EQ(*session.link(Deadline::after(10s)), far);
    EXPECT_EQ(device.connects, 1);
    world.script.on_connect = nullptr;
    ASSERT_NE(session.improvable_at(), Time::max());
    session.improve(session.improvable_at());
    EXPECT_EQ((*session.link(Deadline::after(10s)))->path(), "fake");
}

TEST_F(PairsTest, LinksThatNobodyNeedsAreDroppedAndTheFirstStays) {
    Session& session = world.session("peer");
    const auto first = *session.link(Deadline::after(10s));
    const std::weak_ptr<Link> other = *session.link(Deadline::after(10s), {.pair = kHostToCuda});
    session.sweep(Clock::now(), 0s);
    EXPECT_FALSE(other.expired());
    session.sweep(Clock::now() + 2min, 0s);
    EXPECT_EQ(*session.link(Deadline::after(10s)), first);
    world.service.stop();
    EXPECT_TRUE(other.expired());
}

TEST_F(PairsTest, ALinkOfAnotherPairToANewLifeEndsTheLinksToTheOldOne) {
    Session& session = world.session("peer");
    Incarnation life;
    const auto first = *session.link_to(life, Deadline::after(10s));
    world.restart();
    EXPECT_EQ(session.link_to(life, Deadline::after(10s), {.pair = kHostToCuda}).error().code(), Code::kStale);
    Incarnation next;
    const auto second = *session.link_to(next, Deadline::after(10s));
    EXPECT_NE(second, first);
    EXPECT_NE(next, life);
    EXPECT_TRUE(session.link_to(next, Deadline::after(10s), {.pair = kHostToCuda}));
    EXPECT_EQ(device.connects, 1);
}

TEST_F(PairsTest, WhatAPeerSaysOfItsMemoryIsKnownUnderAllItsNames) {
    world.aliases["other"] = "peer";
    peer_has_device_memory(false);
    const auto link = *world.session("peer").link(Deadline::after(10s));
    EXPECT_TRUE(link->memory->empty());
    peer_has_device_memory(true);
    EXPECT_EQ(*world.session("other").link(Deadline::after(10s)), link);
    EXPECT_FALSE(link->memory->empty());
}

}  // namespace
}  // namespace mooncake
