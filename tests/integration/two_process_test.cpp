// SPDX-License-Identifier: Apache-2.0
// Two processes, every transport that joins them, both directions, bytes verified. Runs under the sanitizers as well.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <ostream>
#include <random>
#include <sstream>
#include <thread>

#include "engine/engine.h"
#include "metrics/metrics.h"
#include "transport/fabric/api.h"

namespace mooncake {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// A way between two processes: nothing else is allowed.
struct Way {
    std::string name;
    std::string transport;
    std::string protocol = {};
    std::string mr_style = {};
    std::vector<std::string> nodes = {};

    bool is_fabric() const { return transport == "fabric"; }
    friend std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }
};

EngineConfig config_for(const Way& way) {
    EngineConfig config{.local_name = "127.0.0.1", .protocol = way.protocol};
    config.options.transports = {way.transport};
    config.options.fabric.mr_style = way.mr_style;
    config.options.fabric.nodes = way.nodes;
    config.options.fabric.registration_bytes_max = 64 * kMiB;  // so that large transfers cross the ends of registrations
    config.options.fabric.stall_timeout = 60s;
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
    TargetProcess(const Way& way, const SharedRange& memory, uint64_t own_memory = 0) {
        int to_child[2], from_child[2];
        EXPECT_EQ(::pipe(to_child), 0);
        EXPECT_EQ(::pipe(from_child), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(to_child[1]);
            ::close(from_child[0]);
            ::_exit(serve(way, memory, own_memory, to_child[0], from_child[1]));
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

    static int serve(const Way& way, const SharedRange& memory, uint64_t own_memory, int stop, int out) {
        auto engine = Engine::create(config_for(way));
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

class TwoProcesses : public ::testing::TestWithParam<Way> {
protected:
    void SetUp() override {
        if (!GetParam().is_fabric()) return;
        if (const auto library = fabric::load_library(""); !library) GTEST_SKIP() << library.error().to_string();
    }
    void start(uint64_t length, uint64_t own_memory = 0, uint64_t local_length = 0) {
        far = std::make_unique<SharedRange>(length);
        target = std::make_unique<TargetProcess>(GetParam(), *far, own_memory);
        local.resize(local_length != 0 ? local_length : length);
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
            const std::string used = "path=\"" + GetParam().transport + "\"";
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

TEST_P(TwoProcesses, MoveManyScatteredPiecesInOneBatch) {
    // Over libfabric each is an operation of its own.
    const size_t pieces = GetParam().is_fabric() ? 50'000 : 1'000'000;
    constexpr uint64_t kStep = 96, kLength = 64;
    start(pieces * kStep);
    fill(local.data(), local.size(), 4);
    std::vector<uint32_t> here(pieces), there(pieces);
    std::iota(here.begin(), here.end(), 0);
    there = here;
    std::shuffle(here.begin(), here.end(), std::mt19937(5));
    std::shuffle(there.begin(), there.end(), std::mt19937(6));
    std::vector<Block> blocks(pieces);
    for (size_t i = 0; i < pieces; ++i)
        blocks[i] = {.local = local.data() + here[i] * kStep, .remote = remote(far->data() + there[i] * kStep), .length = kLength};
    ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, blocks));
    for (size_t i = 0; i < pieces; ++i) {
        ASSERT_EQ(0, std::memcmp(blocks[i].local, far->data() + there[i] * kStep, kLength)) << i;
        ASSERT_EQ(far->data()[there[i] * kStep + kLength], std::byte{0}) << "the gaps stay untouched";
    }
    fill(far->data(), far->size(), 7);
    const std::vector<std::byte> before = local;
    ASSERT_NO_FATAL_FAILURE(move(Direction::kRead, blocks));
    for (size_t i = 0; i < pieces; ++i) {
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

TEST_P(TwoProcesses, ReachBeyondFourGibibytes) {
    constexpr uint64_t kFour = uint64_t{4} << 30;
    start(kFour + 256 * kMiB, 0, 8 * kMiB);
    for (const uint64_t offset : {kFour - 3 * kMiB, kFour + 200 * kMiB + 1}) {
        fill(local.data(), local.size(), offset);
        const Block block{.local = local.data(), .remote = remote(far->data() + offset), .length = local.size()};
        ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, {&block, 1}));
        ASSERT_EQ(0, std::memcmp(local.data(), far->data() + offset, local.size()));
        fill(far->data() + offset, local.size(), offset + 1);
        ASSERT_NO_FATAL_FAILURE(move(Direction::kRead, {&block, 1}));
        ASSERT_EQ(0, std::memcmp(local.data(), far->data() + offset, local.size()));
    }
}

TEST_P(TwoProcesses, SeeAWriteAsSoonAsItIsComplete) {
    // On one core: where a write counts as complete once it was sent, the other process has not even run yet.
    cpu_set_t before{}, one{};
    ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
        if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    start(4 * kMiB);
    int stale = 0;
    for (int round = 0; round < 1000; ++round) {
        const uint64_t length = round % 10 == 0 ? kMiB : 4096;
        std::memset(local.data(), round % 255 + 1, length);
        const Block block{.local = local.data(), .remote = remote(far->data()), .length = length};
        ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, {&block, 1}));
        stale += std::memcmp(local.data(), far->data(), length) != 0 ? 1 : 0;
    }
    EXPECT_EQ(stale, 0);
    ::sched_setaffinity(0, sizeof before, &before);
}

TEST_P(TwoProcesses, RegisterManyBuffersAndTakeThemBackWhileTheyTalk) {
    start(kMiB);
    const Block block{.local = local.data(), .remote = remote(far->data()), .length = kMiB};
    std::vector<std::vector<std::byte>> buffers(100, std::vector<std::byte>(5000));
    for (uint64_t round = 0; round < 5; ++round) {
        std::vector<Permission> ranges;
        std::vector<void*> addresses;
        std::vector<Block> blocks;
        for (size_t i = 0; i < buffers.size(); ++i) {
            ranges.push_back({.range = {remote(buffers[i].data()), buffers[i].size()}});
            addresses.push_back(buffers[i].data());
            blocks.push_back({.local = buffers[i].data(), .remote = remote(far->data() + i * 5000), .length = 5000});
        }
        ASSERT_TRUE(engine->register_memory_batch(ranges));
        fill(far->data(), far->size(), round);
        ASSERT_NO_FATAL_FAILURE(move(Direction::kRead, blocks));
        for (size_t i = 0; i < buffers.size(); ++i) ASSERT_EQ(0, std::memcmp(buffers[i].data(), far->data() + i * 5000, 5000));
        ASSERT_TRUE(engine->unregister_memory_batch(addresses));
        fill(local.data(), local.size(), round + 100);
        ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, {&block, 1}));
        ASSERT_EQ(0, std::memcmp(local.data(), far->data(), kMiB));
    }
}

