// SPDX-License-Identifier: Apache-2.0
// A copy by a GPU for which there is not enough memory has ended when it says so.
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"
#include "transport/testing/no_memory.h"

namespace mooncake::testing {
namespace {

using cuda::testing::FakeCuda;

/// Streams stand still until somebody looks whether what is on them has happened, or nobody will any more.
class HeldUntilAsked {
public:
    HeldUntilAsked() { FakeCuda::hold_streams(true); }
    ~HeldUntilAsked() {
        over_ = true;
        watcher_.join();
        FakeCuda::hold_streams(false);
    }

private:
    const uint64_t before_ = FakeCuda::count("calls:cuEventQuery");
    std::atomic<bool> over_{false};
    std::jthread watcher_{[this] {
        while (!over_ && FakeCuda::count("calls:cuEventQuery") == before_) std::this_thread::yield();
        if (!over_) FakeCuda::hold_streams(false);
    }};
};

class DeviceNoMemory : public ::testing::Test {
protected:
    static constexpr uint64_t kBytes = 4 << 20;

    ~DeviceNoMemory() override {
        device.reset();
        FakeCuda::reset();
        fake.free(card);
        fake.free_pinned(pinned);
    }
    std::vector<CopyPart> parts(std::byte* to, std::byte* from, uint64_t length, uint64_t apart) const {
        std::vector<CopyPart> all;
        for (uint64_t at = 0; at + length <= kBytes; at += apart) all.push_back({.to = to + at, .from = from + at, .length = length});
        return all;
    }
    /// Wherever it runs out of memory, once or for good.
    void expect_over(MemoryKind to, MemoryKind from, const std::vector<CopyPart>& all) {
        for (const int refusals : {1, INT_MAX}) {
            bool refused = true;
            for (int spared = 0; refused; ++spared) {
                ASSERT_LT(spared, 2000);
                bool copied = false;
                uint64_t busy = 0;
                {
                    const HeldUntilAsked held;
                    {
                        const NoMemoryHere none(spared, refusals);
                        try {
                            copied = device->copy(to, from, all).has_value();
                        } catch (const std::bad_alloc&) {}
                        refused = NoMemoryHere::refused();
                    }
                    busy = FakeCuda::count("live:busy");
                }
                ASSERT_EQ(busy, 0u) << "something is under way, with " << spared << " allocations";
                ASSERT_TRUE(copied || refused);
            }
        }
        EXPECT_TRUE(device->copy(to, from, all)) << "it costs no more than the copy";
    }

    FakeCuda fake;
    std::unique_ptr<cuda::CudaDevice> device = std::make_unique<cuda::CudaDevice>(CudaOptions{});
    std::byte* const card = fake.allocate(kBytes);
    std::byte* const pinned = static_cast<std::byte*>(fake.allocate_pinned(kBytes));
    std::vector<std::byte> plain = std::vector<std::byte>(kBytes);
};

TEST_F(DeviceNoMemory, NothingIsUnderWayWhenACopyHasFailed) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    struct Shape {
        uint64_t length, apart;
    };
    for (const Shape& shape : {Shape{.length = kBytes, .apart = kBytes}, Shape{.length = 300'000, .apart = 400'000},
                               Shape{.length = 4000, .apart = 9000}, Shape{.length = 4096, .apart = 4096}}) {
        for (std::byte* const host : {plain.data(), pinned}) {
            SCOPED_TRACE(std::to_string(shape.length) + (host == pinned ? " pinned" : ""));
            expect_over(MemoryKind::kCuda, MemoryKind::kHost, parts(card, host, shape.length, shape.apart));
            expect_over(MemoryKind::kHost, MemoryKind::kCuda, parts(host, card, shape.length, shape.apart));
        }
    }
}

TEST_F(DeviceNoMemory, WorkThatIsWaitedForGivesBackWhatItHeld) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    const cuda::abi::Stream stream = fake.make_stream();
    const WorkPoint point{.what = WorkPoint::What::kStream, .handle = reinterpret_cast<uint64_t>(stream), .device = 0};
    bool refused = true;
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, 2000);
        const NoMemoryHere none(spared, 1);
        try {
            const auto work = device->follow(point);
            const auto gate = device->hold(point);
        } catch (const std::bad_alloc&) {}
        refused = NoMemoryHere::refused();
    }
    fake.drain(stream);  // nothing holds it
    fake.destroy_stream(stream);
    EXPECT_TRUE(device->copy(MemoryKind::kCuda, MemoryKind::kHost, parts(card, plain.data(), 1000, kBytes)));
}

}  // namespace
}  // namespace mooncake::testing
