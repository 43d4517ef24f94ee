// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"

namespace mooncake::cuda {
namespace {

using testing::FakeCuda;

class CudaForkTest : public ::testing::Test {
protected:
    Result<> to_host(std::byte* to, const std::byte* from, uint64_t length) {
        const CopyPart part{to, from, length};
        return device->copy(MemoryKind::kHost, MemoryKind::kCuda, {&part, 1});
    }

    FakeCuda fake;
    std::unique_ptr<CudaDevice> device = std::make_unique<CudaDevice>(CudaOptions{});
};

TEST_F(CudaForkTest, AForkedChildCallsNothing) {
    std::byte* const card = fake.allocate(4096);
    std::vector<std::byte> host(4096);
    ASSERT_TRUE(to_host(host.data(), card, 4096));
    const pid_t child = ::fork();
    if (child == 0) {
        const bool refused = !to_host(host.data(), card, 4096) && !device->describe(card, 1).value_or(std::nullopt);
        device.reset();
        ::_exit(refused && FakeCuda::count("in_child") == 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(to_host(host.data(), card, 4096));
    fake.free(card);
}

TEST_F(CudaForkTest, AChildForkedDuringCopiesIsNotHeldUpByThem) {
    constexpr uint64_t kLength = 1 << 20;
    std::byte* const card = fake.allocate(kLength);
    std::vector<std::byte> host(kLength), ours(1);
    std::jthread copying([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) EXPECT_TRUE(to_host(host.data(), card, kLength));
    });
    ASSERT_TRUE(to_host(ours.data(), card, 1));
    for (int i = 0; i < 100; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(60);  // a mutex that nobody gives back
            std::byte own{};
            const bool refused = !to_host(&own, card, 1) && !device->describe(card, 1).value_or(std::nullopt);
            device.reset();
            ::_exit(refused && FakeCuda::count("in_child") == 0 ? 0 : 1);
        }
        int status = -1;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_EQ(status, 0) << "fork " << i;
    }
    copying.request_stop();
    copying.join();
    fake.free(card);
}

}  // namespace
}  // namespace mooncake::cuda
