// SPDX-License-Identifier: Apache-2.0
// What a target does when the other end is not one of ours, or not well.
#include "transport/tcp/server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "transport/tcp/testing/raw.h"
#include "transport/tcp/testing/side.h"

namespace mooncake::tcp {
namespace {

using testing::fill;
using testing::greeted;
using testing::Raw;
using testing::read_head;
using testing::run;
using testing::Side;
using testing::write_head;

const Incarnation kStranger{0x5712a9e7};

bool works(Side& here, Side& there, Peer& peer) {
    Completion completion;
    const Slice slice = here.slice(0, there.address(), 1000, completion);
    return run(peer, Direction::kWrite, {&slice, 1}, completion).has_value();
}

TEST(TcpServer, RefusesAnotherVersionAndNamesBoth) {
    Side target(4096);
    Raw raw = Raw::to(target.port());
    ASSERT_TRUE(raw.send(Hello{.version = 77, .initiator = kStranger, .target = target.incarnation}));
    const auto reply = raw.receive_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, Status::kRefused);
    EXPECT_EQ(reply->version, kVersion);
    EXPECT_NE(reply->text.find("77"), std::string::npos);
    EXPECT_TRUE(raw.closed_by_peer());
}

TEST(TcpServer, RefusesWhoLooksForAnotherIncarnation) {
    Side target(4096);
    Raw raw = Raw::to(target.port());
    ASSERT_TRUE(raw.send(Hello{.initiator = kStranger, .target = {target.incarnation.value + 1}}));
    const auto reply = raw.receive_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, Status::kStale);
    EXPECT_TRUE(raw.closed_by_peer());
}

TEST(TcpServer, RefusesASessionThatWasReplaced) {
    Side target(4096);
    Raw current = greeted(target, kStranger, 5);
    Raw late = Raw::to(target.port());
    ASSERT_TRUE(late.send(Hello{.version = kNumberedSessions, .initiator = kStranger, .target = target.incarnation, .number = 4}));
    const auto reply = late.receive_reply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, Status::kStale);
    // Others count for themselves, and so do further lanes of the same session.
    Raw lane = greeted(target, kStranger, 5);
    Raw other = greeted(target, {kStranger.value + 1}, 1);
    ASSERT_TRUE(current.send(read_head(1, target.address(), 10)));
    EXPECT_TRUE(current.receive_header());
}

TEST(TcpServer, NoByteOfAnOldSessionLandsOnceANewOneIsGreeted) {
    for (const int io_threads : {1, 3}) {
        EngineOptions options;
        options.tcp_io_threads = io_threads;
        Side target(1 << 20, options);
        for (uint64_t session = 1; session <= 20; ++session) {
            Raw old = greeted(target, kStranger, 2 * session);
            const std::vector<std::byte> payload(1 << 20, std::byte{0xee});
            ASSERT_TRUE(old.send(write_head(1, target.address(), 1 << 20)));
            ASSERT_TRUE(old.send(payload.data(), (session * 50'000) % payload.size()));

            Raw fresh = greeted(target, kStranger, 2 * session + 1);

            std::memset(target.memory.data(), 0, target.memory.size());
            (void)old.send(payload.data(), payload.size() / 2);  // may fail: it was shut out
            ASSERT_TRUE(fresh.send(read_head(9, target.address(), 1 << 20)));
            ASSERT_TRUE(fresh.receive_header());
            std::vector<std::byte> seen(1 << 20);
            ASSERT_TRUE(fresh.receive(seen.data(), seen.size()));
            EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{0}), static_cast<ptrdiff_t>(seen.size()));
            EXPECT_TRUE(old.closed_by_peer());
        }
    }
}

TEST(TcpServer, ASessionEndsThoseItNamesAndNoOther) {
    const SessionId one{.high = 1, .low = 1}, two{.high = 1, .low = 2}, three{.high = 1, .low = 3};
    Side target(1 << 20);
    Raw first = greeted(target, kStranger, one), lane = greeted(target, kStranger, one), second = greeted(target, kStranger, two);
    ASSERT_TRUE(first.send(write_head(1, target.address(), 1 << 20)));
    const std::vector<std::byte> half(1 << 19, std::byte{0xee});
    ASSERT_TRUE(first.send(half));

    Raw third = greeted(target, kStranger, three, {one, {.high = 9, .low = 9}});

    std::memset(target.memory.data(), 0, target.memory.size());
    (void)first.send(half);  // may fail: it was shut out
    EXPECT_TRUE(first.closed_by_peer());
    EXPECT_TRUE(lane.closed_by_peer());
    for (Raw* const raw : {&second, &third}) {
        ASSERT_TRUE(raw->send(read_head(1, target.address(), 1 << 20)));
        ASSERT_TRUE(raw->receive_header());
        std::vector<std::byte> seen(1 << 20);
        ASSERT_TRUE(raw->receive(seen.data(), seen.size()));
        EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{0}), static_cast<ptrdiff_t>(seen.size()));
    }
}

