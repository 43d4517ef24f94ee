// SPDX-License-Identifier: Apache-2.0
// One allocation of one call is refused, each in turn: the call may fail, and everything after it works.
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <optional>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "metrics/metrics.h"
#include "transport/testing/no_memory.h"

namespace mooncake {
namespace {

using testing::kCannotFailNew;
using testing::NoMemoryHere;

constexpr int kAllocationsMax = 10'000;

Deadline soon() { return Deadline::after(60s); }

Result<std::unique_ptr<Engine>> try_engine(const std::string& transport = "tcp") {
    EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
    config.options.transports = {transport};
    config.options.tcp_lanes = 1;
    config.options.tcp_io_threads = 1;
    return Engine::create(std::move(config));
}

/// What the call did without the n-th of its allocations: nothing when it threw.
template <typename Call>
auto without_one(int spared, bool& refused, const Call& call) {
    std::optional<decltype(call())> answer;
    const NoMemoryHere none(spared, 1);
    try {
        answer.emplace(call());
    } catch (const std::bad_alloc&) {}
    refused = NoMemoryHere::refused();
    return answer;
}

/// Two engines, and memory of each.
struct Pair {
    explicit Pair(const std::string& transport = "tcp") : ours(try_engine(transport).value()), theirs(try_engine(transport).value()) {
        MC_CHECK(ours->register_memory(local.data(), local.size()));
        MC_CHECK(theirs->register_memory(far.data(), far.size()));
    }
    Result<uint64_t> write() { return ours->transfer(theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()); }

    std::vector<std::byte> local = std::vector<std::byte>(4096, std::byte{1}), far = std::vector<std::byte>(4096);
    std::unique_ptr<Engine> ours, theirs;
    const Block block{.local = local.data(), .remote = reinterpret_cast<uint64_t>(far.data()), .length = 4096};
};

class OneRefusal : public ::testing::TestWithParam<std::string> {
protected:
    void SetUp() override {
        if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    }
};

TEST_P(OneRefusal, AnEngineIsMadeOrNot) {
    bool refused = true;
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, kAllocationsMax);
        (void)without_one(spared, refused, [] { return try_engine(GetParam()); });
    }
    EXPECT_TRUE(try_engine(GetParam()));
}

TEST_P(OneRefusal, APeerThatCouldNotBeReachedForItIsReachedTheNextTime) {
    bool refused = true;
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, kAllocationsMax);
        Pair pair(GetParam());
        const auto moved = without_one(spared, refused, [&] { return pair.write(); });
        // For a moment it may be remembered that this peer could not be reached.
        Result<uint64_t> again = pair.write();
        for (const Deadline end = soon(); !again && !end.passed();) again = pair.write();
        ASSERT_TRUE(again) << "without allocation " << spared << ": " << again.error().to_string();
        ASSERT_EQ(pair.far, pair.local);
        ASSERT_TRUE(pair.ours->close()) << spared;
    }
}

TEST_P(OneRefusal, ACloseThatWasBrokenOffIsFinishedByTheNext) {
    bool refused = true;
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, kAllocationsMax);
        Pair pair(GetParam());
        ASSERT_TRUE(pair.write());
        const auto closed = without_one(spared, refused, [&] { return pair.theirs->close(); });
        if (!closed || !*closed) {
            ASSERT_TRUE(pair.theirs->close()) << spared;
        }
        std::fill(pair.far.begin(), pair.far.end(), std::byte{});
        ASSERT_FALSE(pair.write()) << "without allocation " << spared << ", bytes land after close()";
        ASSERT_EQ(pair.far[0], std::byte{}) << spared;
        // The one with the connections can be destroyed as it is.
        ASSERT_TRUE(pair.ours->register_memory(pair.far.data(), 64));
        bool other_refused = false;
        (void)without_one(spared, other_refused, [&] {
            pair.ours.reset();
            return true;
        });
        refused = refused || other_refused;
    }
}

TEST(ThreadPoolOneRefusal, AKeyWhoseTaskFoundNoPlaceIsServedTheNextTime) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    bool refused = true;
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, kAllocationsMax);
        std::latch done(1);
        ThreadPool pool({.name = "test", .threads_max = 2});
        (void)without_one(spared, refused, [&] { return pool.post([] {}, 7).has_value(); });
        ASSERT_TRUE(pool.post([&] { done.count_down(); }, 7)) << spared;
        done.wait();
    }
}

TEST_P(OneRefusal, MetricsAreGivenAsAWholeOrNotAtAll) {
    const auto engine = try_engine(GetParam()).value();
    const std::string whole = engine->metrics().to_prometheus_text();
    bool refused = true;
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, kAllocationsMax);
        const auto text = without_one(spared, refused, [&] { return engine->metrics().to_prometheus_text(); });
        if (text) {
            ASSERT_EQ(text->size(), whole.size()) << spared;
        }
    }
}

TEST_P(OneRefusal, MemoryIsRegisteredOrNot) {
    Pair pair(GetParam());
    ASSERT_TRUE(pair.write());
    bool refused = true;
    std::vector<std::byte> more(4096);
    const Block block{.local = pair.local.data(), .remote = reinterpret_cast<uint64_t>(more.data()), .length = 4096};
    for (int spared = 0; refused; ++spared) {
        ASSERT_LT(spared, kAllocationsMax);
        const auto registered = without_one(spared, refused, [&] { return pair.theirs->register_memory(more.data(), more.size()); });
        const bool there = registered && *registered;
        ASSERT_EQ(pair.ours->transfer(pair.theirs->segment_name(), Direction::kWrite, {&block, 1}, soon()).has_value(), there) << spared;
        if (!there) {
            ASSERT_TRUE(pair.theirs->register_memory(more.data(), more.size())) << spared;
        }
        ASSERT_TRUE(pair.theirs->unregister_memory(more.data())) << spared;
    }
}

INSTANTIATE_TEST_SUITE_P(Transports, OneRefusal, ::testing::Values("tcp", "shm"), [](const auto& one) { return one.param; });

}  // namespace
}  // namespace mooncake
