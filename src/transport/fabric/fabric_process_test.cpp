// SPDX-License-Identifier: Apache-2.0
// Two real processes over libfabric, one of which dies or hangs, or whose links are cut. Links are cut in network namespaces that the
// test makes for itself, where it may.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "transport/fabric/testing/remote_target.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::ChildProcess;
using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::say;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;

constexpr uint64_t kLength = 8 << 20;

/// A target, and our connection to it.
struct Pair : RemoteTarget {
    explicit Pair(bool own_network = false) : RemoteTarget(own_network, kLength) {}
    void open(const std::string& ours, const std::string& theirs) { open(options_for(ours), theirs); }
    void open(const EngineOptions& options, const std::string& theirs) {
        lend(theirs);
        controls.add(*this);
        initiator.emplace(*this, local, options, &controls);
        peer = initiator->peer.get();
    }
    Result<std::unique_ptr<Peer>> connect(Deadline deadline) { return initiator->host.transport().connect(descriptor, deadline); }
    Slice all() const { return {.local = local.data(), .remote = address, .length = kLength, .region = initiator->region}; }
    /// Writes new bytes; false when that failed or the target has others.
    bool write(uint64_t seed) {
        local.fill_random(seed);
        const auto written = transfer(*peer, Direction::kWrite, all());
        if (!written) why = written.error().to_string();
        else if (control.sum(kLength) != sum_of(local.bytes())) why = "wrong data";
        return why.empty();
    }

    TestMemory local{kLength};
    ManyControls controls;
    std::optional<Initiator> initiator;
    Peer* peer = nullptr;
    std::string why;
};

// ---- processes that die and hang

TEST(FabricProcess, ATargetThatIsKilledEndsItsTransfersLongBeforeAnythingStalls) {
    for (int round = 0; round < 5; ++round) {
        Pair pair;
        EngineOptions options = options_for("127.0.0.1");
        options.fabric.stall_timeout = options.fabric.connect_timeout = 10min;
        pair.open(options, "127.0.0.1");
        ASSERT_TRUE(pair.write(1));
        const std::jthread killer([&] { pair.child.signal(SIGKILL); });
        const Deadline deadline = patience();
        Result<uint64_t> moved;
        while ((moved = transfer(*pair.peer, Direction::kWrite, pair.all())) && !deadline.passed()) {}
        const Code code = code_of(moved);
        EXPECT_TRUE(code == Code::kUnavailable || code == Code::kStale) << moved.error().to_string();
        while (pair.peer->usable() && !deadline.passed()) std::this_thread::yield();
        EXPECT_FALSE(pair.peer->usable());
    }
}

/// Time that our threads of that name have spent on a processor.
Duration processor_time_of(const std::string& name) {
    Duration total{};
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string comm;
        uint64_t nanoseconds = 0;
        std::getline(std::ifstream(task.path() / "comm") >> std::ws, comm);
        std::ifstream(task.path() / "schedstat") >> nanoseconds;
        if (comm == name) total += std::chrono::nanoseconds(nanoseconds);
    }
    return total;
}

TEST(FabricProcess, ATargetThatHangsCostsNoProcessor) {
    Pair pair;
    EngineOptions options = options_for("127.0.0.1");
    options.fabric.stall_timeout = 60s;
    pair.open(options, "127.0.0.1");
    ASSERT_TRUE(pair.write(1));
    pair.child.signal(SIGSTOP);
    Completion completion;
    completion.add(1);
    Slice all = pair.all();
    all.completion = &completion;
    pair.peer->submit(Direction::kWrite, std::span(&all, 1), Submit::kLeave);
    EXPECT_FALSE(completion.wait(Deadline::after(500ms))) << "as much as fits into buffers goes, and no more";
    const Duration before = processor_time_of("mc-fabric-0");
    EXPECT_GT(before, 0ns);
    constexpr Duration kTime = 2s;
    EXPECT_FALSE(completion.wait(Deadline::after(kTime)));
    EXPECT_LT(processor_time_of("mc-fabric-0") - before, kTime / 10);
    pair.child.signal(SIGCONT);
    EXPECT_TRUE(completion.wait(patience()));
}

