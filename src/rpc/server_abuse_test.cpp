// SPDX-License-Identifier: Apache-2.0
// What strangers, broken and slow peers do to a server, while a good client works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <random>

#include "base/log.h"
#include "rpc/testing/test_server.h"

namespace mooncake::rpc {
namespace {

using namespace testing;

/// A server and a client of good manners.
class ServerAbuse : public ::testing::Test {
protected:
    void expect_service(TestServer& server) {
        const auto reply = client_->call(server.address(), kEcho, bytes_of("fine"), soon());
        ASSERT_TRUE(reply) << reply.error().to_string();
        EXPECT_EQ(text_of(*reply), "fine");
    }
    std::unique_ptr<Client> client_ = Client::create({});
};

FrameHeader request(uint64_t call, Method method = kEcho) {
    return {.kind = FrameKind::kRequest, .method = static_cast<uint16_t>(method), .call = call, .left_us = kNoDeadlineUs};
}

TEST_F(ServerAbuse, StrangersAreClosedAtOnce) {
    TestServer server;
    expect_service(server);
    std::mt19937 random(5);
    std::string noise(5000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    const std::string_view texts[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                      std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11),
                                      "\r\n",
                                      std::string_view("\0\0\0\0\0\0\0\0", 8),
                                      "SSH-2.0-OpenSSH_9.2\r\n",
                                      "{\"type\": 1}",
                                      noise};
    for (const std::string_view text : texts) {
        RawPeer stranger = RawPeer::connect(server.port());
        ASSERT_TRUE(stranger.send(text));
        EXPECT_TRUE(stranger.closed_by_peer()) << text.substr(0, 10);
        expect_service(server);
    }
}

TEST_F(ServerAbuse, ConnectionsThatSayNothingAreClosedInTime) {
    TestServer server({.hello_timeout = 100ms});
    RawPeer silent = RawPeer::connect(server.port());
    RawPeer half = RawPeer::connect(server.port());
    const Bytes hello = frame_bytes({.kind = FrameKind::kHello}, encode_hello({}));
    ASSERT_TRUE(half.send(std::span(hello).first(hello.size() - 9)));
    expect_service(server);
    EXPECT_TRUE(silent.closed_by_peer());
    EXPECT_TRUE(half.closed_by_peer());
    expect_service(server);
}

TEST_F(ServerAbuse, AHalfMessageIsClosedInTimeAndDelaysNobody) {
    TestServer server({.idle_body_timeout = 200ms});
    RawPeer header = RawPeer::connect(server.port()), body = RawPeer::connect(server.port());
    ASSERT_TRUE(header.hello());
    ASSERT_TRUE(body.hello());
    const Bytes frame = frame_bytes(request(1), Bytes(1000));
    ASSERT_TRUE(header.send(std::span(frame).first(5)));
    ASSERT_TRUE(body.send(std::span(frame).first(500)));
    expect_service(server);
    EXPECT_TRUE(header.closed_by_peer());
    EXPECT_TRUE(body.closed_by_peer());
    expect_service(server);
}

/// The end of a connection that the server has in this process; -1 if there is none.
int accepted_end_of(int connected) {
    const auto port_by = [](int fd, int (*name)(int, sockaddr*, socklen_t*)) {
        sockaddr_storage address{};
        socklen_t length = sizeof(address);
        if (name(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
        if (address.ss_family == AF_INET6) return int{reinterpret_cast<const sockaddr_in6&>(address).sin6_port};
        return address.ss_family == AF_INET ? int{reinterpret_cast<const sockaddr_in&>(address).sin_port} : 0;
    };
    for (int fd = 0; fd < 1024; ++fd)
        if (fd != connected && port_by(fd, ::getpeername) == port_by(connected, ::getsockname)) return fd;
    return -1;
}

TEST_F(ServerAbuse, AClientThatVanishesWithAnAnswerUnderWayIsGivenUpInTime) {
    TestServer server({.idle_body_timeout = 7s});
    RawPeer peer = RawPeer::connect(server.port());
    ASSERT_TRUE(peer.hello());
    const int accepted = accepted_end_of(peer.fd());
    ASSERT_GE(accepted, 0);
    // By the kernel, who alone knows that nothing is confirmed; keep-alive does not run meanwhile.
    unsigned milliseconds = 0;
    socklen_t length = sizeof(milliseconds);
    ASSERT_EQ(::getsockopt(accepted, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, &length), 0);
    EXPECT_EQ(milliseconds, 7000u);
}

TEST_F(ServerAbuse, AnIdleConnectionIsKept) {
    TestServer server({.hello_timeout = 50ms, .idle_body_timeout = 50ms});
    RawPeer idle = RawPeer::connect(server.port());
    ASSERT_TRUE(idle.hello());
    EXPECT_FALSE(idle.closed_by_peer(300ms));
    ASSERT_TRUE(idle.send_frame(request(9), bytes_of("still here")));
    EXPECT_EQ(text_of(idle.read_frame()->body), "still here");
}

TEST_F(ServerAbuse, ASlowButSteadySenderIsServed) {
    TestServer server({.idle_body_timeout = 1s});
    RawPeer slow = RawPeer::connect(server.port());
    ASSERT_TRUE(slow.hello());
    const std::string text(104, 'x');  // no padding follows, so the answer comes after the last byte
    const Time begin = Clock::now();
    for (const std::byte& byte : frame_bytes(request(1), bytes_of(text))) {
        EXPECT_FALSE(slow.closed_by_peer(10ms));  // longer in sum than the time-out, shorter each
        ASSERT_TRUE(slow.send({&byte, 1}));
    }
    EXPECT_GT(Clock::now() - begin, 1s);
    EXPECT_EQ(text_of(slow.read_frame()->body), text);
}

TEST_F(ServerAbuse, FramesSplitAtEveryByteAreUnderstood) {
    TestServer server;
    RawPeer peer = RawPeer::connect(server.port());
    ASSERT_TRUE(peer.hello());
    Bytes stream;
    for (uint64_t call = 1; call <= 3; ++call) {
        const Bytes frame = frame_bytes(request(call), bytes_of(std::string(call * 3, 'x')));
        stream.insert(stream.end(), frame.begin(), frame.end());
    }
    for (size_t split = 1; split < stream.size(); ++split) {
        ASSERT_TRUE(peer.send(std::span(stream).first(split)));
        ASSERT_TRUE(peer.send(std::span(stream).subspan(split)));
        for (uint64_t call = 1; call <= 3; ++call) {
            const auto frame = peer.read_frame();
            ASSERT_TRUE(frame);
            EXPECT_EQ(frame->header.call, call);
            EXPECT_EQ(frame->body.size(), call * 3);
        }
    }
}

TEST_F(ServerAbuse, HugeLengthsAreClosed) {
    TestServer server({.message_bytes_max = 1000});
    for (const uint32_t length : {1001u, 0x7fffffffu, UINT32_MAX}) {
        RawPeer peer = RawPeer::connect(server.port());
        ASSERT_TRUE(peer.hello());
        FrameHeader header = request(1);
        header.body_bytes = length;
        ASSERT_TRUE(peer.send(encode_header(header)));
        EXPECT_TRUE(peer.closed_by_peer());
    }
    expect_service(server);
}

TEST_F(ServerAbuse, AHelloLongerThanItsLimitIsClosed) {
    TestServer server;
    RawPeer peer = RawPeer::connect(server.port());
    ASSERT_TRUE(peer.send(encode_header({.kind = FrameKind::kHello, .body_bytes = kHelloBytesMax + 1})));
    EXPECT_TRUE(peer.closed_by_peer());
    expect_service(server);
}

TEST_F(ServerAbuse, FramesOutOfPlaceAreClosed) {
    TestServer server;
    const Bytes hello = frame_bytes({.kind = FrameKind::kHello}, encode_hello({.message_bytes_max = 100}));
    const auto after_hello = [&](const Bytes& frame) {
        RawPeer peer = RawPeer::connect(server.port());
        EXPECT_TRUE(peer.hello());
        EXPECT_TRUE(peer.send(frame));
        return peer.closed_by_peer();
    };
    const auto instead_of_hello = [&](const Bytes& frame) {
        RawPeer peer = RawPeer::connect(server.port());
        EXPECT_TRUE(peer.send(frame));
        return peer.closed_by_peer();
    };
    EXPECT_TRUE(after_hello(hello));
    EXPECT_TRUE(after_hello(frame_bytes({.kind = FrameKind::kReply}, {})));
    EXPECT_TRUE(after_hello(frame_bytes({.kind = FrameKind::kError}, {})));
    EXPECT_TRUE(after_hello(frame_bytes({.kind = FrameKind::kHelloReply}, {})));
    EXPECT_TRUE(instead_of_hello(frame_bytes(request(1), {})));
    EXPECT_TRUE(instead_of_hello(frame_bytes({.kind = FrameKind::kCancel}, {})));
    EXPECT_TRUE(instead_of_hello(frame_bytes({.kind = FrameKind::kHello}, bytes_of("this is no hello at all"))));
    expect_service(server);
}

TEST_F(ServerAbuse, ANewerMinorVersionIsWelcome) {
    TestServer server;
    RawPeer peer = RawPeer::connect(server.port());
    const auto reply = peer.hello({.minor = 60000, .message_bytes_max = 100, .hello = {.features = UINT64_MAX}});
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->refusal, "");
}

TEST_F(ServerAbuse, CancelsOfUnknownCallsAreIgnored) {
    TestServer server;
    RawPeer peer = RawPeer::connect(server.port());
    ASSERT_TRUE(peer.hello());
    ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kCancel, .call = 99}, {}));
    ASSERT_TRUE(peer.send_frame(request(1), bytes_of("x")));
    EXPECT_EQ(peer.read_frame()->header.call, 1u);
}

