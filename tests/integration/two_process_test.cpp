// SPDX-License-Identifier: Apache-2.0
// Two processes, every transport that joins them, both directions, bytes verified. Runs under the sanitizers as well.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "metrics/metrics.h"

namespace mooncake {
namespace {

constexpr uint64_t kMiB = 1 << 20;

EngineConfig config_for(const std::string& transport) {
    EngineConfig config{.local_name = "127.0.0.1"};
    config.options.transports = {transport};
    config.options.transfer_timeout = 120s;  // sanitizers are slow
    config.options.log.level = LogLevel::kWarning;
    return config;
}

/// Memory that both processes see, so that the test can look at the other side without asking it.
class SharedRange {
public:
    explicit SharedRange(uint64_t length)
        : length_(length),
          address_(static_cast<std::byte*>(::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
    ~SharedRange() { ::munmap(address_, length_); }
    SharedRange(const SharedRange&) = delete;
    SharedRange& operator=(const SharedRange&) = delete;
    std::byte* data() const { return address_; }
    uint64_t size() const { return length_; }

private:
    const uint64_t length_;
    std::byte* const address_;
};

/// A child process that lends memory until we close its pipe. Must be made while this process has only one thread.
class TargetProcess {
public:
    TargetProcess(const std::string& transport, const SharedRange& memory, uint64_t own_memory = 0) {
        int to_child[2], from_child[2];
        EXPECT_EQ(::pipe(to_child), 0);
        EXPECT_EQ(::pipe(from_child), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(to_child[1]);
            ::close(from_child[0]);
            ::_exit(serve(transport, memory, own_memory, to_child[0], from_child[1]));
        }
        ::close(to_child[0]);
        ::close(from_child[1]);
        stop_ = to_child[1];
        EXPECT_EQ(::read(from_child[0], &hello_, sizeof hello_), static_cast<ssize_t>(sizeof hello_));
        ::close(from_child[0]);
    }
    ~TargetProcess() {
        ::close(stop_);
        int status = 0;
        ::waitpid(pid_, &status, 0);
        EXPECT_EQ(status, 0) << "the target process ended badly";
    }
    TargetProcess(const TargetProcess&) = delete;
    TargetProcess& operator=(const TargetProcess&) = delete;

    std::string name() const { return "127.0.0.1:" + std::to_string(hello_.port); }
    uint64_t own_memory() const { return hello_.own_memory; }

private:
    struct Hello {
        uint16_t port = 0;
        uint64_t own_memory = 0;
    };

    static int serve(const std::string& transport, const SharedRange& memory, uint64_t own_memory, int stop, int out) {
        auto engine = Engine::create(config_for(transport));
        if (!engine || !(*engine)->register_memory(memory.data(), memory.size())) return 1;
        Hello hello{.port = (*engine)->rpc_port()};
        if (own_memory > 0) hello.own_memory = reinterpret_cast<uint64_t>((*engine)->allocate_memory(own_memory).value_or(nullptr));
        if (::write(out, &hello, sizeof hello) != sizeof hello) return 2;
        char byte = 0;
        while (::read(stop, &byte, 1) > 0) {}
        engine->reset();
        return 0;
    }

    pid_t pid_ = -1;
    int stop_ = -1;
    Hello hello_;
};

void fill(std::byte* memory, uint64_t length, uint64_t seed) {
    std::mt19937_64 noise(seed);
    uint64_t i = 0;
    for (; i + 8 <= length; i += 8) {
        const uint64_t word = noise();
        std::memcpy(memory + i, &word, 8);
    }
    for (; i < length; ++i) memory[i] = static_cast<std::byte>(noise());
}

uint64_t remote(const std::byte* address) { return reinterpret_cast<uint64_t>(address); }

class TwoProcesses : public ::testing::TestWithParam<const char*> {
protected:
    void start(uint64_t length, uint64_t own_memory = 0) {
        far = std::make_unique<SharedRange>(length);
        target = std::make_unique<TargetProcess>(GetParam(), *far, own_memory);
        local.resize(length);
        auto created = Engine::create(config_for(GetParam()));
        ASSERT_TRUE(created) << created.error().to_string();
        engine = std::move(*created);
        ASSERT_TRUE(engine->register_memory(local.data(), local.size()));
    }
    void move(Direction direction, std::span<const Block> blocks) {
        uint64_t bytes = 0;
        for (const Block& block : blocks) bytes += block.length;
        const auto moved = engine->transfer(target->name(), direction, blocks, engine->transfer_deadline(bytes));
        ASSERT_TRUE(moved) << moved.error().to_string();
        EXPECT_EQ(*moved, bytes);
    }
    void TearDown() override {
        if (engine && !HasFailure()) {
            const std::string used = std::string("path=\"") + GetParam() + "\"";
            EXPECT_NE(engine->metrics().to_prometheus_text().find(used), std::string::npos) << "the path taken is in the metrics";
        }
        engine.reset();
        target.reset();
    }

    std::unique_ptr<SharedRange> far;
    std::unique_ptr<TargetProcess> target;
    std::vector<std::byte> local;
    std::unique_ptr<Engine> engine;
};

TEST_P(TwoProcesses, MoveAnySizeFromOneByteToOneGibibyte) {
    constexpr uint64_t kLargest = 1024 * kMiB;
    start(kLargest);
    std::mt19937_64 random(1);
    std::vector<uint64_t> sizes = {1, 2, 3, 7, 63, 64, 65, 4095, 4096, 4097, 65535, 65537, kMiB - 1, kMiB, kMiB + 1, 37 * kMiB + 11};
    for (int i = 0; i < 40; ++i) sizes.push_back(1 + random() % (uint64_t{1} << (random() % 26)));
    fill(local.data(), 64 * kMiB, 2);
    for (const uint64_t size : sizes) {
        const uint64_t here = random() % (64 * kMiB - size + 1), there = random() % (kLargest - size + 1);
        const Block block{.local = local.data() + here, .remote = remote(far->data() + there), .length = size};
        ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, {&block, 1})) << size;
        ASSERT_EQ(0, std::memcmp(block.local, far->data() + there, size)) << size;
        fill(far->data() + there, size, size);
        ASSERT_NO_FATAL_FAILURE(move(Direction::kRead, {&block, 1})) << size;
        ASSERT_EQ(0, std::memcmp(block.local, far->data() + there, size)) << size;
    }
    fill(local.data(), kLargest, 3);
    const Block all{.local = local.data(), .remote = remote(far->data()), .length = kLargest};
    ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, {&all, 1}));
    ASSERT_EQ(0, std::memcmp(local.data(), far->data(), kLargest));
    std::memset(local.data(), 0, kLargest);
    ASSERT_NO_FATAL_FAILURE(move(Direction::kRead, {&all, 1}));
    ASSERT_EQ(0, std::memcmp(local.data(), far->data(), kLargest));
}

