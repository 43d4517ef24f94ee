// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "rpc/rpc.h"
#include "rpc/testing/other_process.h"
#include "rpc/testing/test_server.h"

namespace mooncake::rpc {
namespace {

using namespace testing;
using ::testing::ElementsAre;

/// Everything one call_stream() brought, in order.
class Listener {
public:
    uint64_t start(Client& client, const std::string& address, Method method = kHold) {
        return client.call_stream(
            address, method, {}, [this](std::span<const std::byte> part) { take(text_of(part)); }, end_.callback());
    }
    std::vector<std::string> parts() {
        Lock lock(mutex_);
        return parts_;
    }
    size_t count() { return parts().size(); }
    Result<Bytes> end() { return end_.get(); }

private:
    void take(std::string text) {
        Lock lock(mutex_);
        parts_.push_back(std::move(text));
    }

    Mutex mutex_;
    std::vector<std::string> parts_ MC_GUARDED_BY(mutex_);
    Caught end_;
};

TEST(RpcStream, PartsArriveInOrderAndBeforeTheReply) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    std::vector<std::string> sent;
    for (int i = 0; i < 500; ++i) {
        sent.push_back(format_text("{}{}", i, std::string(static_cast<size_t>(i) * 7, 'x')));
        ASSERT_TRUE(responder->part(bytes_of(sent.back())));
    }
    responder->reply(bytes_of("end"));
    const auto end = listener.end();
    ASSERT_TRUE(end);
    EXPECT_EQ(text_of(*end), "end");
    EXPECT_EQ(listener.parts(), sent);
    EXPECT_FALSE(responder->part(bytes_of("too late")));
}

TEST(RpcStream, APartArrivesWhileTheCallGoesOn) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    ASSERT_TRUE(responder->part(bytes_of("now")));
    EXPECT_TRUE(eventually([&] { return listener.count() == 1; }));
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon())) << "other calls share the connection";
    responder->fail(Error(Code::kStale, "over"));
    EXPECT_EQ(listener.end().error().code(), Code::kStale);
}

TEST(RpcStream, PartsThatMayComeLaterComeInOrderAndWithoutAnythingThatFollows) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    std::vector<std::string> sent;
    for (int round = 0; round < 20; ++round) {
        for (const auto haste : {Responder::Haste::kLater, Responder::Haste::kNow, Responder::Haste::kLater, Responder::Haste::kLater}) {
            sent.push_back(format_text("{}{}", sent.size(), std::string(sent.size() * 911, 'x')));
            ASSERT_TRUE(responder->part(bytes_of(sent.back()), haste));
        }
        ASSERT_TRUE(eventually([&] { return listener.count() == sent.size(); }));
    }
    EXPECT_EQ(listener.parts(), sent);
    responder->reply(bytes_of("end"));
    EXPECT_TRUE(listener.end());
}

/// As Listener, and in no hurry.
class PatientListener {
public:
    PatientListener(Client& client, std::string address, Duration patience)
        : client_(client), address_(std::move(address)), patience_(patience) {}

    void start() {
        client_.call_stream(
            address_, kHold, {},
            [this](std::span<const std::byte> part) {
                {
                    Lock lock(mutex_);
                    parts_.push_back(text_of(part));
                }
                client_.linger(address_, patience_);
            },
            end_.callback());
    }
    std::vector<std::string> parts() {
        Lock lock(mutex_);
        return parts_;
    }
    Result<Bytes> end() { return end_.get(); }

private:
    Client& client_;
    const std::string address_;
    const Duration patience_;
    Mutex mutex_;
    std::vector<std::string> parts_ MC_GUARDED_BY(mutex_);
    Caught end_;
};

TEST(RpcStream, WhoLingersStillGetsEverythingInOrder) {
    TestServer server;
    const auto client = Client::create({});
    PatientListener listener(*client, server.address(), 1ms);
    listener.start();
    const auto responder = server.take_held();
    std::vector<std::string> sent;
    for (int i = 0; i < 200; ++i) {
        sent.push_back(format_text("{}{}", i, std::string(static_cast<size_t>(i) * 31, 'x')));
        ASSERT_TRUE(responder->part(bytes_of(sent.back())));
        if (i % 50 != 0) continue;
        EXPECT_TRUE(eventually([&] { return listener.parts().size() == sent.size(); }));
    }
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
    responder->reply({});
    ASSERT_TRUE(listener.end());
    EXPECT_EQ(listener.parts(), sent);
}

