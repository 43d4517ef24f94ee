// SPDX-License-Identifier: Apache-2.0
// What dead, silent and broken servers do to a client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rpc/testing/test_server.h"

namespace mooncake::rpc {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// An address whose connects hang: the queue of its listening socket is full.
class BlackHole {
public:
    BlackHole() : server_(0) {
        sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(server_.port()), .sin_addr = {htonl(INADDR_LOOPBACK)}};
        for (int i = 0; i < 4; ++i) {
            fillers_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            (void)::connect(fillers_.back().fd(), reinterpret_cast<sockaddr*>(&address), sizeof address);
        }
    }
    std::string address() const { return server_.address(); }

private:
    RawServer server_;
    std::vector<net::Socket> fillers_;
};

std::string dead_address() {
    RawServer server;
    return server.address();
}

TEST(ClientFaults, ARefusedConnectNamesAddressStageAndErrno) {
    const std::string address = dead_address();
    const auto client = Client::create({});
    const auto reply = client->call(address, kEcho, {}, soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kUnavailable);
    EXPECT_EQ(reply.error().system_errno(), ECONNREFUSED);
    EXPECT_THAT(reply.error().message(), AllOf(HasSubstr(address), HasSubstr("connect")));
}

TEST(ClientFaults, ANameWithoutAddressNamesTheStage) {
    const auto client = Client::create({});
    const auto reply = client->call("no-such-host.invalid:15000", kEcho, {}, soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kUnavailable);
    EXPECT_THAT(reply.error().message(), AllOf(HasSubstr("no-such-host.invalid:15000"), HasSubstr("resolve")));
}

TEST(ClientFaults, ABlackHoleCostsOnlyItsOwnCallers) {
    BlackHole hole;
    TestServer server;
    const auto client = Client::create({.connect_timeout = 300ms});
    Caught lost;
    client->call_async(hole.address(), kEcho, {}, Deadline::never(), lost.callback());
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
    const auto result = lost.get();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kUnavailable);
    EXPECT_EQ(result.error().system_errno(), ETIMEDOUT);
    EXPECT_THAT(result.error().message(), AllOf(HasSubstr(hole.address()), HasSubstr("connect")));
}

TEST(ClientFaults, ADeadlineEndsACallThatStillConnects) {
    BlackHole hole;
    const auto client = Client::create({});
    const auto reply = client->call(hole.address(), kEcho, {}, Deadline::after(50ms));
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kTimedOut);
    EXPECT_THAT(reply.error().message(), HasSubstr("connect"));
    Caught late, cancelled;
    client->call_async(hole.address(), kEcho, {}, Deadline::after(50ms), late.callback());
    const uint64_t id = client->call_async(hole.address(), kEcho, {}, Deadline::never(), cancelled.callback());
    client->cancel(id);
    EXPECT_EQ(cancelled.get().error().code(), Code::kCancelled);
    EXPECT_EQ(late.get().error().code(), Code::kTimedOut);
}

TEST(ClientFaults, AServerThatNeverSaysHelloIsGivenUp) {
    RawServer server;
    const auto client = Client::create({.connect_timeout = 200ms});
    const auto reply = client->call(server.address(), kEcho, {}, Deadline::never());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kUnavailable);
    EXPECT_EQ(reply.error().system_errno(), ETIMEDOUT);
    EXPECT_THAT(reply.error().message(), AllOf(HasSubstr(server.address()), HasSubstr("hello")));
}

TEST(ClientFaults, AServerOfAnotherKindIsRecognised) {
    RawServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
    RawPeer peer = server.accept();
    ASSERT_TRUE(peer.send("HTTP/1.1 400 Bad Request\r\n\r\n"));
    const auto result = call.get();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kUnavailable);
    EXPECT_THAT(result.error().message(), AllOf(HasSubstr("hello"), HasSubstr("not an rpc frame")));
}

TEST(ClientFaults, AServerThatClosesDuringHelloIsReported) {
    RawServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
    server.accept().close();
    const auto result = call.get();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), Code::kUnavailable);
    EXPECT_THAT(result.error().message(), HasSubstr("hello"));
}

TEST(ClientFaults, FramesOutOfPlaceEndTheConnection) {
    const Bytes frames[] = {
        frame_bytes({.kind = FrameKind::kRequest}, {}),
        frame_bytes({.kind = FrameKind::kCancel}, {}),
        frame_bytes({.kind = FrameKind::kHelloReply}, encode_hello_reply({})),
        Bytes(64),
    };
    for (const Bytes& frame : frames) {
        RawServer server;
        const auto client = Client::create({});
        Caught call;
        client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
        RawPeer peer = server.accept();
        ASSERT_TRUE(peer.answer_hello());
        ASSERT_TRUE(peer.send(frame));
        EXPECT_EQ(call.get().error().code(), Code::kUnavailable);
        EXPECT_TRUE(peer.closed_by_peer());
    }
}

TEST(ClientFaults, AnAnswerBeforeHelloEndsTheConnection) {
    RawServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
    RawPeer peer = server.accept();
    ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kReply, .call = 1}, {}));
    EXPECT_EQ(call.get().error().code(), Code::kUnavailable);
}

