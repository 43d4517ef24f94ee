// SPDX-License-Identifier: Apache-2.0
// What an initiator does when the other end is not one of ours, or not well.
#include "transport/tcp/peer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "transport/tcp/testing/raw.h"
#include "transport/tcp/testing/side.h"

namespace mooncake::tcp {
namespace {

using testing::fill;
using testing::FakeTarget;
using testing::Raw;
using testing::run;
using testing::Side;

constexpr std::byte kPoison{0xa5};

EngineOptions one_lane(bool checksum = false) {
    EngineOptions options;
    options.tcp_lanes = 1;
    options.tcp_checksum = checksum;
    return options;
}

/// An initiator connected over one lane to a target by hand.
struct Pair {
    explicit Pair(bool checksum = false, uint16_t version = kVersion) : target(version), here(4 << 20, one_lane(checksum)) {
        connect(peer, raw, hello, checksum);
    }
    void connect(std::unique_ptr<Peer>& to, std::optional<Raw>& other_end, Hello& seen, bool checksum = false) {
        std::jthread connecting([&] { to = std::move(*here.transport->connect(target.descriptor(), Deadline::after(20s))); });
        other_end.emplace(target.welcome(&seen, checksum ? kFeatureChecksum : 0));
    }
    void submit(Direction direction, uint64_t length, Submit how = Submit::kLeave) {
        slice = here.slice(0, 0x10000, length, completion);
        completion.add(1);
        peer->submit(direction, {&slice, 1}, how);
    }
    std::optional<Header> receive_request() {
        auto header = raw->receive_header();
        std::vector<std::byte> descriptors(header ? header->descriptors * kDescriptorBytes : 0);
        return header && raw->receive(descriptors.data(), descriptors.size()) ? header : std::nullopt;
    }
    bool answer(const Header& header, std::string_view payload = {}, bool checked = false) {
        std::vector<std::byte> head;
        append_head(header, {}, checked, head);
        return raw->send(head) && raw->send(payload);
    }

    FakeTarget target;
    Side here;
    Hello hello;
    std::optional<Raw> raw;
    std::unique_ptr<Peer> peer;
    Completion completion;
    Slice slice;
    const Error reason{Code::kTimedOut, "the test gave up"};
};

TEST(TcpPeer, SaysWhoItIsAndWhomItMeans) {
    Pair pair;
    EXPECT_EQ(pair.hello.version, kVersion);
    EXPECT_EQ(pair.hello.initiator, pair.here.incarnation);
    EXPECT_EQ(pair.hello.target, pair.target.incarnation);
    EXPECT_NE(pair.hello.session, SessionId{});
    EXPECT_TRUE(pair.hello.ended.empty());
}

TEST(TcpPeer, NumbersItsSessionsForATargetOfTheVersionBefore) {
    Pair pair(false, kNumberedSessions);
    EXPECT_EQ(pair.hello.version, kNumberedSessions);
    EXPECT_GT(pair.hello.number, 0u);
    pair.submit(Direction::kWrite, 4 << 20);
    ASSERT_TRUE(pair.receive_request());
    pair.raw->close();
    ASSERT_TRUE(pair.completion.wait(Deadline::after(20s)));
    Hello fence;
    std::jthread target([&] { Raw raw = pair.target.welcome(&fence); });
    EXPECT_EQ(pair.peer->cancel(pair.completion, pair.reason, Deadline::after(20s)), Stopped::kEverywhere);
    target.join();
    EXPECT_EQ(fence.version, kNumberedSessions);
    EXPECT_GT(fence.number, pair.hello.number);
    std::unique_ptr<Peer> next;
    std::optional<Raw> raw;
    Hello hello;
    pair.connect(next, raw, hello);
    EXPECT_GT(hello.number, fence.number);
}

TEST(TcpPeer, CannotConnectWhereNothingMooncakeListens) {
    Side here(4096, one_lane());
    FakeTarget target;
    const auto connect = [&](std::string_view answer) {
        std::jthread other([&, answer] {
            Raw raw = target.accept();
            char byte = 0;
            raw.receive(&byte, 1);
            raw.send(answer);
            raw.close();
        });
        auto peer = here.transport->connect(target.descriptor(), Deadline::after(20s));
        EXPECT_FALSE(peer);
        return peer ? Error() : peer.error();
    };
    EXPECT_EQ(connect("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").code(), Code::kCorrupt);
    EXPECT_EQ(connect("").code(), Code::kUnavailable);
    const auto version = encode(HelloReply{.version = 9, .status = Status::kRefused, .text = "you speak version 1, we speak 9"});
    const Error refused = connect({reinterpret_cast<const char*>(version.data()), version.size()});
    EXPECT_EQ(refused.code(), Code::kRefused);
    EXPECT_NE(refused.message().find("we speak 9"), std::string::npos);
    const auto stale = encode(HelloReply{.status = Status::kStale, .text = "this is somebody else"});
    EXPECT_EQ(connect({reinterpret_cast<const char*>(stale.data()), stale.size()}).code(), Code::kStale);
    target.stop_listening();
    const auto gone = here.transport->connect(target.descriptor(), Deadline::after(20s));
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code(), Code::kUnavailable);
    EXPECT_EQ(gone.error().system_errno(), ECONNREFUSED);
    EXPECT_NE(gone.error().message().find("fake"), std::string::npos);
}

TEST(TcpPeer, DoesNotConnectWithoutAnEndpointOrWithNonsense) {
    Side here(4096);
    SegmentDescriptor descriptor;
    EXPECT_EQ(here.transport->connect(descriptor, Deadline::after(1s)).error().code(), Code::kNotSupported);
    for (const char* endpoint : {"", "port=", "port=0", "port=70000", "15000", "port=12x"}) {
        descriptor.endpoints["tcp"] = endpoint;
        EXPECT_EQ(here.transport->connect(descriptor, Deadline::after(1s)).error().code(), Code::kCorrupt) << endpoint;
    }
}

TEST(TcpPeer, ATargetThatNeverAnswersTheHelloCostsTheDeadlineOnly) {
    Side here(4096, one_lane());
    FakeTarget target;
    const auto peer = here.transport->connect(target.descriptor(), Deadline::after(50ms));
    ASSERT_FALSE(peer);
    EXPECT_EQ(peer.error().code(), Code::kUnavailable);
}

TEST(TcpPeer, FailsEverythingWhenTheConnectionBreaks) {
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        Pair pair;
        pair.submit(direction, 3 << 20);
        ASSERT_TRUE(pair.receive_request());
        pair.raw->close();
        ASSERT_TRUE(pair.completion.wait(Deadline::after(20s)));
        const auto result = pair.completion.result();
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code(), Code::kUnavailable);
        EXPECT_NE(result.error().message().find("tcp to fake"), std::string::npos) << result.error().to_string();
        EXPECT_FALSE(pair.peer->usable());
        Completion later;
        const Slice slice = pair.here.slice(0, 0, 10, later);
        EXPECT_EQ(run(*pair.peer, direction, {&slice, 1}, later).error().code(), Code::kUnavailable);
    }
}