TEST_F(ServerAbuse, ARequestWithoutTimeLeftIsNotRun) {
    TestServer server;
    RawPeer peer = RawPeer::connect(server.port());
    ASSERT_TRUE(peer.hello());
    FrameHeader header = request(1, kHold);
    header.left_us = 0;
    ASSERT_TRUE(peer.send_frame(header, {}));
    const auto frame = peer.read_frame();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->header.kind, FrameKind::kError);
    EXPECT_EQ(server.held(), 0u);
}

TEST_F(ServerAbuse, ConnectionsBeyondTheLimitAreClosedAtOnce) {
    TestServer server({.connections_max = 4});
    expect_service(server);
    std::vector<RawPeer> peers;
    for (int i = 0; i < 3; ++i) {
        peers.push_back(RawPeer::connect(server.port()));
        ASSERT_TRUE(peers.back().hello());
    }
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(RawPeer::connect(server.port()).closed_by_peer());
    expect_service(server);
    peers.pop_back();
    EXPECT_TRUE(eventually([&] { return RawPeer::connect(server.port()).hello().has_value(); }));
}

TEST_F(ServerAbuse, RequestsBeyondTheQueueAreNotReadUntilAnswersLeave) {
    constexpr size_t kQueue = 8;
    TestServer server({.queued_requests_max = kQueue});
    RawPeer peer = RawPeer::connect(server.port());
    ASSERT_TRUE(peer.hello());
    // Bodies so large that one receive of the server holds less than one request.
    const Bytes body(100'000);
    std::jthread sender([&] {
        for (uint64_t call = 1; call <= 4 * kQueue; ++call) EXPECT_TRUE(peer.send_frame(request(call, kHold), body));
    });
    ASSERT_TRUE(eventually([&] { return server.held() >= kQueue; }));
    expect_service(server);
    EXPECT_LE(server.held(), kQueue + 1);
    for (uint64_t call = 1; call <= 4 * kQueue; ++call) {
        server.take_held()->reply({});
        const auto frame = peer.read_frame();
        ASSERT_TRUE(frame);
        EXPECT_EQ(frame->header.call, call);
    }
}

TEST_F(ServerAbuse, AClientThatReadsNoRepliesIsDropped) {
    TestServer server({.idle_body_timeout = 200ms});
    RawPeer deaf = RawPeer::connect(server.port());
    ASSERT_TRUE(deaf.hello());
    const uint32_t size = 1 << 20;
    Bytes body(sizeof size);
    std::memcpy(body.data(), &size, sizeof size);
    // Far more than fits into the sockets' buffers and the server's own limit; so at last our requests are not taken either.
    for (uint64_t call = 1; call <= 64; ++call) ASSERT_TRUE(deaf.send_frame(request(call, kSize), body));
    expect_service(server);
    ASSERT_TRUE(eventually([&] { return !deaf.send_frame(request(99), body); }));  // reset
    expect_service(server);
}

TEST_F(ServerAbuse, AClientThatReadsNoRepliesOfOtherThreadsIsDropped) {
    TestServer server({.idle_body_timeout = 100ms});
    RawPeer deaf = RawPeer::connect(server.port());
    ASSERT_TRUE(deaf.hello({.message_bytes_max = 64 << 20}));
    ASSERT_TRUE(deaf.send_frame(request(1, kHold), {}));
    ASSERT_TRUE(deaf.send_frame(request(2, kHold), {}));
    const auto large = server.take_held(), last = server.take_held();
    EXPECT_FALSE(deaf.closed_by_peer(150ms));  // by the end of which the timer that watched over the hello is over
    large->reply(Bytes(32 << 20));
    EXPECT_FALSE(last->abandoned());
    EXPECT_TRUE(eventually([&] { return last->abandoned(); }));
    expect_service(server);
}

TEST_F(ServerAbuse, ABrokenConnectionAbandonsItsRequests) {
    TestServer server;
    RawPeer peer = RawPeer::connect(server.port());
    ASSERT_TRUE(peer.hello());
    ASSERT_TRUE(peer.send_frame(request(1, kHold), {}));
    const auto responder = server.take_held();
    EXPECT_FALSE(responder->abandoned());
    peer.close();
    EXPECT_TRUE(eventually([&] { return responder->abandoned(); }));
    responder->reply(bytes_of("nobody there"));
    expect_service(server);
}

TEST_F(ServerAbuse, StopsPromptlyWithConnectionsInAnyState) {
    for (int round = 0; round < 5; ++round) {
        TestServer server({.threads = 2});
        RawPeer silent = RawPeer::connect(server.port()), partial = RawPeer::connect(server.port()), open = RawPeer::connect(server.port()),
                waiting = RawPeer::connect(server.port()), deaf = RawPeer::connect(server.port());
        for (RawPeer* peer : {&partial, &open, &waiting, &deaf}) ASSERT_TRUE(peer->hello());
        const Bytes frame = frame_bytes(request(1), Bytes(1000));
        ASSERT_TRUE(partial.send(std::span(frame).first(77)));
        ASSERT_TRUE(waiting.send_frame(request(2, kHold), {}));
        const uint32_t size = 1 << 20;
        Bytes body(sizeof size);
        std::memcpy(body.data(), &size, sizeof size);
        for (uint64_t call = 1; call <= 30; ++call) ASSERT_TRUE(deaf.send_frame(request(call, kSize), body));
        const auto responder = server.take_held();
        const Time begin = Clock::now();
        server.stop();
        EXPECT_LT(Clock::now() - begin, 5s);
        for (RawPeer* peer : {&silent, &partial, &open, &waiting, &deaf}) EXPECT_TRUE(peer->closed_by_peer());
    }
}

TEST_F(ServerAbuse, RunningOutOfDescriptorsNeitherSpinsNorKillsTheListener) {
    TestServer server;
    expect_service(server);
    std::vector<net::Socket> knockers;
    for (int i = 0; i < 4; ++i) knockers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const UniqueFd lowest(::dup(0));
    const rlimit none{.rlim_cur = static_cast<rlim_t>(lowest.get()), .rlim_max = before.rlim_max};
    // UBSan looks at objects of a type it meets for the first time through a pipe, so those of the log must not be new to it below.
    MC_LOG_WARNING("descriptors of port {} run out: errno {}", server.port(), EMFILE);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(server.port()), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    bool connected = true;
    for (const net::Socket& socket : knockers)
        connected &= ::connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    rusage begin{}, end{};
    ::getrusage(RUSAGE_SELF, &begin);
    std::this_thread::sleep_for(300ms);  // time in which a spinning server would burn a core
    ::getrusage(RUSAGE_SELF, &end);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_TRUE(connected);
    const auto micros = [](const rusage& usage) {
        return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    };
    EXPECT_LT(micros(end) - micros(begin), 150'000);
    for (net::Socket& socket : knockers) EXPECT_TRUE(RawPeer(std::move(socket)).hello());
    expect_service(server);
}

TEST_F(ServerAbuse, SurvivesRandomTraffic) {
    TestServer server({.hello_timeout = 200ms, .idle_body_timeout = 200ms});
    std::mt19937 random(11);
    for (int round = 0; round < 300; ++round) {
        RawPeer peer = RawPeer::connect(server.port());
        if (random() % 4 != 0) {
            ASSERT_TRUE(peer.hello());
        }
        for (uint32_t i = 0; i < random() % 6; ++i) {
            Bytes frame = frame_bytes({.kind = static_cast<FrameKind>(3 + random() % 4),
                                       .method = static_cast<uint16_t>(random() % 4),
                                       .call = random() % 3,
                                       .left_us = random() % 2 ? kNoDeadlineUs : random()},
                                      Bytes(random() % 300));
            if (random() % 3 == 0) frame[random() % frame.size()] ^= static_cast<std::byte>(random());
            if (random() % 3 == 0) frame.resize(random() % frame.size());
            if (!peer.send(frame)) break;
        }
    }
    expect_service(server);
}

}  // namespace
}  // namespace mooncake::rpc