/// Writes to a target while another one, of the same rails, is in trouble.
struct Bystander {
    explicit Bystander(Pair& other) : target(false, kLength) {
        target.lend("127.0.0.1");
        other.controls.add(target);
        auto connected = other.initiator->host.transport().connect(target.descriptor, patience());
        MC_CHECK(connected.has_value());
        peer = std::move(*connected);
        all = {.local = local.data(), .remote = target.address, .length = 1 << 20, .region = other.initiator->host.add(local)};
    }
    /// How many writes fit into that time; -1: one failed.
    int writes_in(Duration time) {
        int count = 0;
        for (const Deadline end = Deadline::after(time); !end.passed(); ++count)
            if (!transfer(*peer, Direction::kWrite, all)) return -1;
        return count;
    }

    RemoteTarget target;
    const TestMemory local{1 << 20};
    std::unique_ptr<Peer> peer;
    Slice all;
};

TEST(FabricProcess, OthersGoOnAtTheirSpeedWhenATargetIsKilledOrHangs) {
    for (const int number : {SIGKILL, SIGSTOP}) {
        double best = 0;
        // A machine that has other things to do makes it slower, but never faster.
        for (int round = 0; round < 5 && best < 0.8; ++round) {
            Pair pair;
            pair.open("127.0.0.1", "127.0.0.1");
            ASSERT_TRUE(pair.write(1));
            Bystander other(pair);
            (void)other.writes_in(100ms);
            const int before = other.writes_in(300ms);
            Completion completion;
            completion.add(8);
            std::vector<Slice> slices(8, pair.all());
            for (Slice& slice : slices) slice.completion = &completion;
            pair.child.signal(number);
            pair.peer->submit(Direction::kWrite, slices, Submit::kLeave);
            const int meanwhile = other.writes_in(300ms);
            ASSERT_GT(before, 0);
            ASSERT_GT(meanwhile, 0) << "a write to the healthy one failed";
            best = std::max(best, static_cast<double>(meanwhile) / before);
            EXPECT_EQ(other.target.control.sum(1 << 20), sum_of(other.local.bytes()));
            pair.child.kill();
            ASSERT_TRUE(pair.peer->wait(completion, patience()));
            EXPECT_FALSE(completion.result());
        }
        EXPECT_GE(best, 0.8) << "signal " << number;
    }
}

TEST(FabricProcess, ATargetThatDiesWhileNothingHappensIsNoticed) {
    Pair pair;
    pair.open("127.0.0.1", "127.0.0.1");
    ASSERT_TRUE(pair.write(1));
    pair.child.kill();
    const Deadline deadline = patience();
    while (pair.peer->usable() && !deadline.passed()) std::this_thread::yield();
    EXPECT_FALSE(pair.peer->usable());
}

TEST(FabricProcess, WhatIsSentToAHungTargetIsInDoubtUntilItAnswers) {
    Pair pair;
    pair.open("127.0.0.1", "127.0.0.1");
    ASSERT_TRUE(pair.write(1));
    pair.child.signal(SIGSTOP);
    Completion completion;
    completion.add(1);
    std::vector<Slice> slices{pair.all()};
    slices[0].completion = &completion;
    pair.local.fill_random(2);
    pair.peer->submit(Direction::kWrite, slices, Submit::kLeave);
    EXPECT_FALSE(pair.peer->wait(completion, Deadline::after(50ms)));

    EXPECT_EQ(pair.peer->cancel(completion, Error(Code::kTimedOut, "too long"), Deadline::after(500ms)), Stopped::kRemoteInDoubt);

    ASSERT_TRUE(completion.done());
    EXPECT_FALSE(completion.result());
    pair.child.signal(SIGCONT);
    EXPECT_EQ(pair.peer->cancel(completion, Error(Code::kTimedOut, "again"), patience()), Stopped::kEverywhere);
    // Nothing of it comes after what is written now.
    ASSERT_TRUE(pair.write(3)) << pair.why;
    const Deadline quiet = Deadline::after(300ms);
    while (!quiet.passed()) ASSERT_EQ(pair.control.sum(kLength), sum_of(pair.local.bytes()));
}

