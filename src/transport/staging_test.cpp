// SPDX-License-Identifier: Apache-2.0
#include "transport/staging.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "base/completion.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"
#include "transport/tcp/tcp.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {
namespace {

class Task final : public StagingTask {
public:
    explicit Task(size_t slots_needed, std::function<void(Task&)> what = {}) : what_(std::move(what)) {
        slots_wanted = slots_needed;
        done.add(1);
    }
    void run() noexcept override {
        if (what_) what_(*this);
        done.succeed(0);
    }
    bool ran() { return done.wait(patience()); }

    Completion done;

private:
    const std::function<void(Task&)> what_;
};

struct FakeStaging {
    KindAllocator kinds;
    Staging staging{kinds.devices(), "staging", {.slots = 4, .threads = 2}};
};

TEST(Staging, MakesSlotsWhenTheyAreFirstNeededAndKeepsThem) {
    FakeStaging fake;
    EXPECT_EQ(fake.staging.slots_made(), 0u);
    EXPECT_TRUE(fake.staging.try_take(1).empty()) << "none is made on a thread that may not call a device";
    const auto task = std::make_shared<Task>(2);
    ASSERT_TRUE(fake.staging.post(task));
    ASSERT_TRUE(task->ran());
    EXPECT_EQ(fake.staging.slots_made(), 2u);
    task->slots.release();
    EXPECT_EQ(fake.staging.slots_free(), 2u);
    EXPECT_FALSE(fake.staging.try_take(2).empty());
    EXPECT_EQ(fake.staging.slots_free(), 2u);
}

TEST(Staging, WhoWantsSlotsWaitsForThemInTurn) {
    FakeStaging fake;
    const auto first = std::make_shared<Task>(4);
    ASSERT_TRUE(fake.staging.post(first));
    ASSERT_TRUE(first->ran());
    const auto second = std::make_shared<Task>(3), third = std::make_shared<Task>(1), without = std::make_shared<Task>(0);
    ASSERT_TRUE(fake.staging.post(second));
    ASSERT_TRUE(fake.staging.post(third));
    ASSERT_TRUE(fake.staging.post(without));
    ASSERT_TRUE(without->ran()) << "one that needs none waits for nobody";
    EXPECT_FALSE(second->done.done());
    EXPECT_FALSE(third->done.done());
    first->slots.release();
    EXPECT_TRUE(second->ran());
    EXPECT_TRUE(third->ran());
    EXPECT_EQ(fake.staging.slots_made(), 4u) << "never more than the limit";
    second->slots.release();
    third->slots.release();
}

TEST(Staging, WhoIsWithdrawnIsNotRunAndLetsOthersPass) {
    FakeStaging fake;
    const auto first = std::make_shared<Task>(3);
    ASSERT_TRUE(fake.staging.post(first));
    ASSERT_TRUE(first->ran());
    const auto large = std::make_shared<Task>(4), small = std::make_shared<Task>(1);
    ASSERT_TRUE(fake.staging.post(large));
    ASSERT_TRUE(fake.staging.post(small));
    EXPECT_TRUE(fake.staging.withdraw(*large));
    EXPECT_FALSE(fake.staging.withdraw(*large));
    EXPECT_TRUE(small->ran());
    EXPECT_FALSE(large->done.done());
    first->slots.release();
    small->slots.release();
}

TEST(Staging, ItsMemoryIsPinnedAndGivenBack) {
    cuda::testing::FakeCuda cuda;
    const uint64_t before = cuda::testing::FakeCuda::count("live:pinned");
    std::vector<std::unique_ptr<Device>> others;
    others.push_back(std::make_unique<cuda::CudaDevice>(CudaOptions{}));
    Devices devices(std::move(others));
    {
        Staging staging(devices, "staging", {.slots = 4});
        const auto task = std::make_shared<Task>(2);
        ASSERT_TRUE(staging.post(task));
        ASSERT_TRUE(task->ran());
        ASSERT_FALSE(task->trouble);
        EXPECT_EQ(cuda::testing::FakeCuda::count("live:pinned"), before + 2);
        task->slots.release();
    }
    EXPECT_EQ(cuda::testing::FakeCuda::count("live:pinned"), before);
}

TEST(Staging, WherePinnedMemoryCannotBeHadNobodyGetsOther) {
    cuda::testing::FakeCuda cuda;
    std::vector<std::unique_ptr<Device>> others;
    others.push_back(std::make_unique<cuda::CudaDevice>(CudaOptions{}));
    Devices devices(std::move(others));
    Staging staging(devices, "staging", {.slots = 4});
    cuda::testing::FakeCuda::fail("cuMemHostAlloc", 2, 2);
    const auto task = std::make_shared<Task>(3);
    ASSERT_TRUE(staging.post(task));
    ASSERT_TRUE(task->ran());
    ASSERT_TRUE(task->trouble);
    EXPECT_TRUE(task->slots.empty());
    EXPECT_EQ(staging.slots_free(), staging.slots_made());
    const auto again = std::make_shared<Task>(4);
    ASSERT_TRUE(staging.post(again));
    ASSERT_TRUE(again->ran());
    EXPECT_FALSE(again->trouble) << "the next finds room for all";
    again->slots.release();
}

/// Local and remote memory of a device, over tcp.
class StagedTcp : public ::testing::Test {
protected:
    static constexpr uint64_t kBytes = 8 << 20;

