// SPDX-License-Identifier: Apache-2.0
// Two real processes over libfabric, one of which dies or hangs, or whose links are cut. Links are cut in network namespaces that the
// test makes for itself, where it may.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "transport/fabric/fabric.h"
#include "transport/testing/child_process.h"
#include "transport/testing/conformance.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::ChildProcess;
using mooncake::testing::code_of;
using mooncake::testing::patience;
using mooncake::testing::read_command;
using mooncake::testing::say;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;
using mooncake::testing::TransportHost;

constexpr uint64_t kLength = 8 << 20;

std::string to_hex(std::span<const std::byte> bytes) {
    std::string text;
    for (const std::byte byte : bytes) text += format_text("{:02x}", static_cast<unsigned>(byte));
    return text;
}

std::vector<std::byte> from_hex(const std::string& text) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i + 1 < text.size(); i += 2) bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
    return bytes;
}

uint64_t sum_of(const TestMemory& memory) {
    uint64_t sum = 14695981039346656037u;
    for (uint64_t i = 0; i < memory.length(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, memory.data() + i, 8);
        sum = (sum ^ word) * 1099511628211u;
    }
    return sum;
}

EngineOptions options_for(const std::string& nodes) {
    EngineOptions options;
    options.protocol = "fabric:tcp";
    options.fabric.nodes = split_list(nodes);
    options.fabric.stall_timeout = 500ms;
    return options;
}

Result<std::unique_ptr<Transport>> make(const TransportContext& context) { return make_fabric_transport(context); }

// ---- what the target's process does

TEST(FabricChild, DISABLED_LendsMemory) {
    if (read_command() == "own network" && ::unshare(CLONE_NEWNET) != 0) return say("network none");
    say("network made");
    TransportHost host(make, options_for(read_command()));
    const TestMemory memory(kLength);
    host.add(memory);
    const SegmentDescriptor descriptor = host.describe();
    say(format_text("offer {} {} {}", descriptor.incarnation.to_string(), memory.address(),
                    to_hex(std::as_bytes(std::span(descriptor.endpoints.at("fabric"))))));
    for (;;) {
        std::istringstream command(read_command());
        std::string what, number, bytes;
        command >> what >> number >> bytes;
        if (what == "sum") {
            say(format_text("sum {}", sum_of(memory)));
            continue;
        }
        const auto answer = host.control().call(descriptor, "fabric", from_hex(bytes), patience());
        say(format_text("answer {} {} {}", number, static_cast<int>(code_of(answer)), answer ? to_hex(*answer) : "-"));
    }
}

/// The control plane to such a process: lines of its input and output.
class LineControl final : public ControlPlane {
public:
    explicit LineControl(ChildProcess& child) : child_(child) { ::signal(SIGPIPE, SIG_IGN); }
    void serve(std::string, Handler) override {}
    Result<Bytes> call(const SegmentDescriptor&, const std::string&, Bytes request, Deadline deadline) override {
        Lock lock(mutex_);
        const uint64_t number = ++last_;
        if (!child_.try_send_line(format_text("call {} {}", number, to_hex(request))))
            return fail(Code::kUnavailable, "the child has ended");
        MC_ASSIGN_OR_RETURN(const std::string answer, child_.read_line(format_text("answer {} ", number), deadline));
        const size_t space = answer.find(' ');
        const auto code = static_cast<Code>(std::stoi(answer.substr(0, space)));
        if (code != Code::kOk) return fail(code, "the child says no");
        return from_hex(answer.substr(space + 1));
    }
    uint64_t sum() {
        Lock lock(mutex_);
        child_.send_line("sum");
        return std::stoull(child_.read_line("sum ", patience()).value());
    }

private:
    ChildProcess& child_;
    Mutex mutex_;
    uint64_t last_ MC_GUARDED_BY(mutex_) = 0;
};

/// A target in another process, and our connection to it.
struct Pair {
    explicit Pair(const std::string& network) : child("FabricChild.DISABLED_LendsMemory") {
        child.send_line(network);
        has_network = child.read_line("network ", patience()).value_or("none") == "made";
    }
    void open(const std::string& ours, const std::string& theirs) {
        child.send_line(theirs);
        std::istringstream offer(child.read_line("offer ", patience()).value());
        std::string incarnation, endpoint;
        offer >> incarnation >> address >> endpoint;
        const auto bytes = from_hex(endpoint);
        SegmentDescriptor descriptor{.name = "child", .incarnation = Incarnation::parse(incarnation).value()};
        descriptor.endpoints["fabric"] = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        host.emplace(
            [&](const TransportContext& context) {
                return make_fabric_transport(
                    {.incarnation = context.incarnation, .options = context.options, .access = context.access, .control = control});
            },
            options_for(ours));
        region = host->add(local);
        auto connected = host->transport().connect(descriptor, patience());
        MC_CHECK(connected.has_value());
        peer = std::move(*connected);
    }
    Slice all() const { return {.local = local.data(), .remote = address, .length = kLength, .region = region}; }
    /// Writes new bytes; false when that failed or the target has others.
    bool write(uint64_t seed) {
        local.fill_random(seed);
        const auto written = transfer(*peer, Direction::kWrite, all());
        if (!written) why = written.error().to_string();
        else if (control.sum() != sum_of(local)) why = "wrong data";
        return why.empty();
    }