TEST(TcpServer, WhoGreetsInTheNameOfAnotherLocksNobodyOut) {
    Side target(4096), here(4096);
    const auto peer = here.connect(target);
    // Incarnations are public.
    Raw numbered = greeted(target, here.incarnation, ~uint64_t{0});
    Raw named = greeted(target, here.incarnation, SessionId{.high = ~uint64_t{0}, .low = ~uint64_t{0}},
                        {SessionId{}, {.high = 1, .low = 1}});
    EXPECT_TRUE(works(here, target, *peer));
    EXPECT_TRUE(works(here, target, *here.connect(target)));
}

TEST(TcpServer, AHelloThatEndsTooManySessionsIsNone) {
    Side target(4096);
    Raw raw = Raw::to(target.port());
    auto bytes = encode(Hello{.initiator = kStranger, .target = target.incarnation, .ended = std::vector<SessionId>(kEndedMax)});
    bytes[48] = std::byte{kEndedMax + 1};
    ASSERT_TRUE(raw.send(bytes));
    EXPECT_TRUE(raw.closed_by_peer());
}

TEST(TcpServer, GarbageClosesItsOwnConnectionAndNobodyElses) {
    Side target(1 << 20), here(1 << 20);
    const auto peer = here.connect(target);
    std::mt19937_64 random(3);
    std::vector<std::string> garbage{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02\x01\x01", "M", std::string(100'000, '\0'),
                                     std::string(100'000, '\xff')};
    for (int i = 0; i < 20; ++i) {
        std::string bytes(1 + random() % 5000, ' ');
        for (char& byte : bytes) byte = static_cast<char>(random());
        garbage.push_back(std::move(bytes));
    }
    for (const std::string& bytes : garbage) {
        if (bytes == "M") continue;
        Raw before_hello = Raw::to(target.port());
        (void)before_hello.send(bytes);
        EXPECT_TRUE(before_hello.closed_by_peer());
        Raw after_hello = greeted(target, kStranger, 1);
        (void)after_hello.send(bytes.size() < kHeaderBytes ? bytes + std::string(100, 'x') : bytes);
        EXPECT_TRUE(after_hello.closed_by_peer());
        ASSERT_TRUE(works(here, target, *peer));
    }
}

TEST(TcpServer, HostileCountsAndLengthsCloseTheConnection) {
    Side target(1 << 20);
    fill(target.memory, 1);
    const auto before = target.memory;
    std::vector<std::vector<std::byte>> heads;
    for (const Header& header :
         {Header{.kind = Kind::kWrite, .payload_bytes = ~uint32_t{0}}, Header{.kind = Kind::kRead, .payload_bytes = ~uint32_t{0}},
          Header{.kind = Kind::kWritten}, Header{.kind = Kind::kData, .payload_bytes = 5},
          Header{.kind = Kind::kWrite, .payload_bytes = 100}, Header{.kind = Kind::kRead, .payload_bytes = 0}}) {
        const std::vector<AddressRange> ranges(header.kind == Kind::kWrite || header.kind == Kind::kRead ? 3 : 0,
                                               AddressRange{target.address(), 5});
        append_head(header, ranges, false, heads.emplace_back());
    }
    const std::vector<AddressRange> many(2000, AddressRange{target.address(), 1});
    append_head({.kind = Kind::kWrite, .payload_bytes = 2000}, many, false, heads.emplace_back());
    for (const auto& head : heads) {
        Raw raw = greeted(target, kStranger, 1);
        (void)raw.send(head);
        (void)raw.send(std::string(10'000, 'x'));
        EXPECT_TRUE(raw.closed_by_peer());
    }
    EXPECT_TRUE(target.memory == before);
}

TEST(TcpServer, RefusedWriteIsDrainedAndTheConnectionGoesOn) {
    Side target(1 << 20);
    Raw raw = greeted(target, kStranger, 1);
    const std::vector<std::byte> payload(300'000, std::byte{7});
    ASSERT_TRUE(raw.send(write_head(1, target.address() + (1 << 20) - 100, 300'000)));
    ASSERT_TRUE(raw.send(payload));
    ASSERT_TRUE(raw.send(write_head(2, target.address(), 300'000)));
    ASSERT_TRUE(raw.send(payload));
    const auto refused = raw.receive_header();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->kind, Kind::kError);
    EXPECT_EQ(refused->status, Status::kNotRegistered);
    EXPECT_EQ(refused->id, 1u);
    EXPECT_NE(raw.receive_text(*refused).find(format_text("{:#x}", target.address() + (1 << 20) - 100)), std::string::npos);
    const auto written = raw.receive_header();
    ASSERT_TRUE(written);
    EXPECT_EQ(written->kind, Kind::kWritten);
    EXPECT_EQ(written->id, 2u);
    EXPECT_EQ(target.memory[(1 << 20) - 100], std::byte{0});
}

TEST(TcpServer, MemoryOfADeviceThatNobodyCopiesIsRefusedByANameThatTheInitiatorKnows) {
    Side target(4096);
    const uint64_t device = 0x7000'0000'0000;  // never touched
    target.access.allow({.range = {.address = device, .length = 1 << 20}, .kind = MemoryKind::kAscend});
    for (const uint32_t features : {uint32_t{0}, kFeatureKinds}) {
        const Status expected = features == 0 ? Status::kNotRegistered : Status::kNotSupported;
        Raw raw = greeted(target, kStranger, 1, features);
        ASSERT_TRUE(raw.send(write_head(1, device, 100)));
        ASSERT_TRUE(raw.send(std::vector<std::byte>(100)));
        ASSERT_TRUE(raw.send(read_head(2, device, 100)));
        for (uint64_t id = 1; id <= 2; ++id) {
            const auto refused = raw.receive_header();
            ASSERT_TRUE(refused);
            EXPECT_EQ(refused->id, id);
            EXPECT_EQ(refused->status, expected);
            EXPECT_NE(raw.receive_text(*refused).find("of a device"), std::string::npos);
        }
        ASSERT_TRUE(raw.send(write_head(3, target.address(), 100)));
        ASSERT_TRUE(raw.send(std::vector<std::byte>(100)));
        const auto written = raw.receive_header();
        ASSERT_TRUE(written) << "the connection goes on";
        EXPECT_EQ(written->kind, Kind::kWritten);
    }
}

TEST(TcpServer, MessagesInTinyPortionsAreUnderstood) {
    Side target(4096);
    Raw raw = Raw::to(target.port());
    std::vector<std::byte> bytes = encode(Hello{.initiator = kStranger, .target = target.incarnation, .ended = {{.high = 1, .low = 2}}});
    for (uint64_t id = 1; id <= 3; ++id) {
        const auto head = write_head(id, target.address(id * 10), 10);
        bytes.insert(bytes.end(), head.begin(), head.end());
        bytes.insert(bytes.end(), 10, static_cast<std::byte>(id));
    }
    for (const std::byte& byte : bytes) ASSERT_TRUE(raw.send(&byte, 1));
    ASSERT_TRUE(raw.receive_reply());
    for (uint64_t id = 1; id <= 3; ++id) {
        const auto header = raw.receive_header();
        ASSERT_TRUE(header);
        EXPECT_EQ(header->id, id);
        EXPECT_EQ(target.memory[id * 10], static_cast<std::byte>(id));
    }
}

TEST(TcpServer, CorruptPayloadIsNeverCalledWritten) {
    Side target(4096);
    Raw raw = greeted(target, kStranger, 1, kFeatureChecksum);
    std::vector<std::byte> payload(100, std::byte{3});
    Checksum checksum;
    checksum.start(true);
    checksum.update(payload.data(), payload.size());
    const uint64_t value = checksum.value();
    for (const bool corrupt : {true, false}) {
        payload[50] = corrupt ? std::byte{4} : std::byte{3};
        ASSERT_TRUE(raw.send(write_head(1, target.address(), 100, true)));
        ASSERT_TRUE(raw.send(payload));
        ASSERT_TRUE(raw.send(&value, sizeof value));
        const auto header = raw.receive_header();
        ASSERT_TRUE(header);
        EXPECT_EQ(header->kind, corrupt ? Kind::kError : Kind::kWritten);
        if (!corrupt) continue;
        EXPECT_EQ(header->status, Status::kCorrupt);
        raw.receive_text(*header);
    }
    // A head that changed on the way says nothing that could be trusted.
    auto head = write_head(2, target.address(), 100, true);
    head[kHeaderBytes] ^= std::byte{8};
    ASSERT_TRUE(raw.send(head));
    EXPECT_TRUE(raw.closed_by_peer());
}

TEST(TcpServer, AReaderThatNeverReceivesDelaysNobodyAndHoldsLittle) {
    Side target(8 << 20), here(1 << 20);
    Raw greedy = greeted(target, kStranger, 1);
    // Far more than sockets hold; in the end the target stops reading our requests, so we cannot even send them all.
    const auto request = read_head(1, target.address(), 4 << 20);
    size_t accepted = 0;
    while (accepted < 100'000 &&
           ::send(greedy.fd(), request.data(), request.size(), MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()))
        ++accepted;
    const auto peer = here.connect(target);
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(works(here, target, *peer));
}

TEST(TcpServer, AnswersEveryReadThatCameInOneGo) {
    Side target(1 << 20);
    Raw raw = greeted(target, kStranger, 1);
    // More than it may owe at once, and nothing comes afterwards that would remind it of the rest.
    constexpr uint64_t kReads = kAnswersMax + 6;
    std::vector<std::byte> requests;
    for (uint64_t id = 1; id <= kReads; ++id) {
        const auto head = read_head(id, target.address(), 1 << 20);
        requests.insert(requests.end(), head.begin(), head.end());
    }
    ASSERT_TRUE(raw.send(requests));
    std::vector<std::byte> data(1 << 20);
    for (uint64_t id = 1; id <= kReads; ++id) {
        const auto header = raw.receive_header();
        ASSERT_TRUE(header) << id;
        EXPECT_EQ(header->id, id);
        ASSERT_TRUE(raw.receive(data.data(), data.size())) << id;
    }
}

TEST(TcpServer, OwesNoMoreThanItsLimitToWhoDoesNotTakeItsAnswers) {
    EngineOptions options;
    options.tcp_io_threads = 1;
    Side target(4096, options), here(4096);
    const auto peer = here.connect(target);
    Raw greedy = greeted(target, kStranger, 1);
    // Reads of memory that is not there: short answers, which might be piled up one behind the other. What a target takes without limit is
    // far more than what the sockets of both sides hold.
    std::vector<std::byte> requests;
    for (uint64_t id = 1; id <= 1000; ++id) {
        const auto head = read_head(id, 0x1000, 1);
        requests.insert(requests.end(), head.begin(), head.end());
    }
    constexpr size_t kFar = 64 << 20;
    size_t accepted = 0;
    bool stuck = false;
    while (accepted < kFar && !stuck) {
        const size_t at = accepted % requests.size();
        const ssize_t sent = ::send(greedy.fd(), requests.data() + at, requests.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            accepted += static_cast<size_t>(sent);
            continue;
        }
        // Its only thread has served others many times and has not come back to us: it does not want more.
        for (int i = 0; i < 100; ++i) ASSERT_TRUE(works(here, target, *peer));
        stuck = !net::wait_ready(greedy.fd(), POLLOUT, Deadline::after(10ms));
    }
    EXPECT_LT(accepted, kFar);
}

TEST(TcpServer, HalfSentMessagesDelayNobody) {
    Side target(1 << 20), here(1 << 20);
    std::vector<Raw> slow;
    for (uint64_t i = 0; i < 50; ++i) {
        if (i % 3 == 0) {
            slow.push_back(Raw::to(target.port()));  // says nothing at all
        } else {
            slow.push_back(greeted(target, {kStranger.value + i}, 1));
            const auto head = write_head(1, target.address(500'000), 1000);
            ASSERT_TRUE(slow.back().send(head.data(), i % 3 == 1 ? head.size() - 1 : head.size()));
        }
    }
    const auto peer = here.connect(target);
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(works(here, target, *peer));
}

TEST(TcpServer, WhoDoesNotGreetIsShutOut) {
    Side target(4096);
    Raw silent = Raw::to(target.port());
    Raw slow = Raw::to(target.port());
    ASSERT_TRUE(slow.send("MCKC"));
    EXPECT_TRUE(silent.closed_by_peer());
    EXPECT_TRUE(slow.closed_by_peer());
}

TEST(TcpServer, RevokedMemoryDoesNotChangeAnyMoreWhileAPeerWrites) {
    constexpr size_t kBytes = 4 << 20;
    Side target(kBytes), here(kBytes);
    const auto peer = here.connect(target);
    fill(here.memory, 5);
    for (int round = 0; round < 10; ++round) {
        std::atomic<bool> stop{false};
        std::atomic<int> refused{0}, done{0};
        std::jthread writer([&] {
            while (!stop.load()) {
                Completion completion;
                const Slice slice = here.slice(0, target.address(), kBytes, completion);
                const auto result = run(*peer, Direction::kWrite, {&slice, 1}, completion);
                ++done;
                if (!result && result.error().code() == Code::kNotRegistered) ++refused;
            }
        });
        const int seen = done.load();
        while (done.load() < seen + 2) std::this_thread::yield();
        ASSERT_TRUE(target.access.revoke(target.address(), Deadline::after(20s)));
        std::memset(target.memory.data(), 0, kBytes);
        while (refused.load() < 3) std::this_thread::yield();
        stop = true;
        writer.join();
        EXPECT_EQ(std::count(target.memory.begin(), target.memory.end(), std::byte{0}), static_cast<ptrdiff_t>(kBytes));
        target.access.allow({.address = target.address(), .length = kBytes});
    }
}

TEST(TcpServer, TouchesNoMemoryAndServesNobodyOnceItStopped) {
    constexpr size_t kBytes = 4 << 20;
    Side target(kBytes), here(kBytes);
    std::vector<std::unique_ptr<Peer>> peers;
    for (int i = 0; i < 4; ++i) peers.push_back(here.connect(target));
    fill(here.memory, 6);
    std::atomic<int> done{0};
    std::vector<std::jthread> writers;
    for (size_t i = 0; i < peers.size(); ++i) {
        writers.emplace_back([&, i] {
            for (bool good = true; good; ++done) {
                Completion completion;
                const Slice slice = here.slice(0, target.address() + i * (kBytes / 4), kBytes / 4, completion);
                good = run(*peers[i], Direction::kWrite, {&slice, 1}, completion).has_value();
            }
        });
    }
    while (done.load() < 10) std::this_thread::yield();
    Raw silent = Raw::to(target.port());  // has not even greeted
    ASSERT_TRUE(target.transport->stop_serving(Deadline::after(20s)));
    std::memset(target.memory.data(), 0, kBytes);
    ASSERT_TRUE(target.transport->stop_serving(Deadline::after(20s)));
    writers.clear();  // every one of them ends with an error
    EXPECT_TRUE(silent.closed_by_peer());
    EXPECT_FALSE(here.transport->connect(target.descriptor(), Deadline::after(20s)));
    EXPECT_EQ(std::count(target.memory.begin(), target.memory.end(), std::byte{0}), static_cast<ptrdiff_t>(kBytes));
}

TEST(TcpServer, InitiatesAfterItStoppedServing) {
    Side target(4096), here(4096);
    const auto peer = here.connect(target);
    ASSERT_TRUE(here.transport->stop_serving(Deadline::after(20s)));
    EXPECT_TRUE(works(here, target, *peer));
    const auto later = here.connect(target);
    EXPECT_TRUE(works(here, target, *later));
}

TEST(TcpServer, AnIdleEngineUsesNoTime) {
    Side target(1 << 20), here(1 << 20);
    const auto peer = here.connect(target);
    ASSERT_TRUE(works(here, target, *peer));
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    Completion never;
    never.add(1);
    EXPECT_FALSE(never.wait(Deadline::after(1s)));  // a second of quiet
    never.succeed(0);
    ::getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_nvcsw - before.ru_nvcsw, 50) << "somebody wakes up to look";  // however busy the machine is
    const auto used = [](const rusage& usage) {
        return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    EXPECT_LT(used(after) - used(before), 500ms) << "somebody spins";
}

}  // namespace
}  // namespace mooncake::tcp
