// SPDX-License-Identifier: Apache-2.0
#include "rpc/outbox.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <thread>

#include "rpc/testing/raw_peer.h"

namespace mooncake::rpc {
namespace {

using testing::bytes_of;
using testing::kPatience;
using testing::RawPeer;
using testing::text_of;

struct Pair {
    net::Socket ours;
    RawPeer theirs;
};

Pair make_pair_of_sockets() {
    int fds[2];
    MC_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
    return {net::Socket(fds[0]), RawPeer(net::Socket(fds[1]))};
}

FrameHeader header_of(uint64_t call, const Bytes& body) {
    return {.kind = FrameKind::kRequest, .call = call, .body_bytes = static_cast<uint32_t>(body.size())};
}

Outbox::Next push(Outbox& outbox, uint64_t call, const Bytes& body) { return outbox.push(header_of(call, body), body); }

/// Queues frames until the socket is full; returns how many.
uint64_t fill(Outbox& outbox, const Bytes& body) {
    for (uint64_t call = 1;; ++call)
        if (push(outbox, call, body) == Outbox::Next::kAwaitWritable) return call;
}

TEST(Outbox, SendsAtOnceWhenItCan) {
    auto [ours, theirs] = make_pair_of_sockets();
    Outbox outbox(std::move(ours));
    EXPECT_EQ(push(outbox, 1, bytes_of("abc")), Outbox::Next::kNothing);
    EXPECT_EQ(outbox.push_borrowed(header_of(2, bytes_of("defgh")), bytes_of("defgh")), Outbox::Next::kNothing);
    EXPECT_EQ(push(outbox, 3, {}), Outbox::Next::kNothing);
    EXPECT_EQ(outbox.frames(), 0u);
    EXPECT_EQ(outbox.bytes(), 0u);
    EXPECT_EQ(text_of(theirs.read_frame()->body), "abc");
    EXPECT_EQ(text_of(theirs.read_frame()->body), "defgh");
    EXPECT_EQ(theirs.read_frame()->header.call, 3u);
}

TEST(Outbox, CorkedFramesLeaveTogether) {
    auto [ours, theirs] = make_pair_of_sockets();
    Outbox outbox(std::move(ours));
    outbox.cork();
    for (uint64_t call = 1; call <= 200; ++call) EXPECT_EQ(push(outbox, call, bytes_of("x")), Outbox::Next::kNothing);
    EXPECT_EQ(outbox.frames(), 200u);
    EXPECT_FALSE(net::wait_ready(theirs.fd(), POLLIN, Deadline::after(0s)));
    EXPECT_EQ(outbox.uncork(), Outbox::Next::kNothing);
    for (uint64_t call = 1; call <= 200; ++call) ASSERT_EQ(theirs.read_frame()->header.call, call);
}

TEST(Outbox, WhatDoesNotFitGoesLaterInOrder) {
    auto [ours, theirs] = make_pair_of_sockets();
    Outbox outbox(std::move(ours));
    const Bytes body = bytes_of(std::string(10'001, 'b'));
    const uint64_t count = fill(outbox, body);
    EXPECT_GT(outbox.frames(), 0u);
    EXPECT_NE(outbox.blocked_since(), Time::max());
    EXPECT_EQ(push(outbox, count + 1, body), Outbox::Next::kNothing);  // somebody awaits already
    EXPECT_EQ(outbox.push_borrowed(header_of(count + 2, body), body), Outbox::Next::kNothing);
    uint64_t read = 0;
    std::jthread flusher([&] {
        while (outbox.frames() != 0 && outbox.flush() != Outbox::Next::kBroken) std::this_thread::sleep_for(1ms);
    });
    while (read < count + 2) {
        const auto frame = theirs.read_frame();
        ASSERT_TRUE(frame);
        ASSERT_EQ(frame->header.call, ++read);
        ASSERT_EQ(frame->body, body);
    }
    flusher.join();
    EXPECT_EQ(outbox.frames(), 0u);
    EXPECT_EQ(outbox.blocked_since(), Time::max());
}

/// What the peer of a connection meets at its end, behind all that arrived: 0, or an errno.
int end_of(RawPeer& peer) {
    std::array<std::byte, 65536> buffer;
    for (const Deadline deadline = Deadline::after(kPatience); !deadline.passed();) {
        if (!net::wait_ready(peer.fd(), POLLIN, deadline)) break;
        const ssize_t got = ::recv(peer.fd(), buffer.data(), buffer.size(), 0);
        if (got <= 0) return got == 0 ? 0 : errno;
    }
    return ETIMEDOUT;
}

Pair make_connection() {
    testing::RawServer server;
    net::Socket ours(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = ::htons(server.port());
    to.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    MC_CHECK(::connect(ours.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    return {std::move(ours), server.accept()};
}

TEST(Outbox, AConnectionEndsInOrderOnlyIfEverythingWasSent) {
    for (const bool all_sent : {true, false}) {
        auto [ours, theirs] = make_connection();
        Outbox outbox(std::move(ours));
        if (all_sent) (void)push(outbox, 1, Bytes(1000));
        else fill(outbox, Bytes(100'000));
        outbox.close();
        EXPECT_EQ(end_of(theirs), all_sent ? 0 : ECONNRESET);
    }
}

TEST(Outbox, ABrokenOffConnectionDoesNotEndInOrder) {
    auto [ours, theirs] = make_connection();
    Outbox outbox(std::move(ours));
    (void)push(outbox, 1, Bytes(1000));
    outbox.reset_when_closed();
    outbox.close();
    EXPECT_EQ(end_of(theirs), ECONNRESET);
}

TEST(Outbox, AFrameThatHasNotLeftCanBeTakenBack) {
    auto [ours, theirs] = make_pair_of_sockets();
    Outbox outbox(std::move(ours));
    const Bytes body(10'000);
    const uint64_t count = fill(outbox, body);
    (void)push(outbox, count + 1, body);
    (void)push(outbox, count + 2, body);
    EXPECT_FALSE(outbox.discard(1));  // sent
    EXPECT_TRUE(outbox.discard(count + 1));
    EXPECT_FALSE(outbox.discard(count + 1));
    const size_t frames = outbox.frames();
    EXPECT_TRUE(outbox.discard(count + 2));
    EXPECT_EQ(outbox.frames(), frames - 1);
}

TEST(Outbox, ABrokenSocketIsReportedOnce) {
    auto [ours, theirs] = make_pair_of_sockets();
    Outbox outbox(std::move(ours));
    theirs.close();
    EXPECT_EQ(push(outbox, 1, bytes_of("x")), Outbox::Next::kBroken);
    EXPECT_EQ(outbox.failure().system_errno(), EPIPE);
    EXPECT_EQ(push(outbox, 2, bytes_of("x")), Outbox::Next::kNothing);
}

TEST(Outbox, NothingLeavesAfterClose) {
    auto [ours, theirs] = make_pair_of_sockets();
    Outbox outbox(std::move(ours));
    outbox.close();
    EXPECT_EQ(push(outbox, 1, bytes_of("x")), Outbox::Next::kNothing);
    EXPECT_EQ(outbox.flush(), Outbox::Next::kNothing);
    EXPECT_EQ(outbox.uncork(), Outbox::Next::kNothing);
    EXPECT_TRUE(theirs.closed_by_peer());
}

TEST(Outbox, ManyThreadsShareItWithoutMixingFrames) {
    constexpr uint64_t kThreads = 4, kFrames = 3000;
    auto [ours, theirs] = make_pair_of_sockets();
    Outbox outbox(std::move(ours));
    std::atomic<bool> over{false};
    std::jthread flusher([&] {  // plays the I/O thread
        while (!over.load(std::memory_order_acquire)) {
            (void)outbox.flush();
            std::this_thread::sleep_for(1ms);
        }
    });
    std::vector<std::jthread> senders;
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
        senders.emplace_back([&outbox, thread] {
            for (uint64_t i = 0; i < kFrames; ++i) {
                const Bytes body(i % 97, static_cast<std::byte>(i));
                const uint64_t call = thread << 32 | i;
                const auto next = i % 2 ? push(outbox, call, body) : outbox.push_borrowed(header_of(call, body), body);
                EXPECT_NE(next, Outbox::Next::kBroken);
            }
        });
    }
    uint64_t expected[kThreads] = {};
    for (uint64_t i = 0; i < kThreads * kFrames; ++i) {
        const auto frame = theirs.read_frame();
        ASSERT_TRUE(frame);
        uint64_t& next = expected[frame->header.call >> 32];
        ASSERT_EQ(frame->header.call & UINT32_MAX, next);  // in the order of each thread
        ASSERT_EQ(frame->body, Bytes(next % 97, static_cast<std::byte>(next)));
        ++next;
    }
    over.store(true, std::memory_order_release);
}

TEST(Outbox, ASocketThatIsHeldStaysOpenButEnds) {
    auto [ours, theirs] = make_pair_of_sockets();
    const int fd = ours.fd();
    Outbox outbox(std::move(ours));
    ASSERT_TRUE(outbox.hold());
    outbox.close();
    char byte = 0;
    EXPECT_EQ(::recv(fd, &byte, 1, MSG_DONTWAIT), 0);  // who waits for bytes is woken, and the number is still ours
    outbox.release();
    EXPECT_FALSE(outbox.hold());
    EXPECT_TRUE(theirs.closed_by_peer());
}

}  // namespace
}  // namespace mooncake::rpc