TEST(TcpPeer, NoticesTheDeathOfAnIdlePeer) {
    Pair pair;
    EXPECT_TRUE(pair.peer->usable());
    pair.raw->close();
    const Deadline deadline = Deadline::after(20s);
    while (pair.peer->usable() && !deadline.passed()) std::this_thread::yield();
    EXPECT_FALSE(pair.peer->usable());
}

TEST(TcpPeer, BreaksOffWhenAnAnswerMakesNoSense) {
    const std::vector<Header> answers{
        {.kind = Kind::kWritten, .id = 99},                   // to nothing we asked
        {.kind = Kind::kData, .payload_bytes = 10, .id = 1},  // to a write
        {.kind = Kind::kWrite, .descriptors = 0, .id = 1},    // not an answer
        {.kind = Kind::kError, .status = Status::kOk, .id = 1},
    };
    for (const Header& answer : answers) {
        Pair pair;
        pair.submit(Direction::kWrite, 100);
        ASSERT_TRUE(pair.receive_request());
        ASSERT_TRUE(pair.answer(answer));
        ASSERT_TRUE(pair.completion.wait(Deadline::after(20s)));
        EXPECT_EQ(pair.completion.result().error().code(), Code::kUnavailable);
        EXPECT_FALSE(pair.peer->usable());
    }
}

TEST(TcpPeer, HandsOnWhyThePeerRefused) {
    Pair pair;
    pair.submit(Direction::kWrite, 100);
    ASSERT_TRUE(pair.receive_request());
    char payload[100];
    ASSERT_TRUE(pair.raw->receive(payload, sizeof payload));
    ASSERT_TRUE(pair.answer({.kind = Kind::kError, .status = Status::kNotRegistered, .payload_bytes = 11, .id = 1}, "not for you"));
    ASSERT_TRUE(pair.completion.wait(Deadline::after(20s)));
    EXPECT_EQ(pair.completion.result().error().code(), Code::kNotRegistered);
    EXPECT_NE(pair.completion.result().error().message().find("not for you"), std::string::npos);
    EXPECT_TRUE(pair.peer->usable());
}