TEST(RpcStream, LingeringEndsWhenMuchHasCome) {
    TestServer server;
    const auto client = Client::create({});
    PatientListener listener(*client, server.address(), 1h);
    listener.start();
    const auto responder = server.take_held();
    ASSERT_TRUE(responder->part(bytes_of("first")));
    ASSERT_TRUE(eventually([&] { return listener.parts().size() == 1; }));
    ASSERT_TRUE(responder->part(bytes_of("second")));
    // Not even the answer to a call on the same connection is read.
    EXPECT_EQ(client->call(server.address(), kEcho, {}, Deadline::after(50ms)).error().code(), Code::kTimedOut);
    EXPECT_EQ(listener.parts().size(), 1u);
    const std::string much(100'000, 'm');
    ASSERT_TRUE(responder->part(bytes_of(much)));
    ASSERT_TRUE(eventually([&] { return listener.parts().size() == 3; }));
    EXPECT_THAT(listener.parts(), ElementsAre("first", "second", much));
}

TEST(RpcStream, WhoLingersHearsTheLastWordsAndTheEndAtOnce) {
    auto server = std::make_unique<TestServer>();
    const auto client = Client::create({});
    PatientListener listener(*client, server->address(), 1h);
    listener.start();
    auto responder = server->take_held();
    ASSERT_TRUE(responder->part(bytes_of("first")));
    ASSERT_TRUE(eventually([&] { return listener.parts().size() == 1; }));
    ASSERT_TRUE(responder->part(bytes_of("last")));
    server.reset();
    const auto end = listener.end();
    ASSERT_FALSE(end);
    EXPECT_TRUE(peer_closed(end.error())) << end.error().to_string();
    EXPECT_THAT(listener.parts(), ElementsAre("first", "last"));
}

TEST(RpcStream, APlainCallGetsNoParts) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kHold, {}, soon(), call.callback());
    const auto responder = server.take_held();
    EXPECT_FALSE(responder->part(bytes_of("nobody asked")));
    responder->reply(bytes_of("whole"));
    EXPECT_EQ(text_of(*call.get()), "whole");
}

TEST(RpcStream, AServerThatKnowsNoPartsJustReplies) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address(), kEcho);
    EXPECT_TRUE(listener.end());
    Listener unknown;
    unknown.start(*client, server.address(), kUnknown);
    EXPECT_EQ(unknown.end().error().code(), Code::kNotSupported);
    EXPECT_EQ(listener.count() + unknown.count(), 0u);
}

TEST(RpcStream, PartsOfManyThreadsAllArrive) {
    TestServer server({.threads = 2});
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    const std::unique_ptr<Responder> responder = server.take_held();
    {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < 4; ++thread) {
            threads.emplace_back([&, thread] {
                for (int i = 0; i < 300; ++i) ASSERT_TRUE(responder->part(bytes_of(format_text("{} {}", thread, i))));
            });
        }
        // Replies on the same connection, which its own thread sends, must not hold parts back or reorder them.
        for (int i = 0; i < 300; ++i) ASSERT_TRUE(client->call(server.address(), kEcho, {}, soon()));
    }
    responder->reply({});
    ASSERT_TRUE(listener.end());
    std::vector<int> next(4);
    for (const std::string& part : listener.parts()) {
        const int thread = part[0] - '0';
        EXPECT_EQ(part, format_text("{} {}", thread, next[static_cast<size_t>(thread)]++));
    }
    EXPECT_THAT(next, ElementsAre(300, 300, 300, 300));
}