TEST(ClientFaults, AnswersToUnknownCallsAreIgnored) {
    RawServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
    RawPeer peer = server.accept();
    ASSERT_TRUE(peer.answer_hello());
    const auto request = peer.read_frame();
    ASSERT_TRUE(request);
    for (const uint64_t id : {uint64_t{0}, request->header.call + 1, UINT64_MAX})
        ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kReply, .call = id}, {}));
    ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kReply, .call = request->header.call}, bytes_of("right")));
    EXPECT_EQ(text_of(*call.get()), "right");
}

TEST(ClientFaults, AReplyLongerThanWeTakeEndsTheConnection) {
    RawServer server;
    const auto client = Client::create({.message_bytes_max = 1000});
    Caught call;
    client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
    RawPeer peer = server.accept();
    ASSERT_TRUE(peer.answer_hello());
    ASSERT_TRUE(peer.send(encode_header({.kind = FrameKind::kReply, .body_bytes = 1001})));
    EXPECT_EQ(call.get().error().code(), Code::kUnavailable);
}

TEST(ClientFaults, ABrokenConnectionFailsAllItsCalls) {
    RawServer server;
    const auto client = Client::create({});
    std::vector<Caught> calls(20);
    for (auto& call : calls) client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
    RawPeer peer = server.accept();
    ASSERT_TRUE(peer.answer_hello());
    for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(peer.read_frame());
    peer.close();
    for (auto& call : calls) {
        const auto result = call.get();
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code(), Code::kUnavailable);
        EXPECT_THAT(result.error().message(), AllOf(HasSubstr(server.address()), HasSubstr("call")));
    }
}

TEST(ClientFaults, ARequestIsNeverRepeated) {
    RawServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kEcho, bytes_of("once"), Deadline::never(), call.callback());
    {
        RawPeer peer = server.accept();
        ASSERT_TRUE(peer.answer_hello());
        ASSERT_TRUE(peer.read_frame());
    }
    EXPECT_FALSE(call.get());
    EXPECT_TRUE(server.quiet_for(100ms));
}

TEST(ClientFaults, AServerThatCameBackIsFoundAgain) {
    auto server = std::make_unique<TestServer>(ServerOptions{.hello = {.incarnation = {1}}});
    const uint16_t port = server->port();
    const std::string address = server->address();
    const auto client = Client::create({});
    ASSERT_TRUE(client->call(address, kEcho, {}, soon()));
    EXPECT_EQ(client->peer(address)->incarnation.value, 1u);
    server.reset();
    EXPECT_TRUE(eventually([&] { return !client->call(address, kEcho, {}, soon()); }));
    server = std::make_unique<TestServer>(ServerOptions{.port = port, .hello = {.incarnation = {2}}});
    EXPECT_TRUE(eventually([&] { return client->call(address, kEcho, {}, soon()).has_value(); }));
    EXPECT_EQ(client->peer(address)->incarnation.value, 2u);
}

TEST(ClientFaults, AStormOfCallsToADeadAddressMakesNoStormOfConnects) {
    RawServer server;
    const auto client = Client::create({});
    int connects = 0;
    Caught first;
    client->call_async(server.address(), kEcho, {}, Deadline::never(), first.callback());
    server.accept().close();
    ++connects;
    ASSERT_FALSE(first.get());
    // While the failure is remembered calls fail at once, with the same words.
    const Time begin = Clock::now();
    int failed = 0;
    while (Clock::now() - begin < 50ms)
        failed += client->call(server.address(), kEcho, {}, Deadline::after(10ms)).error().code() == Code::kUnavailable;
    if (Clock::now() - begin < 90ms) {  // else this machine slept too long to tell
        EXPECT_GT(failed, 100);
        EXPECT_TRUE(server.quiet_for(0ms));
    }
    EXPECT_EQ(connects, 1);
}

TEST(ClientFaults, ManyCallersOfOneAddressConnectOnce) {
    RawServer server;
    const auto client = Client::create({});
    std::vector<Caught> calls(50);
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 5; ++thread) {
        threads.emplace_back([&, thread] {
            for (size_t i = 0; i < 10; ++i)
                client->call_async(server.address(), kEcho, {}, Deadline::never(), calls[static_cast<size_t>(thread) * 10 + i].callback());
        });
    }
    threads.clear();
    RawPeer peer = server.accept();
    ASSERT_TRUE(peer.answer_hello());
    for (size_t i = 0; i < calls.size(); ++i) {
        const auto request = peer.read_frame();
        ASSERT_TRUE(request);
        ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kReply, .call = request->header.call}, {}));
    }
    for (auto& call : calls) EXPECT_TRUE(call.get());
    EXPECT_TRUE(server.quiet_for(0ms));
}