TEST(TcpPeer, CorruptDataIsNeverCalledRead) {
    Pair pair(true);
    pair.submit(Direction::kRead, 5);
    ASSERT_TRUE(pair.receive_request());
    Checksum checksum;
    checksum.start(true);
    checksum.update("hello", 5);
    const uint64_t value = checksum.value();
    ASSERT_TRUE(pair.answer({.kind = Kind::kData, .payload_bytes = 5, .id = 1}, "hallo", true));
    ASSERT_TRUE(pair.raw->send(&value, sizeof value));
    ASSERT_TRUE(pair.completion.wait(Deadline::after(20s)));
    EXPECT_EQ(pair.completion.result().error().code(), Code::kCorrupt);
    EXPECT_TRUE(pair.peer->usable());
}

TEST(TcpPeer, CancelOfAReadIsOverAtOnceAndCostsNobodyAnything) {
    Pair pair;
    pair.submit(Direction::kRead, 1000);
    ASSERT_TRUE(pair.receive_request());
    ASSERT_TRUE(pair.answer({.kind = Kind::kData, .payload_bytes = 1000, .id = 1}, std::string(400, 'x')));
    Completion other;
    const Slice later = pair.here.slice(2000, 0x10000, 3, other);
    other.add(1);
    pair.peer->submit(Direction::kRead, {&later, 1}, Submit::kLeave);
    EXPECT_EQ(pair.peer->cancel(pair.completion, pair.reason, Deadline::after(20s)), Stopped::kEverywhere);
    EXPECT_EQ(pair.completion.result().error().code(), Code::kTimedOut);
    std::fill(pair.here.memory.begin(), pair.here.memory.end(), kPoison);
    // What is on its way goes nowhere, and what follows it arrives.
    ASSERT_TRUE(pair.raw->send(std::string(600, 'y')));
    ASSERT_TRUE(pair.answer({.kind = Kind::kData, .payload_bytes = 3, .id = 2}, "abc"));
    ASSERT_TRUE(other.wait(Deadline::after(20s)));
    EXPECT_TRUE(other.result());
    EXPECT_EQ(std::memcmp(pair.here.memory.data() + 2000, "abc", 3), 0);
    EXPECT_EQ(std::count(pair.here.memory.begin(), pair.here.memory.begin() + 1000, kPoison), 1000);
    EXPECT_TRUE(pair.peer->usable());
}

TEST(TcpPeer, CancelTakesBackWhatIsStillBehindOthers) {
    Pair pair;
    pair.submit(Direction::kWrite, 4 << 20);  // fills the window, and the target takes nothing
    Completion behind;
    std::vector<Slice> slices;
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        slices = {pair.here.slice(0, 0x10000, 100, behind)};
        behind.reset();
        behind.add(1);
        pair.peer->submit(direction, slices, Submit::kLeave);
        EXPECT_EQ(pair.peer->cancel(behind, pair.reason, Deadline::after(20s)), Stopped::kEverywhere);
        EXPECT_EQ(behind.result().error().code(), Code::kTimedOut);
        EXPECT_TRUE(pair.peer->usable());
    }
    pair.peer->close(Error(Code::kCancelled, "test"));
}

TEST(TcpPeer, CancelOfAWriteNobodyAnswersReplacesTheLanesAndOthersGoOn) {
    Pair pair;
    pair.submit(Direction::kWrite, 1000);
    Completion other;
    const Slice bystanders[] = {pair.here.slice(5000, 0x20000, 500, other), pair.here.slice(7000, 0x30000, 300, other)};
    other.add(2);
    pair.peer->submit(Direction::kWrite, {bystanders, 1}, Submit::kLeave);
    pair.peer->submit(Direction::kRead, {bystanders + 1, 1}, Submit::kLeave);
    ASSERT_TRUE(pair.receive_request());
    Hello fence;
    std::optional<Raw> fresh;
    std::jthread target([&] { fresh.emplace(pair.target.welcome(&fence)); });
    EXPECT_EQ(pair.peer->cancel(pair.completion, pair.reason, Deadline::after(20s)), Stopped::kEverywhere);
    target.join();
    EXPECT_EQ(pair.completion.result().error().code(), Code::kTimedOut);
    EXPECT_EQ(fence.ended, std::vector{pair.hello.session});
    EXPECT_NE(fence.session, pair.hello.session);
    EXPECT_TRUE(pair.peer->usable());
    EXPECT_TRUE(pair.raw->closed_by_peer());
    pair.raw.swap(fresh);
    // What was cancelled is not asked again; the others are.
    auto header = pair.receive_request();
    ASSERT_TRUE(header);
    EXPECT_EQ(header->kind, Kind::kWrite);
    EXPECT_EQ(header->payload_bytes, 500u);
    std::vector<std::byte> payload(500);
    ASSERT_TRUE(pair.raw->receive(payload.data(), payload.size()));
    EXPECT_EQ(std::memcmp(payload.data(), pair.here.memory.data() + 5000, 500), 0);
    ASSERT_TRUE(pair.answer({.kind = Kind::kWritten, .id = header->id}));
    header = pair.receive_request();
    ASSERT_TRUE(header);
    EXPECT_EQ(header->kind, Kind::kRead);
    ASSERT_TRUE(pair.answer({.kind = Kind::kData, .payload_bytes = 300, .id = header->id}, std::string(300, 'z')));
    ASSERT_TRUE(other.wait(Deadline::after(20s)));
    EXPECT_EQ(other.result().value_or(0), 800u);
    EXPECT_EQ(pair.here.memory[7299], std::byte{'z'});
}

