// SPDX-License-Identifier: Apache-2.0
// Two real processes, one of which is stopped or dies at any moment.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "transport/shm/channel.h"
#include "transport/shm/shm.h"
#include "transport/shm/target.h"
#include "transport/testing/child_process.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {
namespace {

constexpr uint64_t kLength = 4 << 20;
constexpr std::byte kPoison{0xa5};

std::string describe_in_words(const SegmentDescriptor& descriptor, const TestMemory& plain, const TestMemory& shared) {
    return format_text("{} {} {} {}", descriptor.incarnation.to_string(), plain.address(), shared.address(),
                       descriptor.endpoints.at("shm"));
}

struct Offer {
    SegmentDescriptor descriptor;
    uint64_t plain = 0, shared = 0;

    explicit Offer(const std::string& words) {
        std::istringstream in(words);
        std::string incarnation, endpoint;
        in >> incarnation >> plain >> shared >> std::ws;
        std::getline(in, endpoint);
        descriptor = {.name = "child",
                      .incarnation = Incarnation::parse(incarnation).value(),
                      .boot_id = boot_id(),
                      .endpoints = {{"shm", endpoint}}};
    }
};

// ---- what the second process does

TEST(ShmChild, DISABLED_LendsMemory) {
    TransportHost host(make_shm_transport);
    const TestMemory plain(kLength), shared(kLength, MemorySource::kShared);
    plain.fill(std::byte{1});
    shared.fill(std::byte{2});
    host.add(plain);
    host.add(shared);
    say("offer " + describe_in_words(host.describe(), plain, shared));
    for (;;) read_command();
}

TEST(ShmChild, DISABLED_WritesWithoutPause) {
    TransportHost host(make_shm_transport);
    const Offer offer(read_command());
    const auto peer = host.transport().connect(offer.descriptor, patience()).value();
    const TestMemory source(kLength);
    source.fill(std::byte{7});
    const MemoryRegion* const region = host.add(source);
    std::vector<std::jthread> writers;
    std::atomic<int> rounds{0};
    for (const uint64_t remote : {offer.plain, offer.shared, offer.plain}) {
        writers.emplace_back([&, remote] {
            for (;;) {
                (void)transfer(*peer, Direction::kWrite, {.local = source.data(), .remote = remote, .length = kLength, .region = region},
                               remote == offer.plain ? Submit::kWait : Submit::kLeave);
                ++rounds;
            }
        });
    }
    while (rounds.load() < 3) std::this_thread::yield();
    say("writing");
    for (;;) read_command();
}

// ---- what must not grow

struct Resources {
    size_t descriptors = 0;
    size_t mappings = 0;  // of ours
};

Resources count_resources() {
    Resources counted;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++counted.descriptors;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) counted.mappings += line.find("memfd:mooncake") != std::string::npos;
    return counted;
}

/// Comes down to `expected` soon: the loop may still be busy forgetting.
void expect_no_more_than(const Resources& expected) {
    Resources now = count_resources();
    for (const Deadline deadline = patience();
         !deadline.passed() && (now.descriptors > expected.descriptors || now.mappings > expected.mappings);) {
        std::this_thread::yield();
        now = count_resources();
    }
    EXPECT_LE(now.descriptors, expected.descriptors);
    EXPECT_LE(now.mappings, expected.mappings);
}

void pause_at_random(std::mt19937_64& random) { std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000)); }

TEST(ShmProcess, MovesBytesBetweenTwoProcesses) {
    ChildProcess child("ShmChild.DISABLED_LendsMemory");
    const Offer offer(child.read_line("offer ", patience()).value());
    TransportHost host(make_shm_transport);
    const TestMemory local(kLength), back(kLength);
    const MemoryRegion *const region = host.add(local), *const back_region = host.add(back);
    const auto peer = host.transport().connect(offer.descriptor, patience()).value();
    for (const uint64_t remote : {offer.plain, offer.shared}) {
        const std::byte first = remote == offer.plain ? std::byte{1} : std::byte{2};
        ASSERT_TRUE(transfer(*peer, Direction::kRead, {.local = local.data(), .remote = remote, .length = kLength, .region = region}));
        EXPECT_TRUE(local.all(first));
        for (int round = 0; round < 20; ++round) {
            local.fill_random(static_cast<uint64_t>(round));
            ASSERT_TRUE(transfer(*peer, Direction::kWrite,
                                 {.local = local.data() + 1, .remote = remote + 2, .length = kLength - 3, .region = region}));
            ASSERT_TRUE(transfer(*peer, Direction::kRead,
                                 {.local = back.data() + 1, .remote = remote + 2, .length = kLength - 3, .region = back_region}));
            ASSERT_EQ(std::memcmp(local.data() + 1, back.data() + 1, kLength - 3), 0);
        }
    }
}