TEST_P(TwoProcesses, NeedNoFurtherConnectionAfterAWarmUp) {
    if (!GetParam().is_fabric()) GTEST_SKIP() << "connects when it is used";
    start(8 * kMiB);
    const auto counted = [&](std::string_view metric) {
        uint64_t sum = 0;
        std::istringstream lines(engine->metrics().to_prometheus_text());
        for (std::string line; std::getline(lines, line);)
            if (line.starts_with(metric)) sum += std::stoull(line.substr(line.rfind(' ') + 1));
        return sum;
    };
    ASSERT_TRUE(engine->warm_up(target->name(), Deadline::after(60s)));
    const uint64_t connecting = counted("mooncake_fabric_again_total"), operations = counted("mooncake_fabric_operations_total");
    EXPECT_GT(operations, 0u);
    ASSERT_TRUE(engine->warm_up(target->name(), Deadline::after(60s)));
    EXPECT_EQ(counted("mooncake_fabric_operations_total"), operations) << "the second one did something";
    const Block block{.local = local.data(), .remote = remote(far->data()), .length = 4096};
    ASSERT_NO_FATAL_FAILURE(move(Direction::kWrite, {&block, 1}));
    EXPECT_EQ(counted("mooncake_fabric_again_total"), connecting) << "the first transfer had to wait for a connection";
}

TEST_P(TwoProcesses, MayBeOne) {
    if (!GetParam().is_fabric()) GTEST_SKIP() << "tested with the engine";
    start(kMiB);
    std::vector<std::byte> other(kMiB);
    ASSERT_TRUE(engine->register_memory(other.data(), other.size()));
    fill(local.data(), local.size(), 1);
    const Block block{.local = local.data(), .remote = remote(other.data()), .length = kMiB};
    const auto moved = engine->transfer(engine->segment_name(), Direction::kWrite, {&block, 1}, engine->transfer_deadline(kMiB));
    ASSERT_TRUE(moved) << moved.error().to_string();
    EXPECT_EQ(other, local);
}

INSTANTIATE_TEST_SUITE_P(Paths, TwoProcesses,
                         ::testing::Values(Way{"tcp", "tcp"}, Way{"shm", "shm"},
                                           Way{"fabric_offset", "fabric", "fabric:tcp", "offset", {"127.0.0.1", "127.0.0.2"}},
                                           Way{"fabric_basic", "fabric", "fabric:tcp", "basic", {"127.0.0.1"}},
                                           Way{"fabric_shm", "fabric", "fabric:shm"}),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace mooncake