TEST(TcpPeer, ATargetThatDoesNotAnswerIsAskedOnceHoweverManyAreCancelled) {
    Pair pair;
    constexpr size_t kTasks = 20;
    std::vector<Completion> tasks(kTasks);
    std::vector<Slice> slices;
    for (Completion& task : tasks) {
        task.add(1);
        slices.push_back(pair.here.slice(0, 0x10000, 100, task));
    }
    pair.peer->submit(Direction::kWrite, slices, Submit::kLeave);
    ASSERT_TRUE(pair.receive_request());
    ASSERT_EQ(pair.target.waiting(), 0);
    for (Completion& task : tasks) EXPECT_EQ(pair.peer->cancel(task, pair.reason, Deadline::after(300ms)), Stopped::kRemoteInDoubt);
    for (const Completion& task : tasks) EXPECT_TRUE(task.failed());
    EXPECT_EQ(pair.target.waiting(), 1);
}

TEST(TcpPeer, WhoConnectsNextEndsWhatBrokeInDoubt) {
    Pair pair;
    pair.submit(Direction::kWrite, 4 << 20);
    ASSERT_TRUE(pair.receive_request());
    pair.raw->close();
    ASSERT_TRUE(pair.completion.wait(Deadline::after(20s)));
    std::unique_ptr<Peer> next, third;
    std::optional<Raw> raw, another;
    Hello hello;
    pair.connect(next, raw, hello);
    EXPECT_EQ(hello.ended, std::vector{pair.hello.session});
    // So it is known to be over, and nobody asks again.
    EXPECT_EQ(pair.peer->cancel(pair.completion, pair.reason, Deadline::after(20s)), Stopped::kEverywhere);
    pair.connect(third, another, hello);
    EXPECT_TRUE(hello.ended.empty());
    EXPECT_TRUE(next->usable());
}

TEST(TcpPeer, OtherConnectionsToATargetFinishTheirWorkButGetNoMoreOnceOneBrokeInDoubt) {
    Pair pair;
    std::unique_ptr<Peer> other;
    std::optional<Raw> raw;
    Hello hello;
    pair.connect(other, raw, hello);
    EXPECT_NE(hello.session, pair.hello.session);
    Completion theirs;
    const Slice slice = pair.here.slice(0, 0x10000, 3, theirs);
    theirs.add(1);
    other->submit(Direction::kRead, {&slice, 1}, Submit::kLeave);
    pair.submit(Direction::kWrite, 4 << 20);
    ASSERT_TRUE(pair.receive_request());
    EXPECT_TRUE(other->usable());
    pair.raw->close();
    ASSERT_TRUE(pair.completion.wait(Deadline::after(20s)));
    EXPECT_FALSE(other->usable()) << "what it sent could be overtaken";
    pair.raw.swap(raw);
    ASSERT_TRUE(pair.receive_request());
    ASSERT_TRUE(pair.answer({.kind = Kind::kData, .payload_bytes = 3, .id = 1}, "abc"));
    ASSERT_TRUE(theirs.wait(Deadline::after(20s)));
    EXPECT_TRUE(theirs.result());
}