TEST(ShmProcess, SurvivesTargetsThatStopAndDieAtAnyMoment) {
    TransportHost host(make_shm_transport);
    const TestMemory local(4 * kLength);
    const MemoryRegion* const region = host.add(local);
    std::mt19937_64 random(1);
    std::optional<Resources> before;
    for (int round = 0; round < 50; ++round) {
        ChildProcess child("ShmChild.DISABLED_LendsMemory");
        const Offer offer(child.read_line("offer ", patience()).value());
        auto peer = host.transport().connect(offer.descriptor, patience()).value();
        std::atomic<int> strange{0};
        std::vector<std::jthread> users;
        for (uint64_t t = 0; t < 4; ++t) {
            users.emplace_back([&, t] {
                // Of each kind of memory one half is read, the other written.
                const uint64_t remote = (t % 2 == 0 ? offer.plain : offer.shared) + (t < 2 ? 0 : kLength / 2);
                for (;;) {
                    const Slice one{.local = local.data() + t * kLength, .remote = remote, .length = kLength / 2, .region = region};
                    const Code code = code_of(
                        transfer(*peer, t < 2 ? Direction::kRead : Direction::kWrite, one, t == 3 ? Submit::kLeave : Submit::kWait));
                    if (code == Code::kUnavailable) return;
                    if (code != Code::kOk) ++strange;
                }
            });
        }
        pause_at_random(random);
        if (round % 2 == 0) {
            child.signal(SIGSTOP);  // copying from and to a stopped process goes on
            pause_at_random(random);
            if (round % 4 == 0) child.signal(SIGCONT);
        }
        child.kill();
        users.clear();
        EXPECT_EQ(strange, 0);
        EXPECT_FALSE(peer->usable());
        peer.reset();
        if (before) expect_no_more_than(*before);
        else before = count_resources();
    }
}

TEST(ShmProcess, FencesInitiatorsThatStopAndDieAtAnyMoment) {
    TransportHost host(make_shm_transport);
    const TestMemory plain(kLength), shared(kLength, MemorySource::kShared);
    std::mt19937_64 random(2);
    std::optional<Resources> before;
    int busy = 0;
    const Deadline end = patience();
    for (int round = 0; round < 50 || (busy < 3 && !end.passed()); ++round) {
        const MemoryRegion *const first = host.add(plain), *const second = host.add(shared);
        ChildProcess child("ShmChild.DISABLED_WritesWithoutPause");
        child.send_line(describe_in_words(host.describe(), plain, shared));
        ASSERT_TRUE(child.read_line("writing", patience()));
        pause_at_random(random);

        if (round % 3 == 0) {
            child.kill();
            ASSERT_TRUE(host.remove(first));
        } else {
            child.signal(SIGSTOP);
            pause_at_random(random);
            const auto removed = host.remove(first, Deadline::after(20ms));
            if (!removed) {
                ++busy;
                EXPECT_EQ(removed.error().code(), Code::kBusy);
                EXPECT_NE(removed.error().message().find(std::to_string(child.pid())), std::string::npos) << removed.error().to_string();
                if (round % 3 == 1) child.signal(SIGCONT);
                else child.kill();
                ASSERT_TRUE(host.remove(first));
            } else {
                child.signal(SIGCONT);
            }
        }
        plain.fill(kPoison);
        ASSERT_TRUE(host.remove(second));
        shared.fill(kPoison);
        pause_at_random(random);
        EXPECT_TRUE(plain.all(kPoison));
        EXPECT_TRUE(shared.all(kPoison));
        child.kill();
        if (!before) {
            ASSERT_TRUE(host.remove(host.add(plain)));
            before = count_resources();
            continue;
        }
        expect_no_more_than(*before);
    }
    EXPECT_GE(busy, 3) << "no writer was ever stopped inside a copy";
}

TEST(ShmProcess, LeavesNothingBehindInTheFileSystem) {
    const auto names = [] {
        std::vector<std::string> found;
        for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
            if (entry.path().string().find("mooncake") != std::string::npos) found.push_back(entry.path());
        return found;
    };
    const auto before = names();
    ChildProcess child("ShmChild.DISABLED_LendsMemory");
    ASSERT_TRUE(child.read_line("offer ", patience()));
    EXPECT_EQ(names(), before);
    child.kill();
    EXPECT_EQ(names(), before);
}

TEST(ShmProcess, DoesNotWaitLongForATargetThatIsStopped) {
    ChildProcess child("ShmChild.DISABLED_LendsMemory");
    const Offer offer(child.read_line("offer ", patience()).value());
    child.signal(SIGSTOP);
    TransportHost host(make_shm_transport);
    const auto refused = host.transport().connect(offer.descriptor, Deadline::after(50ms));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kUnavailable);
    child.signal(SIGCONT);
    EXPECT_TRUE(host.transport().connect(offer.descriptor, patience()));
}

TEST(ShmProcess, WelcomesACrowdThatGreetedWhileItWasStopped) {
    ChildProcess child("ShmChild.DISABLED_LendsMemory");
    const Offer offer(child.read_line("offer ", patience()).value());
    const std::string name = shm::decode_endpoint(offer.descriptor.endpoints.at("shm")).value();
    child.signal(SIGSTOP);
    std::vector<net::Socket> peers;
    for (size_t i = 0; i < shm::Target::kStrangersMax + 64; ++i) {
        peers.push_back(shm::connect_local(name, patience()).value());
        ASSERT_TRUE(shm::send_message(
            peers.back().fd(), {.kind = shm::MessageKind::kHello, .incarnation = i + 1, .expected = offer.descriptor.incarnation.value}));
    }
    child.signal(SIGCONT);
    for (const net::Socket& one : peers) {
        ASSERT_TRUE(net::wait_ready(one.fd(), POLLIN, patience()));
        const auto received = shm::receive_message(one.fd());
        ASSERT_TRUE(received) << received.error().to_string();
        ASSERT_EQ(received->message.kind, shm::MessageKind::kWelcome);
    }
}

TEST(ShmProcess, ReportsATargetThatHasDied) {
    ChildProcess child("ShmChild.DISABLED_LendsMemory");
    const Offer offer(child.read_line("offer ", patience()).value());
    child.kill();
    TransportHost host(make_shm_transport);
    EXPECT_EQ(code_of(host.transport().connect(offer.descriptor, patience())), Code::kUnavailable);
}

}  // namespace
}  // namespace mooncake::testing
