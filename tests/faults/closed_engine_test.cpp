// SPDX-License-Identifier: Apache-2.0
// close() is a fence: peers in other processes go on writing, and nothing of it lands any more.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ostream>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "transport/fabric/api.h"

namespace mooncake {
namespace {

constexpr uint64_t kLength = 8 << 20;
constexpr std::byte kPoison{0xa5};

/// A way between two processes: nothing else is allowed.
struct Way {
    std::string transport;
    std::string protocol = {};
    friend std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.transport; }
};

EngineConfig config_for(const Way& way) {
    EngineConfig config{.local_name = "127.0.0.1", .protocol = way.protocol};
    config.options.transports = {way.transport};
    config.options.fabric.nodes = {"127.0.0.1"};
    config.options.log.level = LogLevel::kError;
    return config;
}

bool all_poison(const std::byte* memory) { return memory[0] == kPoison && std::memcmp(memory, memory + 1, kLength - 1) == 0; }

void poison(std::byte* memory) { std::memset(memory, static_cast<int>(kPoison), kLength); }

/// A process that lends memory, closes its engine on demand and stays, with its memory poisoned. Must be made while this process has only
/// one thread.
class Lender {
public:
    explicit Lender(const Way& way) {
        EXPECT_EQ(::pipe(to_child_), 0);
        EXPECT_EQ(::pipe(from_child_), 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::close(to_child_[1]);
            ::close(from_child_[0]);
            ::_exit(serve(way, to_child_[0], from_child_[1]));
        }
        ::close(to_child_[0]);
        ::close(from_child_[1]);
        EXPECT_EQ(::read(from_child_[0], &hello_, sizeof hello_), static_cast<ssize_t>(sizeof hello_));
    }
    ~Lender() {
        ::close(to_child_[1]);
        ::close(from_child_[0]);
        int status = 0;
        ::waitpid(pid_, &status, 0);
        EXPECT_EQ(status, 0) << "the lender ended badly";
    }
    Lender(const Lender&) = delete;
    Lender& operator=(const Lender&) = delete;

    std::string name() const { return "127.0.0.1:" + std::to_string(hello_.port); }
    uint64_t registered() const { return hello_.registered; }
    uint64_t allocated() const { return hello_.allocated; }
    /// 'c': closes and poisons; 'v': is all of it poison? 'd': destroys its engine.
    bool ask(char what) const {
        EXPECT_EQ(::write(to_child_[1], &what, 1), 1);
        char answer = 0;
        EXPECT_EQ(::read(from_child_[0], &answer, 1), 1);
        return answer == 'y';
    }

private:
    struct Hello {
        uint16_t port = 0;
        uint64_t registered = 0, allocated = 0;
    };