TEST(TcpPeer, ManyConnectionsOfOneEngineToOneTargetDoNotDisturbEachOther) {
    Side here(4 << 20), there(4 << 20);
    fill(here.memory, 1);
    std::vector<std::unique_ptr<Peer>> peers;
    std::atomic<int> failed{0};
    {
        std::vector<std::jthread> threads;
        for (size_t t = 0; t < 4; ++t) {
            peers.push_back(here.connect(there));
            threads.emplace_back([&, t, peer = peers.back().get()] {
                for (int i = 0; i < 50; ++i) {
                    Completion completion;
                    const Slice slice = here.slice(t << 20, there.address(t << 20), 1 << 20, completion);
                    if (!run(*peer, i % 2 ? Direction::kRead : Direction::kWrite, {&slice, 1}, completion)) ++failed;
                }
            });
        }
    }
    EXPECT_EQ(failed, 0);
    EXPECT_TRUE(here.memory == there.memory);
}

TEST(TcpPeer, CancelOfAWriteIsInDoubtWhenTheTargetHangs) {
    Pair pair;
    pair.submit(Direction::kWrite, 4 << 20);
    ASSERT_TRUE(pair.receive_request());
    EXPECT_EQ(pair.peer->cancel(pair.completion, pair.reason, Deadline::after(50ms)), Stopped::kRemoteInDoubt);
    EXPECT_TRUE(pair.completion.done());
    EXPECT_EQ(pair.completion.result().error().code(), Code::kTimedOut);
}

TEST(TcpPeer, CloseLeavesItToTheDestructorToFenceAHangingTarget) {
    Pair pair;
    pair.submit(Direction::kWrite, 4 << 20);
    ASSERT_TRUE(pair.receive_request());
    pair.peer->close(Error(Code::kCancelled, "test"));  // nobody answers over there
    EXPECT_EQ(pair.completion.result().error().code(), Code::kCancelled);
    pair.peer.reset();
    Hello fence;
    Raw raw = pair.target.welcome(&fence);
    EXPECT_EQ(fence.ended, std::vector{pair.hello.session});
}

TEST(TcpPeer, AFenceOlderThanTheNewConnectionDoesNotHurtIt) {
    Side here(1 << 20, one_lane()), there(1 << 20);
    auto broken = here.connect(there);
    broken->close(Error(Code::kCancelled, "test"));
    Completion nothing;
    auto fresh = here.connect(there);
    broken->cancel(nothing, Error(Code::kCancelled, "test"), Deadline::after(5s));
    broken.reset();
    Completion completion;
    const Slice slice = here.slice(0, there.address(), 1000, completion);
    EXPECT_TRUE(run(*fresh, Direction::kWrite, {&slice, 1}, completion));
    EXPECT_TRUE(fresh->usable());
}

TEST(TcpPeer, ManyWhoWaitForATargetThatHangsUseNoTime) {
    Pair pair;
    constexpr size_t kThreads = 32;
    std::vector<Completion> completions(kThreads);
    std::vector<Slice> slices;
    for (Completion& completion : completions) {
        completion.add(1);
        slices.push_back(pair.here.slice(0, 0x10000, 10, completion));
    }
    const auto used = [] {
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);
        return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    };
    const auto before = used();
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            pair.peer->submit(Direction::kRead, {&slices[i], 1}, Submit::kWait);
            EXPECT_FALSE(pair.peer->wait(completions[i], Deadline::after(2s)));
        });
    }
    threads.clear();
    EXPECT_LT(used() - before, 400ms);
    pair.peer->close(Error(Code::kCancelled, "test"));
}

TEST(TcpPeer, WaitEndsAtItsDeadlineAndCancelsNothing) {
    Pair pair;
    pair.submit(Direction::kRead, 3, Submit::kWait);
    EXPECT_FALSE(pair.peer->wait(pair.completion, Deadline::after(30ms)));
    ASSERT_TRUE(pair.receive_request());
    ASSERT_TRUE(pair.answer({.kind = Kind::kData, .payload_bytes = 3, .id = 1}, "abc"));
    EXPECT_TRUE(pair.peer->wait(pair.completion, Deadline::after(20s)));
    EXPECT_EQ(std::memcmp(pair.here.memory.data(), "abc", 3), 0);
}

TEST(TcpPeer, WhatAWaiterLeavesBehindIsFinishedWithoutIt) {
    Pair pair;
    Completion other;
    pair.submit(Direction::kRead, 3, Submit::kWait);
    EXPECT_FALSE(pair.peer->wait(pair.completion, Deadline::after(30ms)));
    // Nobody waits in the peer any more: its own threads must take the answer.
    ASSERT_TRUE(pair.receive_request());
    ASSERT_TRUE(pair.answer({.kind = Kind::kData, .payload_bytes = 3, .id = 1}, "abc"));
    EXPECT_TRUE(pair.completion.wait(Deadline::after(20s)));
}

}  // namespace
}  // namespace mooncake::tcp
