// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU through all of an engine, with our own device on the libcuda that the tests build: within a process, and between two.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"
#include "engine/engine.h"

namespace mooncake {
namespace {

using cuda::testing::FakeCuda;

constexpr size_t kBytes = 5'000'000;

Deadline soon() { return Deadline::after(60s); }

std::vector<std::byte> noise(size_t length, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

uint64_t address_of(const std::byte* pointer) { return reinterpret_cast<uint64_t>(pointer); }

/// A process that uses a GPU, and an engine that finds out by itself.
struct WithGpu {
    FakeCuda cuda;
    std::unique_ptr<Devices> devices;
    std::byte* const card = cuda.allocate(kBytes);

    WithGpu() {
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::make_unique<cuda::CudaDevice>(CudaOptions{}));
        devices = std::make_unique<Devices>(std::move(others));
    }
    ~WithGpu() {
        devices.reset();
        cuda.free(card);
    }
};

EngineConfig config_for(Devices* devices, std::vector<std::string> transports) {
    EngineConfig config{.local_name = "127.0.0.1"};
    if (devices != nullptr) config.memory = devices;
    config.options.transports = std::move(transports);
    config.options.transfer_timeout = 60s;
    config.options.log.level = LogLevel::kWarning;
    return config;
}

/// A process that lends host memory, which this one sees as well, until its pipe is closed. It does not know CUDA.
class HostProcess {
public:
    HostProcess() {
        int to_child[2], from_child[2];
        EXPECT_EQ(::pipe(to_child), 0);
        EXPECT_EQ(::pipe(from_child), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(to_child[1]);
            ::close(from_child[0]);
            ::_exit(serve(to_child[0], from_child[1]));
        }
        ::close(to_child[0]);
        ::close(from_child[1]);
        stop_ = to_child[1];
        EXPECT_EQ(::read(from_child[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
        ::close(from_child[0]);
    }
    ~HostProcess() {
        ::close(stop_);
        int status = 0;
        ::waitpid(pid_, &status, 0);
        EXPECT_EQ(status, 0);
        ::munmap(memory_, kBytes);
    }
    HostProcess(const HostProcess&) = delete;
    HostProcess& operator=(const HostProcess&) = delete;

    std::string name() const { return "127.0.0.1:" + std::to_string(port_); }
    std::byte* memory() const { return memory_; }

private:
    int serve(int stop, int out) const {
        auto engine = Engine::create(config_for(nullptr, {"shm"}));
        if (!engine || !(*engine)->register_memory(memory_, kBytes)) return 1;
        const uint16_t port = (*engine)->rpc_port();
        if (::write(out, &port, sizeof port) != sizeof port) return 2;
        char byte = 0;
        while (::read(stop, &byte, 1) > 0) {}
        engine->reset();
        return 0;
    }

    std::byte* const memory_ = static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t pid_ = -1;
    int stop_ = -1;
    uint16_t port_ = 0;
};

/// The other process begins before the first GPU is used: a child of such a process could not use anything of it.
class CudaMemory : public testing::Test {
protected:
    static void SetUpTestSuite() { other_ = new HostProcess; }
    static void TearDownTestSuite() { delete other_; }

    HostProcess& other = *other_;

private:
    static inline HostProcess* other_ = nullptr;
};

TEST_F(CudaMemory, MovesBetweenTwoProcessesOverSharedMemory) {
    WithGpu gpu;
    auto engine = Engine::create(config_for(gpu.devices.get(), {"shm"})).value();
    ASSERT_TRUE(engine->register_memory(gpu.card, kBytes));
    const auto bytes = noise(kBytes, 1), others = noise(kBytes, 2);
    gpu.cuda.write(gpu.card, bytes);
    const Block all{.local = gpu.card, .remote = address_of(other.memory()), .length = kBytes};
    ASSERT_EQ(engine->transfer(other.name(), mooncake::Direction::kWrite, {&all, 1}, soon()).value_or(0), kBytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), other.memory()));
    std::copy(others.begin(), others.end(), other.memory());
    ASSERT_EQ(engine->transfer(other.name(), mooncake::Direction::kRead, {&all, 1}, soon()).value_or(0), kBytes);
    EXPECT_EQ(gpu.cuda.read(gpu.card, kBytes), others);
}

TEST_F(CudaMemory, ScatteredBlocksMoveBetweenTwoProcesses) {
    WithGpu gpu;
    auto engine = Engine::create(config_for(gpu.devices.get(), {"shm"})).value();
    ASSERT_TRUE(engine->register_memory(gpu.card, kBytes));
    constexpr size_t kBlock = 1000, kCount = 2000;
    const auto bytes = noise(kBytes, 3);
    gpu.cuda.write(gpu.card, bytes);
    std::vector<Block> blocks;
    for (size_t i = 0; i < kCount; ++i)
        blocks.push_back(
            {.local = gpu.card + i * 2 * kBlock, .remote = address_of(other.memory()) + (kCount - 1 - i) * 2 * kBlock, .length = kBlock});
    ASSERT_EQ(engine->transfer(other.name(), mooncake::Direction::kWrite, blocks, soon()).value_or(0), kCount * kBlock);
    for (size_t i = 0; i < kCount; ++i)
        ASSERT_TRUE(std::equal(bytes.begin() + static_cast<ptrdiff_t>(i * 2 * kBlock),
                               bytes.begin() + static_cast<ptrdiff_t>(i * 2 * kBlock + kBlock),
                               other.memory() + (kCount - 1 - i) * 2 * kBlock))
            << i;
}

TEST_F(CudaMemory, TwoEnginesOfAProcessMoveItBetweenThem) {
    WithGpu gpu;
    std::byte* const there = gpu.cuda.allocate(kBytes);
    {
        auto ours = Engine::create(config_for(gpu.devices.get(), {})).value(),
             theirs = Engine::create(config_for(gpu.devices.get(), {})).value();
        ASSERT_TRUE(ours->register_memory(gpu.card, kBytes));
        ASSERT_TRUE(theirs->register_memory(there, kBytes));
        const auto bytes = noise(kBytes, 8);
        gpu.cuda.write(gpu.card, bytes);
        const Block all{.local = gpu.card, .remote = address_of(there), .length = kBytes};
        ASSERT_EQ(ours->transfer(theirs->segment_name(), mooncake::Direction::kWrite, {&all, 1}, soon()).value_or(0), kBytes);
        EXPECT_EQ(gpu.cuda.read(there, kBytes), bytes);
        EXPECT_TRUE(theirs->unregister_memory(there));
    }
    gpu.cuda.free(there);
}

TEST_F(CudaMemory, MovesWithinAProcess) {
    WithGpu gpu;
    std::byte* const there = gpu.cuda.allocate(kBytes);
    {
        auto engine = Engine::create(config_for(gpu.devices.get(), {})).value();
        ASSERT_TRUE(engine->register_memory(gpu.card, kBytes));
        ASSERT_TRUE(engine->register_memory(there, kBytes));
        const auto bytes = noise(kBytes, 4);
        gpu.cuda.write(gpu.card, bytes);
        const Block all{.local = gpu.card, .remote = address_of(there), .length = kBytes};
        ASSERT_EQ(engine->transfer(engine->segment_name(), mooncake::Direction::kWrite, {&all, 1}, soon()).value_or(0), kBytes);
        EXPECT_EQ(gpu.cuda.read(there, kBytes), bytes);
    }
    gpu.cuda.free(there);
}

TEST_F(CudaMemory, TwoEnginesOfAProcessMoveItToTheHost) {
    WithGpu gpu;
    std::vector<std::byte> host(kBytes);
    auto ours = Engine::create(config_for(gpu.devices.get(), {})).value(),
         theirs = Engine::create(config_for(gpu.devices.get(), {})).value();
    ASSERT_TRUE(ours->register_memory(gpu.card, kBytes));
    ASSERT_TRUE(theirs->register_memory(host.data(), kBytes));
    const auto bytes = noise(kBytes, 5);
    gpu.cuda.write(gpu.card, bytes);
    const Block all{.local = gpu.card, .remote = address_of(host.data()), .length = kBytes};
    ASSERT_EQ(ours->transfer(theirs->segment_name(), mooncake::Direction::kWrite, {&all, 1}, soon()).value_or(0), kBytes);
    EXPECT_EQ(host, bytes);
}

TEST_F(CudaMemory, WhatIsFreedWhileRegisteredIsAnErrorAndTheRestGoesOn) {
    WithGpu gpu;
    std::byte* const gone = gpu.cuda.allocate(kBytes);
    std::vector<std::byte> host(kBytes);
    auto engine = Engine::create(config_for(gpu.devices.get(), {})).value();
    ASSERT_TRUE(engine->register_memory(gpu.card, kBytes));
    ASSERT_TRUE(engine->register_memory(gone, kBytes));
    ASSERT_TRUE(engine->register_memory(host.data(), kBytes));
    gpu.cuda.free(gone);
    const auto to_host = [&](std::byte* from) {
        const Block all{.local = from, .remote = address_of(host.data()), .length = kBytes};
        return engine->transfer(engine->segment_name(), mooncake::Direction::kWrite, {&all, 1}, soon());
    };
    const auto refused = to_host(gone);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument) << refused.error().to_string();
    EXPECT_EQ(to_host(gpu.card).value_or(0), kBytes);
    EXPECT_TRUE(engine->unregister_memory(gone));
}

TEST_F(CudaMemory, AGpuThatIsUsedOnlyLaterIsFound) {
    auto engine = Engine::create(config_for(nullptr, {})).value();  // with the devices of the process
    std::vector<std::byte> host(kBytes);
    ASSERT_TRUE(engine->register_memory(host.data(), kBytes));
    FakeCuda cuda;
    std::byte* const card = cuda.allocate(kBytes);
    ASSERT_TRUE(engine->register_memory(card, kBytes));
    EXPECT_EQ(engine->memory_kind(card, kBytes), MemoryKind::kCuda);
    EXPECT_EQ(engine->memory_kind(host.data(), kBytes), MemoryKind::kHost);
    EXPECT_EQ(engine->buffers().back().location, "cuda:0");
    const auto bytes = noise(kBytes, 6);
    cuda.write(card, bytes);
    const Block all{.local = card, .remote = address_of(host.data()), .length = kBytes};
    ASSERT_EQ(engine->transfer(engine->segment_name(), mooncake::Direction::kWrite, {&all, 1}, soon()).value_or(0), kBytes);
    EXPECT_EQ(host, bytes);
    engine.reset();
    cuda.free(card);
}

}  // namespace
}  // namespace mooncake