TEST(RpcStream, ASlowReaderIsCutOffAndDelaysNobody) {
    TestServer server({.stream_bytes_max = 4 << 20});
    RawPeer slow = RawPeer::connect(server.port());
    ASSERT_TRUE(slow.hello());
    ASSERT_TRUE(slow.send_frame(
        {.kind = FrameKind::kRequest, .flags = kFlagParts, .method = static_cast<uint16_t>(kHold), .call = 1, .left_us = kNoDeadlineUs},
        {}));
    const auto stuck = server.take_held();
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    const Bytes big(100'000);
    int taken = 0;
    while (taken < 10'000 && stuck->part(big)) ++taken;
    EXPECT_GE(taken, 40) << "at least the limit";
    EXPECT_LT(taken, 10'000) << "and then no more";
    EXPECT_FALSE(stuck->part(big));
    EXPECT_TRUE(responder->part(bytes_of("for the quick one")));
    EXPECT_TRUE(eventually([&] { return listener.count() == 1; }));
    stuck->fail(Error(Code::kNoSpace, "cut off"));
    // Whoever wakes up gets what was taken, then the end.
    for (int i = 0; i < taken; ++i) {
        const auto frame = slow.read_frame();
        ASSERT_TRUE(frame);
        ASSERT_EQ(frame->header.kind, FrameKind::kPart);
        ASSERT_EQ(frame->body.size(), big.size());
    }
    EXPECT_EQ(slow.read_frame()->header.kind, FrameKind::kError);
    responder->reply({});
    EXPECT_TRUE(listener.end());
}

TEST(RpcStream, APartLongerThanTheCallerTakesIsRefused) {
    TestServer server;
    const auto client = Client::create({.message_bytes_max = 10'000});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    EXPECT_FALSE(responder->part(Bytes(10'001)));
    EXPECT_TRUE(responder->part(Bytes(10'000)));
    responder->reply({});
    EXPECT_TRUE(listener.end());
    EXPECT_EQ(listener.count(), 1u);
}

TEST(RpcStream, ACancelledStreamEndsOnBothSides) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    const uint64_t call = listener.start(*client, server.address());
    const auto responder = server.take_held();
    ASSERT_TRUE(responder->part(bytes_of("one")));
    ASSERT_TRUE(eventually([&] { return listener.count() == 1; }));
    client->cancel(call);
    EXPECT_EQ(listener.end().error().code(), Code::kCancelled);
    EXPECT_TRUE(eventually([&] { return responder->abandoned(); }));
    EXPECT_FALSE(responder->part(bytes_of("two")));
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon())) << "the connection lives on";
    EXPECT_EQ(listener.count(), 1u);
}

TEST(RpcStream, AStoppedServerEndsItWithoutAWordMissing) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(responder->part(Bytes(1000)));
    server.stop();
    const auto end = listener.end();
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kUnavailable);
    EXPECT_TRUE(peer_closed(end.error())) << end.error().to_string();
    EXPECT_EQ(listener.count(), 100u);
    EXPECT_FALSE(responder->part(bytes_of("into the void")));
}

/// What OtherProcess runs. Tells the first one who listens a hundred parts, then stops itself (SIGSTOP).
void tell_and_stop(Responder::Haste haste) {
    TestServer server;
    OtherProcess::tell_port(server.port());
    const auto responder = server.take_held();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(responder->part(Bytes(1000), haste));
    ::raise(SIGSTOP);
}
TEST(RpcStreamPeer, DISABLED_ServesInAProcessOfItsOwn) { tell_and_stop(Responder::Haste::kNow); }
TEST(RpcStreamLatePeer, DISABLED_ServesInAProcessOfItsOwn) { tell_and_stop(Responder::Haste::kLater); }

TEST(RpcStream, AKilledServerEndsItWithoutAWordMissing) {
    for (const char* peer : {"RpcStreamPeer.*", "RpcStreamLatePeer.*"}) {
        OtherProcess server(peer);
        const auto client = Client::create({});
        Listener listener;
        listener.start(*client, server.address());
        ASSERT_TRUE(server.wait_stopped());
        server.kill();
        const auto end = listener.end();
        ASSERT_FALSE(end);
        EXPECT_TRUE(peer_closed(end.error())) << end.error().to_string();
        EXPECT_EQ(listener.count(), 100u) << peer;
    }
}

TEST(RpcStream, AServerKilledWithRequestsUnreadMayHaveSaidMore) {
    OtherProcess server("RpcStreamPeer.*");
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    ASSERT_TRUE(server.wait_stopped());
    std::vector<Caught> unread(5);
    for (auto& call : unread) client->call_async(server.address(), kEcho, Bytes(1000), Deadline::never(), call.callback());
    ASSERT_TRUE(eventually([&] { return listener.count() == 100; }));
    server.kill();
    const auto end = listener.end();
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kUnavailable);
    EXPECT_EQ(end.error().system_errno(), ECONNRESET);
    EXPECT_FALSE(peer_closed(end.error()));
    for (auto& call : unread) EXPECT_EQ(call.get().error().code(), Code::kUnavailable);
}

/// A server in the hands of the test that has answered the hello and read the request.
RawPeer raw_stream_server(RawServer& server, Client& client, Listener& listener) {
    listener.start(client, server.address());
    RawPeer peer = server.accept();
    MC_CHECK(peer.answer_hello());
    const auto request = peer.read_frame();
    MC_CHECK(request && request->header.flags == kFlagParts && request->header.left_us == kNoDeadlineUs);
    return peer;
}

TEST(RpcStream, PartsOfUnknownCallsAreIgnored) {
    RawServer server;
    const auto client = Client::create({});
    Listener listener;
    RawPeer peer = raw_stream_server(server, *client, listener);
    ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kPart, .call = 1}, bytes_of("for a call nobody made")));
    peer.close();
    EXPECT_TRUE(peer_closed(listener.end().error()));
    EXPECT_EQ(listener.count(), 0u);
}