TEST_P(TwoProcesses, MoveAMillionScatteredPiecesInOneBatch) {
    constexpr size_t kPieces = 1'000'000;
    constexpr uint64_t kStep = 96, kLength = 64;
    start(kPieces * kStep);
    fill(local.data(), local.size(), 4);
    std::vector<uint32_t> here(kPieces), there(kPieces);
    std::iota(here.begin(), here.end(), 0);
    there = here;
    std::shuffle(here.begin(), here.end(), std::mt19937(5));
    std::shuffle(there.begin(), there.end(), std::mt19937(6));
    std::vector<Block> blocks(kPieces);
    for (size_t i = 0; i < kPieces; ++i)
        blocks[i] = {.local = local.data() + here[i] * kStep, .remote = remote(far->data() + there[i] * kStep), .length = kLength};
    ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, blocks));
    for (size_t i = 0; i < kPieces; ++i) {
        ASSERT_EQ(0, std::memcmp(blocks[i].local, far->data() + there[i] * kStep, kLength)) << i;
        ASSERT_EQ(far->data()[there[i] * kStep + kLength], std::byte{0}) << "the gaps stay untouched";
    }
    fill(far->data(), far->size(), 7);
    const std::vector<std::byte> before = local;
    ASSERT_NO_FATAL_FAILURE(move(Direction::kRead, blocks));
    for (size_t i = 0; i < kPieces; ++i) {
        ASSERT_EQ(0, std::memcmp(blocks[i].local, far->data() + there[i] * kStep, kLength)) << i;
        ASSERT_EQ(0, std::memcmp(blocks[i].local + kLength, &before[here[i] * kStep + kLength], kStep - kLength))
            << "the gaps stay untouched";
    }
}

TEST_P(TwoProcesses, ServeEightThreadsAtOnce) {
    constexpr uint64_t kShare = 8 * kMiB;
    start(8 * kShare);
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < 8; ++t) {
        threads.emplace_back([this, t] {
            std::mt19937_64 random(t);
            std::byte* const mine = local.data() + t * kShare;
            std::byte* const theirs = far->data() + t * kShare;
            for (int round = 0; round < 30; ++round) {
                std::vector<Block> blocks;
                for (uint64_t at = 0; at + 70'000 < kShare && blocks.size() < 200; at += 70'000)
                    blocks.push_back({.local = mine + at, .remote = remote(theirs + at), .length = 1 + random() % 69'999});
                std::shuffle(blocks.begin(), blocks.end(), random);
                const bool write = round % 2 == 0;
                fill(write ? mine : theirs, kShare, random());
                move(write ? Direction::kWrite : Direction::kRead, blocks);
                for (const Block& block : blocks) ASSERT_EQ(0, std::memcmp(block.local, theirs + (block.local - mine), block.length));
            }
        });
    }
}

TEST_P(TwoProcesses, UseMemoryThatTheEngineAllocated) {
    constexpr uint64_t kLength = 32 * kMiB;
    start(kMiB, kLength);
    ASSERT_NE(target->own_memory(), 0u);
    auto* const mine = static_cast<std::byte*>(engine->allocate_memory(kLength).value());
    auto* const back = static_cast<std::byte*>(engine->allocate_memory(kLength).value());
    fill(mine, kLength, 8);
    const Block out{.local = mine, .remote = target->own_memory(), .length = kLength},
        in{.local = back, .remote = target->own_memory(), .length = kLength};
    for (int i = 0; i < 3; ++i) {  // the peer's memory is mapped in the background: before and after
        ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, {&out, 1}));
        std::memset(back, 0, kLength);
        ASSERT_NO_FATAL_FAILURE(move(Direction::kRead, {&in, 1}));
        ASSERT_EQ(0, std::memcmp(mine, back, kLength));
    }
}

INSTANTIATE_TEST_SUITE_P(Paths, TwoProcesses, ::testing::Values("tcp", "shm"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace mooncake