TEST(ClientFaults, AnUnusedConnectionIsClosedAndOpenedAgain) {
    RawServer server;
    const auto client = Client::create({.idle_timeout = 50ms});
    for (int round = 0; round < 3; ++round) {
        Caught call;
        client->call_async(server.address(), kEcho, {}, Deadline::never(), call.callback());
        RawPeer peer = server.accept();
        ASSERT_TRUE(peer.answer_hello());
        const auto request = peer.read_frame();
        ASSERT_TRUE(request);
        EXPECT_FALSE(peer.closed_by_peer(200ms));  // a call is outstanding: the connection is in use
        ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kReply, .call = request->header.call}, {}));
        EXPECT_TRUE(call.get());
        EXPECT_TRUE(peer.closed_by_peer());
        const bool quiet = round != 1 || server.quiet_for(150ms);  // by the end of which the client forgot the address altogether
        EXPECT_TRUE(quiet);
    }
}

TEST(ClientFaults, NoCallFailsBecauseItsConnectionWasJustClosedAsUnused) {
    TestServer server;
    const auto client = Client::create({.idle_timeout = 10ms});
    for (int i = 0; i < 60; ++i) {
        const auto reply = client->call(server.address(), kEcho, {}, soon());
        ASSERT_TRUE(reply) << reply.error().to_string();
        // The next call comes just when the client has closed it, or is about to.
        ASSERT_TRUE(i % 2 != 0 || eventually([&] { return !client->peer(server.address()); }));
    }
}

TEST(ClientFaults, TimedOutRequestsDoNotPileUpBehindAServerThatReadsNothing) {
    RawServer server;
    const auto client = Client::create({});
    Caught first;
    client->call_async(server.address(), kEcho, {}, Deadline::never(), first.callback());
    RawPeer peer = server.accept();
    ASSERT_TRUE(peer.answer_hello({.message = {.message_bytes_max = 64 << 20}}));
    ASSERT_TRUE(peer.read_frame());
    const Bytes large(8 << 20);
    for (int i = 0; i < 10; ++i)
        EXPECT_EQ(client->call(server.address(), kEcho, large, Deadline::after(10ms)).error().code(), Code::kTimedOut);
    // What the server reads now: the request that had begun to leave, its cancel, and the one below; not ten times 8 MiB.
    Caught last;
    client->call_async(server.address(), kEcho, bytes_of("last"), Deadline::never(), last.callback());
    uint64_t bytes = 0;
    for (;;) {
        const auto frame = peer.read_frame();
        ASSERT_TRUE(frame);
        bytes += frame->body.size();
        if (text_of(frame->body) != "last") continue;
        ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kReply, .call = frame->header.call}, {}));
        break;
    }
    EXPECT_LE(bytes, 3 * large.size());
    EXPECT_TRUE(last.get());
}

TEST(ClientFaults, StopsPromptlyInEveryState) {
    BlackHole hole;
    RawServer silent;
    TestServer server;
    const auto client = Client::create({.threads = 2});
    std::vector<Caught> calls(5);
    client->call_async(hole.address(), kEcho, {}, Deadline::never(), calls[0].callback());
    client->call_async(silent.address(), kEcho, {}, Deadline::never(), calls[1].callback());
    client->call_async(server.address(), kHold, {}, Deadline::never(), calls[2].callback());
    client->call_async("no-such-host.invalid:1", kEcho, {}, Deadline::never(), calls[3].callback());
    client->call_async(dead_address(), kEcho, {}, Deadline::never(), calls[4].callback());
    const auto held = server.take_held();
    std::jthread other([&] { client->stop(); });
    const Time begin = Clock::now();
    client->stop();
    EXPECT_LT(Clock::now() - begin, 5s);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(calls[i].get().error().code(), Code::kCancelled);
    for (size_t i = 3; i < 5; ++i) EXPECT_FALSE(calls[i].get());
}

TEST(ClientFaults, CallsRacingWithStopAllEnd) {
    TestServer server;
    for (int round = 0; round < 20; ++round) {
        const auto client = Client::create({});
        std::atomic<int> begun{0}, ended{0};
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 3; ++thread) {
            threads.emplace_back([&, thread] {
                for (int i = 0; i < 100; ++i) {
                    if (thread == 0) {
                        (void)client->call(server.address(), kEcho, {}, Deadline::never());
                        continue;
                    }
                    begun.fetch_add(1);
                    client->call_async(server.address(), kEcho, {}, Deadline::after(1ms),
                                       [&](const Result<Bytes>&) { ended.fetch_add(1); });
                }
            });
        }
        while (begun.load() < round * 5) std::this_thread::yield();
        client->stop();
        threads.clear();
        EXPECT_TRUE(eventually([&] { return ended.load() == begun.load(); }));
    }
}

TEST(ClientFaults, AForkedChildLeavesTheParentsConnectionsAlone) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kHold, {}, Deadline::never(), call.callback());
    auto responder = server.take_held();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        bool good = client->call(server.address(), kEcho, {}, soon()).error().code() == Code::kUnavailable;
        client->stop();
        server.stop();
        responder.reset();
        ::_exit(good ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    responder->reply(bytes_of("for the parent"));
    EXPECT_EQ(text_of(*call.get()), "for the parent");
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
}

}  // namespace
}  // namespace mooncake::rpc