TEST(FabricProcess, WhatAHungTargetSendsLaterDoesNotReachMemoryThatWasGivenBack) {
    for (const bool close : {false, true}) {
        Pair pair;
        pair.open("127.0.0.1", "127.0.0.1");
        ASSERT_TRUE(pair.write(1));
        pair.child.signal(SIGSTOP);
        Completion completion;
        completion.add(1);
        std::vector<Slice> slices{pair.all()};
        slices[0].completion = &completion;
        pair.peer->submit(Direction::kRead, slices, Submit::kLeave);
        const Time start = Clock::now();
        EXPECT_FALSE(pair.peer->wait(completion, Deadline::after(200ms))) << "who hangs answers nothing";
        EXPECT_GE(Clock::now() - start, 200ms);
        if (close) pair.peer->close(Error(Code::kCancelled, "closed"));
        else
            EXPECT_EQ(pair.peer->cancel(completion, Error(Code::kTimedOut, "too long"), patience()), Stopped::kEverywhere)
                << "a read leaves nothing";
        ASSERT_TRUE(completion.wait(patience()));  // told by the rail's thread, maybe a moment after close() returned
        pair.local.fill(std::byte{42});
        pair.child.signal(SIGCONT);
        (void)pair.control.sum(8);  // it runs again
        const Deadline quiet = Deadline::after(300ms);
        while (!quiet.passed()) ASSERT_TRUE(pair.local.all(std::byte{42}));
    }
}

// ---- memory that is gone

/// A target that lends other memory, and takes that away though it is registered.
struct Damaged : Pair {
    static constexpr uint64_t kGone = 1 << 20;

    explicit Damaged(const std::string& how) {
        EngineOptions options = options_for("127.0.0.1");
        options.fabric.stall_timeout = 300ms;  // a read of what is gone is never answered
        open(options, "127.0.0.1");
        gone = control.lend_more(kGone);
        MC_CHECK(move(Direction::kRead, gone, 8).has_value());
        control.take_away(how);
    }
    Result<uint64_t> move(Direction direction, uint64_t remote, uint64_t size) {
        if (!peer->usable()) {
            // As the engine does.
            MC_ASSIGN_OR_RETURN(initiator->peer, connect(patience()));
            peer = initiator->peer.get();
        }
        return transfer(*peer, direction, Slice{.local = local.data(), .remote = remote, .length = size, .region = initiator->region});
    }
    /// On a busy machine a path may stall; but it must get through.
    Result<uint64_t> move_healthy(Direction direction, uint64_t size) {
        auto moved = move(direction, address, size);
        for (const Deadline deadline = patience(); !moved && !deadline.passed();) moved = move(direction, address, size);
        return moved;
    }

    uint64_t gone = 0;
};

TEST(FabricProcess, ReadsOfMemoryThatIsGoneEndNeitherTheTargetNorItsOtherMemory) {
    Damaged pair("unmap");
    // While large answers fill the connection, small ones wait.
    constexpr uint64_t kSmall = 4000, kLarge = 1 << 20;
    std::vector<Completion> completions(64);
    std::vector<Slice> slices;
    for (size_t i = 0; i < completions.size(); ++i) {
        completions[i].add(1);
        const bool large = i % 2 == 0;
        slices.push_back({.local = pair.local.data() + i % 8 * kLarge,
                          .remote = large ? pair.address : pair.gone + i * kSmall,
                          .length = large ? kLarge : kSmall,
                          .completion = &completions[i],
                          .region = pair.initiator->region});
    }
    pair.peer->submit(Direction::kRead, slices, Submit::kLeave);
    for (Completion& completion : completions) ASSERT_TRUE(pair.peer->wait(completion, patience()));
    const auto healthy = pair.move_healthy(Direction::kRead, kLarge);
    ASSERT_TRUE(healthy) << healthy.error().to_string();
    // Who asks now is not even told of it.
    pair.initiator->peer = pair.connect(patience()).value();
    pair.peer = pair.initiator->peer.get();
    EXPECT_EQ(code_of(pair.move(Direction::kRead, pair.gone, kSmall)), Code::kNotRegistered);
}