    static int serve(const Way& way, int in, int out) {
        auto engine = Engine::create(config_for(way));
        auto* const plain = static_cast<std::byte*>(::mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (!engine || !(*engine)->register_memory(plain, kLength)) return 1;
        auto* const own = static_cast<std::byte*>((*engine)->allocate_memory(kLength).value_or(nullptr));
        const Hello hello{
            .port = (*engine)->rpc_port(), .registered = reinterpret_cast<uint64_t>(plain), .allocated = reinterpret_cast<uint64_t>(own)};
        if (::write(out, &hello, sizeof hello) != sizeof hello) return 2;
        char command = 0;
        while (::read(in, &command, 1) == 1) {
            bool yes = true;
            if (command == 'c') yes = (*engine)->close().has_value();
            if (command == 'd') engine->reset();
            if (command == 'c' || command == 'd') poison(plain);
            if (command == 'c') poison(own);
            if (command == 'v') yes = all_poison(plain) && (*engine == nullptr || all_poison(own));
            const char answer = yes ? 'y' : 'n';
            if (::write(out, &answer, 1) != 1) return 3;
        }
        engine->reset();
        return 0;
    }

    int to_child_[2] = {}, from_child_[2] = {};
    pid_t pid_ = -1;
    Hello hello_;
};

class ClosedEngine : public ::testing::TestWithParam<Way> {
protected:
    void SetUp() override {
        if (GetParam().transport != "fabric") return;
        if (const auto library = fabric::load_library(""); !library) GTEST_SKIP() << library.error().to_string();
    }
    /// Writes to both memories of the lender without a pause, while it ends.
    void write_while(const Lender& lender, char end) {
        auto engine = Engine::create(config_for(GetParam())).value();
        std::vector<std::byte> local(kLength, std::byte{7});
        ASSERT_TRUE(engine->register_memory(local.data(), local.size()));
        std::atomic<int> moved{0}, failed{0};
        std::atomic<bool> over{false};
        std::vector<std::jthread> writers;
        for (uint64_t t = 0; t < 4; ++t) {
            writers.emplace_back([&, t] {
                // Small ones, which a target reads ahead, and large ones, which are under way for a while.
                const uint64_t length = t < 2 ? 512 : kLength / 2;
                const Block block{.local = local.data(),
                                  .remote = (t % 2 == 0 ? lender.registered() : lender.allocated()) + t / 2 * (kLength / 2),
                                  .length = length};
                while (!over.load()) {
                    const auto done = engine->transfer(lender.name(), Direction::kWrite, {&block, 1}, Deadline::after(5s));
                    ++(done ? moved : failed);
                }
            });
        }
        while (moved.load() < 40 && failed.load() == 0) std::this_thread::yield();
        EXPECT_EQ(failed, 0);

        EXPECT_TRUE(lender.ask(end));

        const int before = failed.load();
        while (failed.load() < before + 20) std::this_thread::yield();
        over = true;
        writers.clear();
        EXPECT_TRUE(lender.ask('v')) << "a byte landed after the end";
        const Block block{.local = local.data(), .remote = lender.registered(), .length = 100};
        EXPECT_FALSE(engine->transfer(lender.name(), Direction::kRead, {&block, 1}, Deadline::after(5s))) << "nor can it be read";
    }
};

TEST_P(ClosedEngine, IsNotWrittenToAnyMore) {
    const Lender lender(GetParam());
    write_while(lender, 'c');
}

TEST_P(ClosedEngine, NeitherIsOneThatWasDestroyed) {
    for (int round = 0; round < 3; ++round) {
        const Lender lender(GetParam());
        write_while(lender, 'd');
    }
}

INSTANTIATE_TEST_SUITE_P(Over, ClosedEngine,
                         ::testing::Values(Way{.transport = "tcp"}, Way{.transport = "shm"},
                                           Way{.transport = "fabric", .protocol = "fabric:tcp"}),
                         [](const auto& one) { return one.param.transport; });

TEST(ClosedEngineItself, CopiesNothingWithinItsOwnMemoryAnyMore) {
    auto engine = Engine::create(config_for({.transport = "self"})).value();
    std::vector<std::byte> memory(2 * kLength);
    ASSERT_TRUE(engine->register_memory(memory.data(), memory.size()));
    std::atomic<int> moved{0};
    std::vector<std::jthread> writers;
    for (uint64_t t = 0; t < 4; ++t) {
        writers.emplace_back([&, t] {
            const Block block{.local = memory.data() + kLength,
                              .remote = reinterpret_cast<uint64_t>(memory.data()) + t * (kLength / 4),
                              .length = t < 2 ? 512 : kLength / 4};
            while (engine->transfer(engine->segment_name(), Direction::kWrite, {&block, 1}, Deadline::after(60s))) ++moved;
        });
    }
    while (moved.load() < 20) std::this_thread::yield();
    ASSERT_TRUE(engine->close());
    poison(memory.data());
    writers.clear();
    EXPECT_TRUE(all_poison(memory.data()));
    EXPECT_EQ(engine->unregister_memory(memory.data()).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace mooncake
