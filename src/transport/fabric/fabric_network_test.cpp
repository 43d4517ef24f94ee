// SPDX-License-Identifier: Apache-2.0
// Several NICs, for real: links of a known speed to a process in another network namespace. The links are so slow that a busy machine still fills
// them; what is looked at is how much each of them carried. Stripes are as much smaller than usual as the links are slower.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "transport/fabric/testing/remote_target.h"

namespace mooncake::fabric {
namespace {

using mooncake::testing::ChildProcess;
using mooncake::testing::patience;
using mooncake::testing::say;
using mooncake::testing::TestMemory;
using mooncake::testing::transfer;

constexpr int kLinks = 4;
constexpr int kMegabits = 160;
constexpr int kSlowMegabits = kMegabits / 4;
constexpr uint64_t kBytesPerRail = 16 << 20;

/// Four links, a target at their other ends, and initiators that use some of them.
struct Network {
    Network() : target(true, kLinks * kBytesPerRail) {
        const pid_t there = target.child.pid();
        made = target.has_network && make_links(there, kLinks);
        for (int i = 0; made && i < kLinks; ++i) made = limit_link(i, kMegabits) && limit_link(i, kMegabits, there);
        if (!made) return;
        target.lend(addresses(kLinks, 2));
        for (const int count : {1, 2, 4}) {
            EngineOptions options = options_for(addresses(count, 1));
            options.fabric.stripe_bytes = 256 << 10;
            options.fabric.stall_timeout = 10s;
            initiators.emplace(std::piecewise_construct, std::tuple(count), std::tie(target, memory, options));
        }
    }
    static std::string addresses(int count, int side) {
        std::string list;
        for (int i = 0; i < count; ++i) list += format_text("{}10.77.{}.{}", i == 0 ? "" : ",", i, side);
        return list;
    }
    Result<uint64_t> move(int rails, Direction direction, uint64_t length) {
        const Initiator& initiator = initiators.at(rails);
        return transfer(*initiator.peer, direction,
                        {.local = memory.data(), .remote = target.address, .length = length, .region = initiator.region});
    }
    /// Which part of one large request each link carried. Empty when it fails.
    std::vector<double> shares(int rails, Direction direction) {
        const auto carried = [&](int link) {
            const std::string name = format_text("r{}", link);
            return direction == Direction::kWrite ? sent_over(name) : received_over(name);
        };
        std::array<uint64_t, kLinks> before{};
        for (int i = 0; i < kLinks; ++i) before[static_cast<size_t>(i)] = carried(i);
        const uint64_t length = static_cast<uint64_t>(rails) * kBytesPerRail;
        if (!move(rails, direction, length)) return {};
        std::vector<double> parts;
        for (int i = 0; i < kLinks; ++i)
            parts.push_back(static_cast<double>(carried(i) - before[static_cast<size_t>(i)]) / static_cast<double>(length));
        return parts;
    }

    RemoteTarget target;
    const TestMemory memory{kLinks * kBytesPerRail};
    std::map<int, Initiator> initiators;  // by number of rails
    bool made = false;
};

/// One large request over one, two and four links: all of them have about as much to do.
std::string stripe(Network& network, Direction direction) {
    for (const int count : {1, 2, 4}) {
        const std::vector<double> parts = network.shares(count, direction);
        if (parts.empty()) return "a large request failed";
        for (int i = 0; i < count; ++i) {
            const double part = parts[static_cast<size_t>(i)];
            if (part < 0.6 / count) return format_text("link {} of {} carried {:.2f} of a large request", i, count, part);
        }
    }
    return "good";
}

/// One large request over a link and one that is four times slower: it has as much less to do.
std::string stripe_unequally(Network& network) {
    const std::vector<double> parts = network.shares(2, Direction::kWrite);
    if (parts.empty()) return "a large request failed";
    const bool good = parts[1] >= 0.08 && parts[1] <= 0.35;
    return format_text("{}: the slow link carried {:.2f}, the fast one {:.2f} of it", good ? "good" : "bad", parts[1], parts[0]);
}

/// Each small request goes over one link, all of them together over all.
std::string spread_small_ones(Network& network) {
    constexpr uint64_t kSmall = 64 << 10;
    constexpr uint64_t kNothing = 8 << 10;  // acknowledgements, and what the kernels tell each other
    std::array<int, kLinks> used{};
    for (int i = 0; i < 8 * kLinks; ++i) {
        std::array<uint64_t, kLinks> before{};
        for (size_t l = 0; l < kLinks; ++l) before[l] = sent_over(format_text("r{}", l));
        if (!network.move(kLinks, Direction::kWrite, kSmall)) return "a small request failed";
        int carriers = 0;
        for (size_t l = 0; l < kLinks; ++l) {
            const uint64_t sent = sent_over(format_text("r{}", l)) - before[l];
            if (sent <= kNothing) continue;
            if (sent < kSmall) return format_text("link {} carried {} bytes of a small request", l, sent);
            ++carriers;
            ++used[l];
        }
        if (carriers != 1) return format_text("{} links carried a small request", carriers);
    }
    if (std::any_of(used.begin(), used.end(), [](int times) { return times == 0; })) return "a link had nothing to do";
    return "good";
}

/// Runs in a process of its own, because it leaves the network of the others.
TEST(FabricChild, DISABLED_UsesSeveralLinks) {
    if (::unshare(CLONE_NEWNET) != 0) return say("result skipped");
    Network network;
    if (!network.made) return say("result skipped");
    for (const auto& [count, initiator] : network.initiators)
        if (const auto warm = initiator.peer->warm_up(patience()); !warm) return say("result " + warm.error().to_string());
    network.memory.fill_random(1);
    say("result stripes " + stripe(network, Direction::kWrite));
    if (network.target.control.sum(network.memory.length()) != sum_of(network.memory.bytes())) return say("result wrong data");
    say("result pulls " + stripe(network, Direction::kRead));
    say("result spreads " + spread_small_ones(network));
    if (!limit_link(1, kSlowMegabits)) return say("result skipped");
    say("result unequal " + stripe_unequally(network));
    say("result good");
}

TEST(FabricNetwork, OneRequestFillsAllLinksAndASmallOneTakesOne) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs network namespaces";
    ChildProcess child("FabricChild.DISABLED_UsesSeveralLinks");
    const Deadline deadline = Deadline::after(120s);
    for (const char* const what : {"stripes ", "pulls ", "spreads ", "unequal "}) {
        const auto line = child.read_line("result ", deadline);
        ASSERT_TRUE(line) << what << line.error().to_string();
        if (*line == "skipped") GTEST_SKIP() << "needs network namespaces";
        EXPECT_TRUE(line->starts_with(std::string(what) + "good")) << *line;
    }
    EXPECT_EQ(child.read_line("result ", deadline).value_or("nothing"), "good");
}

}  // namespace
}  // namespace mooncake::fabric