TEST(FabricProcess, WhereTheProviderReadsNothingAheadMemoryThatIsGoneCostsAnErrorAndNothingElse) {
    // For the target: here libfabric has read its settings already, or nobody minds.
    for (const char* const name : {"FI_TCP_PREFETCH_RBUF_SIZE", "FI_NET_PREFETCH_RBUF_SIZE"}) ::setenv(name, "0", 1);
    for (const char* const how : {"unmap", "forbid", "write-protect"}) {
        Damaged pair(how);
        for (const uint64_t size : {uint64_t{8}, uint64_t{4000}, Damaged::kGone}) {
            for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
                const bool allowed = direction == Direction::kRead && std::string_view(how) == "write-protect";
                if (!allowed) {
                    EXPECT_FALSE(pair.move(direction, pair.gone, size)) << how << " " << size;
                }
                const auto healthy = pair.move_healthy(direction, size);
                ASSERT_TRUE(healthy) << how << " " << size << ": " << healthy.error().to_string();
            }
        }
    }
    for (const char* const name : {"FI_TCP_PREFETCH_RBUF_SIZE", "FI_NET_PREFETCH_RBUF_SIZE"}) ::unsetenv(name);
}

// ---- links that are cut

constexpr int kCuts = 20;

/// Runs in a process of its own, because it leaves the network of the others.
TEST(FabricChild, DISABLED_WritesWhileLinksAreCut) {
    if (::unshare(CLONE_NEWNET) != 0) return say("result skipped");
    Pair pair(true);
    if (!pair.has_network || !make_links(pair.child.pid(), 2) || !limit_link(0, 800) || !limit_link(1, 800)) return say("result skipped");
    pair.open("10.77.0.1,10.77.1.1", "10.77.0.2,10.77.1.2");
    const std::string there = format_text("nsenter -t {} -n ", pair.child.pid());
    std::mt19937_64 random(1);
    uint64_t seed = 1;
    for (int round = 0; round < kCuts; ++round) {
        // The link is in use; also again, after it was cut.
        const Deadline deadline = patience();
        for (const uint64_t before = sent_over("r1"); sent_over("r1") < before + (2 << 20);) {
            if (!pair.write(++seed)) return say(format_text("result {}, before cut {}", pair.why, round));
            if (deadline.passed()) return say(format_text("result the link did not come back after cut {}", round));
        }
        const std::string side = round % 2 == 0 ? "" : there;
        {
            const auto pause = std::chrono::microseconds(random() % 60'000);
            const std::jthread cutter([&] {
                const Time at = Clock::now() + pause;
                while (Clock::now() < at) std::this_thread::yield();
                shell(side + "ip link set r1 down");
            });
            if (!pair.write(++seed)) return say(format_text("result {}, during cut {}", pair.why, round));
        }
        if (!pair.write(++seed)) return say(format_text("result {}, while cut {}", pair.why, round));
        shell(side + "ip link set r1 up");
        for (int i = 0; i < 3; ++i)
            if (!pair.write(++seed)) return say(format_text("result {}, after cut {}", pair.why, round));
    }
    say("result good");
}

/// What such a process of its own says at its end; "skipped" where there can be no networks.
std::string result_of(const std::string& test) {
    if (::geteuid() != 0) return "skipped";
    ChildProcess child("FabricChild.DISABLED_" + test);
    return child.read_line("result ", Deadline::after(240s)).value_or("it ended");
}

TEST(FabricProcess, NoCutLinkCorruptsOrLosesAWrite) {
    const std::string result = result_of("WritesWhileLinksAreCut");
    if (result == "skipped") GTEST_SKIP() << "needs network namespaces";
    EXPECT_EQ(result, "good");
}

TEST(FabricChild, DISABLED_WritesWhileALinkFlaps) {
    if (::unshare(CLONE_NEWNET) != 0) return say("result skipped");
    Pair pair(true);
    if (!pair.has_network || !make_links(pair.child.pid(), 2) || !limit_link(0, 800) || !limit_link(1, 800)) return say("result skipped");
    pair.open("10.77.0.1,10.77.1.1", "10.77.0.2,10.77.1.2");
    std::atomic<bool> over{false};
    uint64_t seed = 1;
    {
        const std::jthread flapper([&] {
            for (int i = 0; i < 40; ++i) {
                ::poll(nullptr, 0, 500);
                shell(format_text("ip link set r1 {}", i % 2 == 0 ? "down" : "up"));
            }
            over = true;
        });
        while (!over)
            if (!pair.write(++seed)) return say(format_text("result {} after {} writes", pair.why, seed));
    }
    for (int i = 0; i < 3; ++i)
        if (!pair.write(++seed)) return say(format_text("result {} afterwards", pair.why));
    say("result good");
}

TEST(FabricProcess, AFlappingLinkCorruptsAndLosesNothing) {
    const std::string result = result_of("WritesWhileALinkFlaps");
    if (result == "skipped") GTEST_SKIP() << "needs network namespaces";
    EXPECT_EQ(result, "good");
}

TEST(FabricChild, DISABLED_WritesWhileConnectionsAreReset) {
    if (::unshare(CLONE_NEWNET) != 0) return say("result skipped");
    Pair pair(true);
    if (!pair.has_network || !make_links(pair.child.pid(), 1) || !limit_link(0, 800)) return say("result skipped");
    pair.open("10.77.0.1", "10.77.0.2");
    if (!pair.write(1)) return say("result " + pair.why);
    // Where the kernel cannot do it, nothing is listed as closed.
    if (!shell("ss -K -t -n -H dst 10.77.0.2 | grep -q .")) return say("result unable");
    for (uint64_t round = 2; round < 30; ++round) {
        const std::jthread killer([&] {
            const Time at = Clock::now() + std::chrono::milliseconds(round % 7 * 10);
            while (Clock::now() < at) std::this_thread::yield();
            shell("ss -K -t -n dst 10.77.0.2 > /dev/null");
        });
        if (!pair.write(round)) return say(format_text("result {} in round {}", pair.why, round));
    }
    say(pair.peer->usable() ? "result good" : "result the peer broke");
}

TEST(FabricProcess, ConnectionsThatAreResetCostNothingButARepetition) {
    const std::string result = result_of("WritesWhileConnectionsAreReset");
    if (result == "skipped") GTEST_SKIP() << "needs network namespaces";
    if (result == "unable") GTEST_SKIP() << "the kernel does not let one reset connections";
    EXPECT_EQ(result, "good");
}

TEST(FabricChild, DISABLED_WritesWithoutAnyLink) {
    if (::unshare(CLONE_NEWNET) != 0) return say("result skipped");
    Pair pair(true);
    if (!pair.has_network || !make_links(pair.child.pid(), 2) || !limit_link(0, 800) || !limit_link(1, 800)) return say("result skipped");
    pair.open("10.77.0.1,10.77.1.1", "10.77.0.2,10.77.1.2");
    if (!pair.write(1)) return say("result " + pair.why);
    shell("ip link set r0 down");
    shell("ip link set r1 down");
    const auto written = transfer(*pair.peer, Direction::kWrite, pair.all());
    if (code_of(written) != Code::kUnavailable) return say("result no error, or one by its deadline, without links");
    if (pair.connect(Deadline::after(1s))) return say("result a connection without links");
    shell("ip link set r0 up");
    shell("ip link set r1 up");
    const Deadline deadline = patience();
    auto connected = pair.connect(Deadline::after(5s));
    while (!connected && !deadline.passed()) connected = pair.connect(Deadline::after(5s));
    if (!connected) return say("result " + connected.error().to_string());
    pair.peer = connected->get();
    say(pair.write(2) && pair.write(3) ? "result good" : "result " + pair.why);
}

TEST(FabricProcess, WithoutAnyLinkThereIsAnErrorUntilTheyAreBack) {
    const std::string result = result_of("WritesWithoutAnyLink");
    if (result == "skipped") GTEST_SKIP() << "needs network namespaces";
    EXPECT_EQ(result, "good");
}

}  // namespace
}  // namespace mooncake::fabric