    Slice slice(uint64_t offset, uint64_t length) const {
        return {.local = local->data() + offset, .remote = remote->address() + offset, .length = length, .region = local_region};
    }

    KindAllocator kinds;
    // Freed last: the target may still read for one who does not listen any more.
    std::unique_ptr<KindMemory> local = kinds.allocate(MemoryKind::kCuda, kBytes), remote = kinds.allocate(MemoryKind::kCuda, kBytes);
    TransportPair pair{TransportCase{.name = "tcp", .make = tcp::make_tcp_transport}, kinds.devices()};
    const MemoryRegion* const local_region = pair.initiator().add(local->region());
};

TEST_F(StagedTcp, ARangeIsRefusedAsAWholeAlthoughItTravelsInParts) {
    MemoryRegion half = remote->region();
    half.length = kBytes / 2;
    pair.target().add(half);
    const auto before = remote->read();
    const auto peer = pair.connect();
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, slice(0, kBytes))), Code::kNotRegistered);
    EXPECT_EQ(remote->read(), before) << "not even the part that is registered";
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, slice(0, kBytes / 2)));
}

TEST_F(StagedTcp, AMessageOfSeveralKindsIsNotSupportedAndTheConnectionGoesOn) {
    pair.target().add(remote->region());
    const TestMemory host(1 << 20);
    pair.target().add(host);
    const auto peer = pair.connect();
    Slice slices[] = {slice(0, 1000), slice(1000, 1000)};
    slices[1].remote = host.address();
    EXPECT_EQ(code_of(transfer(*peer, Direction::kWrite, slices)), Code::kNotSupported);
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, slices[0]));
    EXPECT_TRUE(transfer(*peer, Direction::kWrite, slices[1]));
    ASSERT_TRUE(pair.target().close());
}

TEST_F(StagedTcp, ManyThreadsAndSubmissionsShareThePeer) {
    pair.target().add(remote->region());
    const auto peer = pair.connect();
    std::vector<std::byte> bytes(kBytes);
    std::mt19937_64 random(3);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    local->write(bytes);
    constexpr uint64_t kThreads = 4, kEach = kBytes / kThreads;
    std::atomic<int> good{0};
    {
        std::vector<std::jthread> threads;
        for (uint64_t i = 0; i < kThreads; ++i)
            threads.emplace_back([&, i] {
                for (const uint64_t piece : {kEach, uint64_t{300'000}, uint64_t{5000}}) {
                    std::vector<Slice> slices;
                    for (uint64_t at = 0; at < kEach; at += piece) slices.push_back(slice(i * kEach + at, std::min(piece, kEach - at)));
                    const auto how = i % 2 == 0 ? Submit::kWait : Submit::kLeave;
                    if (transfer(*peer, Direction::kWrite, slices, how).value_or(0) == kEach &&
                        transfer(*peer, Direction::kRead, slices, how).value_or(0) == kEach)
                        ++good;
                }
            });
    }
    EXPECT_EQ(good.load(), 12);
    EXPECT_EQ(local->read(), bytes);
    EXPECT_EQ(remote->read(), bytes);
}

TEST_F(StagedTcp, ThePeerMayEndWithTransfersUnderWay) {
    pair.target().add(remote->region());
    for (int round = 0; round < 10; ++round) {
        auto peer = pair.connect();
        Completion completion;
        std::vector<Slice> slices;
        for (uint64_t at = 0; at < kBytes; at += 1 << 19) slices.push_back(slice(at, 1 << 19));
        completion.add(static_cast<uint32_t>(slices.size()));
        for (Slice& one : slices) one.completion = &completion;
        peer->submit(round % 2 == 0 ? Direction::kWrite : Direction::kRead, slices, Submit::kLeave);
        if (round % 3 == 0) peer->close(Error(Code::kCancelled, "the test closes it"));
        peer.reset();
        ASSERT_TRUE(completion.done()) << "nothing of it is under way any more";
    }
}

TEST_F(StagedTcp, TheOwnerOfTheLastCompletionMayEndThePeer) {
    pair.target().add(remote->region());
    struct Ender final : CompletionHook {
        void on_done(Completion&) noexcept override {
            peer.reset();
            ended.succeed(0);
        }
        std::unique_ptr<Peer> peer;
        Completion ended;
    };
    for (const uint64_t length : {uint64_t{1000}, kBytes})
        for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
            Ender ender;
            ender.ended.add(1);
            ender.peer = pair.connect();
            Peer& peer = *ender.peer;
            Completion completion(nullptr, &ender);
            completion.add(2);
            const Slice one = [&] {
                Slice made = slice(0, length);
                made.completion = &completion;
                return made;
            }();
            peer.submit(direction, {&one, 1}, Submit::kLeave);
            completion.succeed(0);  // only now may it be done: submit() has returned
            ASSERT_TRUE(ender.ended.wait(patience()));
            EXPECT_TRUE(completion.result()) << completion.result().error().to_string();
        }
}

}  // namespace
}  // namespace mooncake::testing
