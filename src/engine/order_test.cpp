// SPDX-License-Identifier: Apache-2.0
// Transfers in the order of a GPU's work, on a driver that is a stand-in.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"
#include "engine/engine.h"

namespace mooncake {
namespace {

using cuda::testing::FakeCuda;
namespace abi = cuda::abi;

std::vector<std::byte> bytes_of(uint8_t value, size_t length) { return std::vector<std::byte>(length, static_cast<std::byte>(value)); }

std::unique_ptr<Devices> make_devices(cuda::FindLibrary find) {
    std::vector<std::unique_ptr<Device>> others;
    others.push_back(std::make_unique<cuda::CudaDevice>(CudaOptions{}, std::move(find)));
    return std::make_unique<Devices>(std::move(others));
}

std::unique_ptr<Engine> make_engine(Devices& devices, EngineOptions options = {}) {
    auto made = Engine::create({.local_name = "127.0.0.1", .options = std::move(options), .memory = &devices});
    EXPECT_TRUE(made) << made.error().to_string();
    return made ? std::move(*made) : nullptr;
}

class OrderTest : public ::testing::Test {
protected:
    static constexpr uint64_t kLength = 4096;

    OrderTest() {
        engine = make_engine(*devices);
        peer = make_engine(*devices);
        EXPECT_TRUE(engine->register_memory(gpu, kLength));
        EXPECT_TRUE(peer->register_memory(host.data(), kLength));
        fake.write(gpu, bytes_of(1, kLength));
    }
    ~OrderTest() override {
        FakeCuda::hold_streams(false);
        FakeCuda::hold_default_stream(false);
        fake.drain(stream);
        engine.reset();
        peer.reset();
        devices.reset();
        EXPECT_EQ(FakeCuda::count("unrelaxed"), 0u);
        EXPECT_EQ(FakeCuda::count("null_stream"), 0u);
        EXPECT_EQ(FakeCuda::count("captured"), 0u);
        EXPECT_EQ(FakeCuda::count("live:streams"), streams) << "all streams of ours are given back";
        EXPECT_EQ(FakeCuda::count("live:pinned"), pinned);
        EXPECT_EQ(FakeCuda::count("live:events"), events);
        fake.destroy_stream(stream);
        fake.free(gpu);
    }