TEST(RpcStream, WhatArrivedBeforeTheEndIsReadAlsoWhenSendingFailsFirst) {
    // Whether a send or a receive meets the end first is chance: many rounds.
    for (int round = 0; round < 50; ++round) {
        RawServer server;
        const auto client = Client::create({});
        Listener listener;
        listener.start(*client, server.address());
        RawPeer peer = server.accept();
        ASSERT_TRUE(peer.answer_hello());
        const auto request = peer.read_frame();
        ASSERT_TRUE(request);
        for (int i = 0; i < 20; ++i) ASSERT_TRUE(peer.send_frame({.kind = FrameKind::kPart, .call = request->header.call}, Bytes(1000)));
        ASSERT_EQ(::shutdown(peer.fd(), SHUT_WR), 0);
        std::vector<Caught> calls(20);
        std::jthread caller([&] {
            for (auto& call : calls) client->call_async(server.address(), kEcho, Bytes(100), Deadline::never(), call.callback());
        });
        peer.close();
        server.close();
        const auto end = listener.end();
        ASSERT_FALSE(end);
        EXPECT_TRUE(peer_closed(end.error())) << end.error().to_string();
        EXPECT_EQ(listener.count(), 20u);
        caller.join();
        for (auto& call : calls) EXPECT_FALSE(call.get());
    }
}

TEST(RpcStream, NonsenseIsNotAnOrderlyEnd) {
    RawServer server;
    const auto client = Client::create({});
    Listener listener;
    RawPeer peer = raw_stream_server(server, *client, listener);
    ASSERT_TRUE(peer.send("this is not a frame, however long one looks at it"));
    const auto end = listener.end();
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code(), Code::kUnavailable);
    EXPECT_EQ(end.error().system_errno(), EPROTO);
    EXPECT_FALSE(peer_closed(end.error()));
}

TEST(RpcStream, TellsTheEndOfAPeerFromSilence) {
    EXPECT_TRUE(peer_closed(Error(Code::kUnavailable, "closed", 0)));
    EXPECT_TRUE(peer_closed(Error(Code::kUnavailable, "closed", EPIPE)));
    EXPECT_FALSE(peer_closed(Error(Code::kUnavailable, "reset", ECONNRESET)));
    EXPECT_FALSE(peer_closed(Error(Code::kUnavailable, "silence", ETIMEDOUT)));
    EXPECT_FALSE(peer_closed(Error(Code::kUnavailable, "silence", EHOSTUNREACH)));
    EXPECT_FALSE(peer_closed(Error(Code::kCancelled, "we", 0)));
    EXPECT_FALSE(peer_closed(Error(Code::kStale, "the server said so", 0)));
}

TEST(RpcStream, AStoppedClientEndsIt) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    client->stop();
    EXPECT_EQ(listener.end().error().code(), Code::kCancelled);
    EXPECT_TRUE(eventually([&] { return responder->abandoned(); }));
    EXPECT_FALSE(responder->part(bytes_of("gone")));
    Listener later;
    later.start(*client, server.address());
    EXPECT_EQ(later.end().error().code(), Code::kCancelled);
}

TEST(RpcStream, AStreamThatIsSilentKeepsItsConnection) {
    TestServer server;
    const auto client = Client::create({.idle_timeout = 20ms});
    Listener listener;
    listener.start(*client, server.address());
    const auto responder = server.take_held();
    // Several idle times later; a second client with the same idle time must have lost its connection by then.
    const auto other = Client::create({.idle_timeout = 20ms});
    ASSERT_TRUE(other->call(server.address(), kEcho, {}, soon()));
    ASSERT_TRUE(eventually([&] { return !other->peer(server.address()); }));
    ASSERT_TRUE(responder->part(bytes_of("still there")));
    EXPECT_TRUE(eventually([&] { return listener.count() == 1; }));
    responder->reply({});
    EXPECT_TRUE(listener.end());
}

TEST(RpcStream, AForkedChildNeitherSendsNorStreams) {
    TestServer server;
    const auto client = Client::create({});
    Listener listener;
    listener.start(*client, server.address());
    auto responder = server.take_held();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        Listener in_child;
        in_child.start(*client, server.address());
        const bool good = in_child.end().error().code() == Code::kUnavailable && !responder->part(bytes_of("from the child"));
        client->stop();
        server.stop();
        responder.reset();
        ::_exit(good ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(responder->part(bytes_of("from the parent")));
    responder->reply({});
    EXPECT_TRUE(listener.end());
    EXPECT_THAT(listener.parts(), ElementsAre("from the parent"));
}

}  // namespace
}  // namespace mooncake::rpc