    ChildProcess child;
    bool has_network = false;
    LineControl control{child};
    TestMemory local{kLength};
    uint64_t address = 0;
    std::optional<TransportHost> host;
    const MemoryRegion* region = nullptr;
    std::unique_ptr<Peer> peer;
    std::string why;
};

// ---- processes that die and hang

TEST(FabricProcess, ATargetThatIsKilledEndsItsTransfersSoon) {
    for (int round = 0; round < 5; ++round) {
        Pair pair("same network");
        pair.open("127.0.0.1", "127.0.0.1");
        ASSERT_TRUE(pair.write(1));
        std::jthread killer([&] { pair.child.signal(SIGKILL); });
        const Deadline deadline = patience();
        Result<uint64_t> moved;
        while ((moved = transfer(*pair.peer, Direction::kWrite, pair.all())) && !deadline.passed()) {}
        const Code code = code_of(moved);
        EXPECT_TRUE(code == Code::kUnavailable || code == Code::kStale) << moved.error().to_string();
        while (pair.peer->usable() && !deadline.passed()) std::this_thread::yield();
        EXPECT_FALSE(pair.peer->usable());
    }
}

TEST(FabricProcess, ATargetThatDiesWhileNothingHappensIsNoticed) {
    Pair pair("same network");
    pair.open("127.0.0.1", "127.0.0.1");
    ASSERT_TRUE(pair.write(1));
    pair.child.kill();
    const Deadline deadline = patience();
    while (pair.peer->usable() && !deadline.passed()) std::this_thread::yield();
    EXPECT_FALSE(pair.peer->usable());
}

TEST(FabricProcess, WhatIsSentToAHungTargetIsInDoubtUntilItAnswers) {
    Pair pair("same network");
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
}

// ---- links that are cut

bool shell(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

/// Bytes; in the network of this process, which sysfs would not show.
uint64_t sent_over(const std::string& link) {
    std::ifstream file("/proc/self/net/dev");
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(link + ":");
        if (colon == std::string::npos) continue;
        std::istringstream numbers(line.substr(colon + link.size() + 1));
        uint64_t number = 0;
        for (int i = 0; i < 9; ++i) numbers >> number;  // eight of what was received come first
        return number;
    }
    return 0;
}

/// Links to a process in another network, with the speed of a modest NIC each.
bool make_links(pid_t pid, int count) {
    const std::string there = format_text("nsenter -t {} -n ", pid);
    for (int i = 0; i < count; ++i) {
        const bool made = shell(format_text("ip link add r{} type veth peer name r{} netns {}", i, i, pid)) &&
                          shell(format_text("ip addr add 10.77.{}.1/24 dev r{}", i, i)) &&
                          shell(there + format_text("ip addr add 10.77.{}.2/24 dev r{}", i, i)) &&
                          shell(format_text("ip link set r{} up", i)) && shell(there + format_text("ip link set r{} up", i)) &&
                          shell(format_text("tc qdisc add dev r{} root tbf rate 800mbit burst 256k latency 50ms", i));
        if (!made) return false;
    }
    return true;
}

constexpr int kCuts = 20;

/// Runs in a process of its own, because it leaves the network of the others.
TEST(FabricChild, DISABLED_WritesWhileLinksAreCut) {
    if (::unshare(CLONE_NEWNET) != 0) return say("result skipped");
    Pair pair("own network");
    if (!pair.has_network || !make_links(pair.child.pid(), 2)) return say("result skipped");
    pair.open("10.77.0.1,10.77.1.1", "10.77.0.2,10.77.1.2");
    const std::string there = format_text("nsenter -t {} -n ", pair.child.pid());
    std::mt19937_64 random(1);
    uint64_t seed = 1;
    for (int round = 0; round < kCuts; ++round) {
        // The link is in use.
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

TEST(FabricProcess, NoCutLinkCorruptsOrLosesAWrite) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs network namespaces";
    ChildProcess child("FabricChild.DISABLED_WritesWhileLinksAreCut");
    const auto result = child.read_line("result ", Deadline::after(240s));
    ASSERT_TRUE(result) << result.error().to_string();
    if (*result == "skipped") GTEST_SKIP() << "needs network namespaces";
    EXPECT_EQ(*result, "good");
}

}  // namespace
}  // namespace mooncake::fabric