    void renew(cuda::FindLibrary find, EngineOptions options = {}) {
        engine.reset();
        peer.reset();
        devices = make_devices(std::move(find));
        engine = make_engine(*devices, std::move(options));
        peer = make_engine(*devices);
        EXPECT_TRUE(engine->register_memory(gpu, kLength));
        EXPECT_TRUE(peer->register_memory(host.data(), kLength));
    }
    Block block() { return {.local = gpu, .remote = reinterpret_cast<uint64_t>(host.data()), .length = kLength}; }
    Result<BatchId> submit(const WorkPoint& after) {
        const Block one = block();
        return engine->submit(peer->segment_name(), Direction::kWrite, {&one, 1}, nullptr, {}, Connect::kFirst, after);
    }
    Result<BatchId> put_on_stream(const WorkPoint& point, uint64_t remote_offset = 0) {
        Block one = block();
        one.remote += remote_offset;
        return engine->transfer_on_stream(peer->segment_name(), Direction::kWrite, {&one, 1}, point);
    }
    static WorkPoint on(abi::Stream stream) { return {.what = WorkPoint::What::kStream, .handle = reinterpret_cast<uint64_t>(stream)}; }
    static WorkPoint on(abi::Event event) { return {.what = WorkPoint::What::kEvent, .handle = reinterpret_cast<uint64_t>(event)}; }
    bool arrived(uint8_t value) const {
        return std::all_of(host.begin(), host.end(), [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
    }
    /// Work that is on a stream and does not happen yet.
    void put_work(abi::Stream where, const std::vector<std::byte>& source) {
        FakeCuda::hold_streams(true);
        fake.write_on(where, gpu, source);
    }
    TransferState state(BatchId batch) { return engine->batch_status(batch)->state; }

    FakeCuda fake;
    const uint64_t pinned = FakeCuda::count("live:pinned"), events = FakeCuda::count("live:events");
    std::byte* const gpu = fake.allocate(kLength);
    const abi::Stream stream = fake.make_stream();
    const uint64_t streams = FakeCuda::count("live:streams");
    std::vector<std::byte> host = bytes_of(0, kLength);
    const std::vector<std::byte> second = bytes_of(2, kLength);
    std::unique_ptr<Devices> devices = make_devices(cuda::find_loaded_library);
    std::unique_ptr<Engine> engine, peer;
};

TEST_F(OrderTest, ABatchWaitsForTheStreamItIsPutBehind) {
    put_work(stream, second);
    const auto batch = submit(on(stream));
    ASSERT_TRUE(batch) << batch.error().to_string();
    const uint64_t looks = FakeCuda::count("calls:cuEventQuery");
    while (FakeCuda::count("calls:cuEventQuery") < looks + 10) std::this_thread::yield();
    EXPECT_EQ(state(*batch), TransferState::kWaiting);
    EXPECT_TRUE(arrived(0));
    FakeCuda::hold_streams(false);
    EXPECT_EQ(engine->wait_batch(*batch)->state, TransferState::kCompleted);
    EXPECT_TRUE(arrived(2));
    EXPECT_TRUE(engine->free_batch(*batch));
}

TEST_F(OrderTest, ItTakesThePlaceOfTheDefaultStreamOnEveryPath) {
    FakeCuda::hold_default_stream(true);
    fake.write_later(gpu, second);  // the next forward pass, say
    for (const char* const transport : {"shm", "tcp"}) {
        EngineOptions options;
        options.transports = {transport};
        renew(cuda::find_loaded_library, options);
        std::fill(host.begin(), host.end(), std::byte{0});
        const auto batch = submit(on(stream));
        ASSERT_TRUE(batch) << batch.error().to_string();
        EXPECT_EQ(engine->wait_batch(*batch)->state, TransferState::kCompleted) << transport;
        EXPECT_TRUE(arrived(1)) << transport;
        (void)engine->free_batch(*batch);
    }
    FakeCuda::hold_default_stream(false);
    fake.drain(abi::legacy_stream());
}

TEST_F(OrderTest, ItTakesThePlaceOfTheDefaultStreamWithinAnEngine) {
    FakeCuda::hold_default_stream(true);
    fake.write_later(gpu, second);
    EXPECT_TRUE(engine->register_memory(host.data(), kLength));
    const Block one = block();
    EXPECT_TRUE(engine->transfer(engine->segment_name(), Direction::kWrite, {&one, 1}, Deadline::after(20s), nullptr, {}, on(stream)));
    EXPECT_TRUE(arrived(1));
    FakeCuda::hold_default_stream(false);
    fake.drain(abi::legacy_stream());
}

TEST_F(OrderTest, ABatchWaitsForAnEventAsItIsNow) {
    const abi::Event event = fake.make_event();
    put_work(stream, second);
    fake.record(event, stream);
    const auto batch = submit(on(event));
    ASSERT_TRUE(batch) << batch.error().to_string();
    fake.destroy_event(event);  // as Python does when nobody names it any more
    EXPECT_EQ(state(*batch), TransferState::kWaiting);
    FakeCuda::hold_streams(false);
    EXPECT_EQ(engine->wait_batch(*batch)->state, TransferState::kCompleted);
    EXPECT_TRUE(arrived(2));
    (void)engine->free_batch(*batch);
}

TEST_F(OrderTest, AnEventThatWasNeverRecordedIsNothingToWaitFor) {
    const abi::Event event = fake.make_event();
    for (const WorkPoint& point : {on(event), on(abi::Event{nullptr})}) {
        const auto batch = submit(point);
        ASSERT_TRUE(batch);
        EXPECT_EQ(engine->wait_batch(*batch)->state, TransferState::kCompleted);
        (void)engine->free_batch(*batch);
    }
    fake.destroy_event(event);
}

TEST_F(OrderTest, ADefaultStreamIsThatOfTheGpusInUse) {
    FakeCuda::hold_default_stream(true);
    fake.write_later(gpu, second);
    for (const uint64_t handle : {0, 1}) {
        const auto batch = submit({.what = WorkPoint::What::kStream, .handle = handle});
        ASSERT_TRUE(batch);
        EXPECT_EQ(state(*batch), TransferState::kWaiting);
        if (handle == 1) FakeCuda::hold_default_stream(false);
        else EXPECT_TRUE(engine->cancel_batch(*batch));
        (void)engine->wait_batch(*batch);
        EXPECT_TRUE(engine->free_batch(*batch));
    }
    EXPECT_TRUE(arrived(2));
}

TEST_F(OrderTest, ACancelledBatchDoesNotWaitForTheWork) {
    put_work(stream, second);
    const auto batch = submit(on(stream));
    ASSERT_TRUE(batch);
    EXPECT_TRUE(engine->cancel_batch(*batch));
    EXPECT_EQ(state(*batch), TransferState::kCancelled);
    EXPECT_TRUE(engine->free_batch(*batch));
    FakeCuda::hold_streams(false);
    fake.drain(stream);
    EXPECT_TRUE(arrived(0));
}

TEST_F(OrderTest, WaitingEndsWithTheDeadline) {
    EngineOptions options;
    options.transfer_timeout = 100ms;
    renew(cuda::find_loaded_library, options);
    put_work(stream, second);
    const auto batch = submit(on(stream));
    ASSERT_TRUE(batch);
    EXPECT_EQ(engine->wait_batch(*batch)->state, TransferState::kTimedOut);
    (void)engine->free_batch(*batch);
    const Block one = block();
    const auto moved = engine->transfer(peer->segment_name(), Direction::kWrite, {&one, 1}, Deadline::after(20ms), nullptr, {}, on(stream));
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), Code::kTimedOut);
    EXPECT_TRUE(arrived(0));
}

TEST_F(OrderTest, ClosingDoesNotWaitForTheWork) {
    put_work(stream, second);
    const auto batch = submit(on(stream));
    ASSERT_TRUE(batch);
    EXPECT_TRUE(engine->close());
}

TEST_F(OrderTest, WhoeverBlocksWaitsForTheWorkFirst) {
    put_work(stream, second);
    const Block one = block();
    const auto plan = engine->prepare(peer->segment_name(), {&one, 1});
    ASSERT_TRUE(plan);
    std::atomic<int> done{0};
    std::thread first([&] {
        EXPECT_TRUE(engine->transfer(peer->segment_name(), Direction::kWrite, {&one, 1}, Deadline::after(60s), nullptr, {}, on(stream)));
        ++done;
    });
    std::thread other([&] {
        EXPECT_TRUE((*plan)->run(Direction::kWrite, on(stream)));
        ++done;
    });
    const auto batch = (*plan)->submit(Direction::kWrite, on(stream));
    ASSERT_TRUE(batch);
    while (FakeCuda::count("calls:cuEventQuery") < 20) std::this_thread::yield();
    EXPECT_EQ(done, 0);
    FakeCuda::hold_streams(false);
    first.join();
    other.join();
    EXPECT_EQ(engine->wait_batch(*batch)->state, TransferState::kCompleted);
    EXPECT_TRUE((*plan)->run(Direction::kWrite));
    EXPECT_TRUE(arrived(2));
}

TEST_F(OrderTest, WhatIsNoStreamOrEventIsSaidToBeNone) {
    const abi::Stream gone = fake.make_stream();
    fake.destroy_stream(gone);
    const auto refused = submit(on(gone));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_FALSE(put_on_stream(on(gone)));
    const abi::Event event = fake.make_event();
    fake.destroy_event(event);
    EXPECT_FALSE(submit(on(event)));
    EXPECT_FALSE(submit({.what = WorkPoint::What::kStream, .handle = 0, .device = 9}));
    EXPECT_FALSE(put_on_stream(on(event)));
}

TEST_F(OrderTest, NothingIsPutOnAStreamThatIsCaptured) {
    fake.capture_on(stream, true);
    const auto refused = submit(on(stream));
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("captured"), std::string::npos);
    EXPECT_FALSE(put_on_stream(on(stream)));
    fake.capture_on(stream, false);
    EXPECT_TRUE(arrived(0));
}

TEST_F(OrderTest, AGpuThatIsLostWhileItIsWaitedForIsAnError) {
    put_work(stream, second);
    const auto batch = submit(on(stream));
    ASSERT_TRUE(batch);
    FakeCuda::fail("cuEventQuery", 1, 999);
    const auto status = engine->wait_batch(*batch);
    EXPECT_EQ(status->state, TransferState::kFailed);
    EXPECT_NE(status->error.message().find("what the transfer waits for"), std::string::npos);
    (void)engine->free_batch(*batch);
}

// ---- transfers on a stream

TEST_F(OrderTest, ATransferOnAStreamTakesItsTurnThere) {
    const std::vector<std::byte> third = bytes_of(3, kLength);
    put_work(stream, second);
    const auto batch = put_on_stream(on(stream));
    ASSERT_TRUE(batch) << batch.error().to_string();
    fake.write_on(stream, gpu, third);
    EXPECT_TRUE(arrived(0));
    FakeCuda::hold_streams(false);
    fake.drain(stream);
    EXPECT_TRUE(arrived(2)) << "behind the work before it, and before the work behind it";
    EXPECT_EQ(fake.read(gpu, kLength), third);
    EXPECT_EQ(FakeCuda::count("calls:cuStreamWaitValue64_v2"), 1u);
    const auto freed = engine->batch_status(*batch);
    EXPECT_FALSE(freed) << "it frees itself";
}

TEST_F(OrderTest, ATransferOnAStreamWithoutWaitsOfTheGpu) {
    FakeCuda::attribute(0, abi::kDeviceStreamMemops64, 0);
    put_work(stream, second);
    ASSERT_TRUE(put_on_stream(on(stream)));
    FakeCuda::hold_streams(false);
    fake.drain(stream);
    EXPECT_TRUE(arrived(2));
    EXPECT_EQ(FakeCuda::count("calls:cuLaunchHostFunc"), 1u);
    EXPECT_EQ(FakeCuda::count("calls:cuStreamWaitValue64_v2"), 0u);
    FakeCuda::attribute(0, abi::kDeviceStreamMemops64, 1);
}

TEST_F(OrderTest, ATransferOnTheDefaultStreamDoesNotWaitForItself) {
    ASSERT_TRUE(put_on_stream({.what = WorkPoint::What::kStream}));
    fake.drain(abi::legacy_stream());
    EXPECT_TRUE(arrived(1));
}

TEST_F(OrderTest, ManyTransfersOnStreamsKeepTheirOrder) {
    const abi::Stream other = fake.make_stream();
    for (int i = 0; i < 50; ++i) {
        const auto text = bytes_of(static_cast<uint8_t>(i), kLength);
        const abi::Stream where = i % 2 == 0 ? stream : other;
        fake.write_on(where, gpu, text);
        ASSERT_TRUE(put_on_stream(on(where)));
        fake.drain(where);
        ASSERT_TRUE(arrived(static_cast<uint8_t>(i)));
    }
    fake.destroy_stream(other);
}

TEST_F(OrderTest, TheTimeOfATransferOnAStreamBeginsWithItsTurn) {
    EngineOptions options;
    options.transfer_timeout = 2s;
    renew(cuda::find_loaded_library, options);
    put_work(stream, second);
    ASSERT_TRUE(put_on_stream(on(stream)));
    const Deadline late = Deadline::after(2200ms);
    while (!late.passed()) std::this_thread::yield();  // nothing but time matters here
    EXPECT_TRUE(arrived(0));
    FakeCuda::hold_streams(false);
    fake.drain(stream);
    EXPECT_TRUE(arrived(2));
}

TEST_F(OrderTest, AFailureIsWhatTheNextCallReturns) {
    EngineOptions options;
    options.stream_failure_ends = false;
    renew(cuda::find_loaded_library, options);
    ASSERT_TRUE(put_on_stream(on(stream), 1 << 20));
    fake.drain(stream);
    const auto next = put_on_stream(on(stream));
    ASSERT_FALSE(next);
    EXPECT_NE(next.error().message().find("earlier transfer on a stream"), std::string::npos);
    EXPECT_TRUE(put_on_stream(on(stream)));
    fake.drain(stream);
    EXPECT_TRUE(arrived(1));
}

TEST_F(OrderTest, ClosingLetsTheStreamsGoOn) {
    put_work(stream, second);
    ASSERT_TRUE(put_on_stream(on(stream)));
    EXPECT_TRUE(engine->close());
    FakeCuda::hold_streams(false);
    fake.drain(stream);
    EXPECT_TRUE(arrived(0));
}

TEST_F(OrderTest, AStreamThatCannotBeHeldBackCostsNothing) {
    FakeCuda::attribute(0, abi::kDeviceStreamMemops64, 0);
    FakeCuda::fail("cuLaunchHostFunc", 1, 999);
    put_work(stream, second);
    EXPECT_FALSE(put_on_stream(on(stream)));
    FakeCuda::hold_streams(false);
    fake.drain(stream);
    EXPECT_TRUE(arrived(0));
    FakeCuda::attribute(0, abi::kDeviceStreamMemops64, 1);
}

// ---- work that nobody names: that of the default stream

TEST_F(OrderTest, TheDefaultStreamIsWaitedForWithinTheDeadline) {
    const std::vector<std::byte> third = bytes_of(3, kLength);
    for (const char* const transport : {"shm", "tcp"}) {
        EngineOptions options;
        options.transports = {transport};
        options.transfer_timeout = 500ms;
        renew(cuda::find_loaded_library, options);
        std::fill(host.begin(), host.end(), std::byte{0});
        ASSERT_TRUE(engine->open_segment(peer->segment_name(), Deadline::after(20s)));
        std::vector<Block> pieces;  // of which each could wait for itself
        for (uint64_t at = 0; at < kLength; at += 1024)
            pieces.push_back({.local = gpu + at, .remote = reinterpret_cast<uint64_t>(host.data()) + at, .length = 512});
        const auto plan = engine->prepare(peer->segment_name(), pieces).value();
        FakeCuda::hold_default_stream(true);
        fake.write_later(gpu, third);
        const Deadline hung = Deadline::after(20s);
        EXPECT_EQ(engine->transfer(peer->segment_name(), Direction::kWrite, pieces, Deadline::after(100ms)).error().code(),
                  Code::kTimedOut);
        EXPECT_EQ(plan->run(Direction::kWrite).error().code(), Code::kTimedOut);
        const auto batch = engine->submit(peer->segment_name(), Direction::kWrite, pieces);
        ASSERT_TRUE(batch) << batch.error().to_string();
        EXPECT_EQ(engine->wait_batch(*batch)->state, TransferState::kTimedOut);
        EXPECT_TRUE(engine->free_batch(*batch));
        EXPECT_FALSE(hung.passed()) << transport;
        EXPECT_TRUE(arrived(0)) << transport;
        FakeCuda::hold_default_stream(false);
        const Block all = block();
        EXPECT_TRUE(engine->transfer(peer->segment_name(), Direction::kWrite, {&all, 1}, Deadline::after(20s)));
        EXPECT_TRUE(arrived(3)) << transport;
        fake.drain(abi::legacy_stream());
        fake.write(gpu, bytes_of(1, kLength));
    }
}

TEST_F(OrderTest, ClosingDoesNotWaitForTheDefaultStream) {
    FakeCuda::hold_default_stream(true);
    fake.write_later(gpu, second);
    const Block one = block();
    const auto batch = engine->submit(peer->segment_name(), Direction::kWrite, {&one, 1});
    ASSERT_TRUE(batch) << batch.error().to_string();
    const Deadline hung = Deadline::after(20s);
    EXPECT_TRUE(engine->close());
    EXPECT_FALSE(hung.passed());
    EXPECT_TRUE(arrived(0));
    FakeCuda::hold_default_stream(false);
    fake.drain(abi::legacy_stream());
}

TEST_F(OrderTest, WhoUnregistersOtherMemoryDoesNotWaitForTheDefaultStream) {
    EngineOptions options;
    options.transports = {"tcp"};
    options.transfer_timeout = 5s;
    renew(cuda::find_loaded_library, options);
    std::vector<std::byte> other(kLength);
    ASSERT_TRUE(engine->register_memory(other.data(), kLength));
    FakeCuda::hold_default_stream(true);
    fake.write_later(gpu, second);
    const uint64_t looks = FakeCuda::count("calls:cuEventQuery");
    const Block one{.local = host.data(), .remote = reinterpret_cast<uint64_t>(gpu), .length = kLength};
    const auto batch = peer->submit(engine->segment_name(), Direction::kRead, {&one, 1});
    ASSERT_TRUE(batch) << batch.error().to_string();
    while (FakeCuda::count("calls:cuEventQuery") < looks + 10) std::this_thread::yield();  // it waits at the target
    const auto gone = engine->unregister_memory(other.data());
    EXPECT_TRUE(gone) << gone.error().to_string();
    EXPECT_TRUE(arrived(0));
    FakeCuda::hold_default_stream(false);
    EXPECT_EQ(peer->wait_batch(*batch)->state, TransferState::kCompleted);
    EXPECT_TRUE(arrived(2));
    EXPECT_TRUE(peer->free_batch(*batch));
    fake.drain(abi::legacy_stream());
}

TEST(Order, WithoutCudaThereAreNoStreams) {
    auto devices = make_devices([]() -> std::optional<cuda::Lookup> { return std::nullopt; });
    const auto engine = make_engine(*devices);
    std::vector<std::byte> memory(64);
    const Block one{.local = memory.data(), .remote = reinterpret_cast<uint64_t>(memory.data()), .length = 64};
    const WorkPoint stream{.what = WorkPoint::What::kStream};
    const auto refused = engine->transfer_on_stream(engine->segment_name(), Direction::kWrite, {&one, 1}, stream);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kUnavailable);
    EXPECT_FALSE(engine->submit(engine->segment_name(), Direction::kWrite, {&one, 1}, nullptr, {}, Connect::kFirst, stream));
    EXPECT_FALSE(devices->of(MemoryKind::kCuda)->state());
}

}  // namespace
}  // namespace mooncake
