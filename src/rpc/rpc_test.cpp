// SPDX-License-Identifier: Apache-2.0
#include "rpc/rpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "rpc/testing/test_server.h"

namespace mooncake::rpc {
namespace {

using namespace testing;
using ::testing::HasSubstr;

Bytes number_body(uint32_t number) {
    Bytes body(sizeof number);
    std::memcpy(body.data(), &number, sizeof number);
    return body;
}

TEST(Rpc, EchoesBodiesOfAllSizes) {
    TestServer server({.message_bytes_max = 64 << 20});
    const auto client = Client::create({});
    for (const size_t size : {0, 1, 7, 8, 9, 64, 4095, 65'536, 65'537, 1'000'001, 20'000'003}) {
        Bytes body(size);
        for (size_t i = 0; i < size; ++i) body[i] = static_cast<std::byte>(i * 7 + i / 256);
        const auto reply = client->call(server.address(), kEcho, body, soon());
        ASSERT_TRUE(reply) << reply.error().to_string();
        EXPECT_TRUE(*reply == body) << size;
    }
}

TEST(Rpc, ManyThreadsShareOneConnection) {
    TestServer server({.threads = 2, .connections_max = 1});
    const auto client = Client::create({});
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 8; ++thread) {
        threads.emplace_back([&, thread] {
            for (int i = 0; i < 500; ++i) {
                const std::string text = format_text("{}:{}:{}", thread, i, std::string(static_cast<size_t>(i), 'x'));
                const auto reply = client->call(server.address(), kEcho, bytes_of(text), soon());
                ASSERT_TRUE(reply) << reply.error().to_string();
                ASSERT_EQ(text_of(*reply), text);
            }
        });
    }
}

TEST(Rpc, CallsArePipelined) {
    TestServer server;
    const auto client = Client::create({});
    constexpr int kCalls = 200;
    std::vector<Caught> calls(kCalls);
    for (auto& call : calls) client->call_async(server.address(), kHold, {}, soon(), call.callback());
    ASSERT_TRUE(eventually([&] { return server.held() == kCalls; }));  // all there, none answered
    for (int i = 0; i < kCalls; ++i) server.take_held()->reply({});
    for (auto& call : calls) EXPECT_TRUE(call.get());
}

TEST(Rpc, CallbacksMayCallAgain) {
    TestServer server;
    const auto client = Client::create({});
    Caught last;
    std::function<void(int)> next = [&](int left) {
        client->call_async(server.address(), kEcho, {}, soon(), [&, left](Result<Bytes> reply) {
            if (!reply || left == 0) return last.promise->set_value(std::move(reply));
            next(left - 1);
        });
    };
    next(1000);
    EXPECT_TRUE(last.get());
}

TEST(Rpc, ABlockingCallFromACallbackIsRefusedInsteadOfHanging) {
    TestServer server;
    const auto client = Client::create({});
    Caught inner;
    client->call_async(server.address(), kEcho, {}, soon(),
                       [&](Result<Bytes>) { inner.promise->set_value(client->call(server.address(), kEcho, {}, soon())); });
    EXPECT_EQ(inner.get().error().code(), Code::kInternal);
}

TEST(Rpc, TheServersErrorReachesTheCaller) {
    TestServer server;
    server.set_error(Error(Code::kStale, "who are you", 13));
    const auto client = Client::create({});
    const auto reply = client->call(server.address(), kFail, {}, soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kStale);
    EXPECT_EQ(reply.error().message(), "who are you");
    EXPECT_EQ(reply.error().system_errno(), 13);
}

TEST(Rpc, AnUnknownMethodIsNotSupported) {
    TestServer server;
    const auto client = Client::create({});
    const auto reply = client->call(server.address(), kUnknown, {}, soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kNotSupported);
    EXPECT_THAT(reply.error().message(), HasSubstr("1002"));
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
}

TEST(Rpc, AForgottenResponderAnswersInternal) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kHold, {}, soon(), call.callback());
    server.take_held().reset();
    EXPECT_EQ(call.get().error().code(), Code::kInternal);
}

TEST(Rpc, OnlyTheFirstAnswerCounts) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kHold, {}, soon(), call.callback());
    const auto responder = server.take_held();
    responder->reply(bytes_of("first"));
    responder->reply(bytes_of("second"));
    responder->fail(Error(Code::kBusy, "third"));
    EXPECT_EQ(text_of(*call.get()), "first");
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
}

TEST(Rpc, TheDeadlineTravelsToTheServer) {
    TestServer server;
    const auto client = Client::create({});
    Caught bounded, unbounded;
    client->call_async(server.address(), kHold, {}, Deadline::after(100s), bounded.callback());
    client->call_async(server.address(), kHold, {}, Deadline::never(), unbounded.callback());
    const auto first = server.take_held(), second = server.take_held();
    EXPECT_LE(first->deadline().left(), 100s);
    EXPECT_GT(first->deadline().left(), 50s);
    EXPECT_TRUE(second->deadline().is_never());
    first->reply({});
    second->reply({});
    EXPECT_TRUE(bounded.get());
    EXPECT_TRUE(unbounded.get());
}

TEST(Rpc, ABlockingCallEndsAtItsDeadlineAndTheServerIsTold) {
    TestServer server;
    const auto client = Client::create({});
    const auto reply = client->call(server.address(), kHold, {}, Deadline::after(50ms));
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kTimedOut);
    EXPECT_THAT(reply.error().message(), HasSubstr(server.address()));
    const auto responder = server.take_held();
    EXPECT_TRUE(eventually([&] { return responder->abandoned(); }));
    responder->reply(bytes_of("too late"));
    EXPECT_EQ(text_of(*client->call(server.address(), kEcho, bytes_of("fine"), soon())), "fine");
}

TEST(Rpc, AnAsynchronousCallEndsAtItsDeadline) {
    TestServer server;
    const auto client = Client::create({});
    Caught late, later, never;
    client->call_async(server.address(), kHold, {}, Deadline::never(), never.callback());
    client->call_async(server.address(), kHold, {}, Deadline::after(150ms), later.callback());
    client->call_async(server.address(), kHold, {}, Deadline::after(50ms), late.callback());
    EXPECT_EQ(late.get().error().code(), Code::kTimedOut);
    EXPECT_EQ(later.get().error().code(), Code::kTimedOut);
    ASSERT_TRUE(eventually([&] { return server.held() == 3; }));
    server.take_held()->reply({});
    EXPECT_TRUE(never.get());
}

TEST(Rpc, APassedDeadlineFailsAtOnce) {
    TestServer server;
    const auto client = Client::create({});
    EXPECT_EQ(client->call(server.address(), kHold, {}, Deadline(Clock::now())).error().code(), Code::kTimedOut);
    EXPECT_EQ(server.held(), 0u);
}

TEST(Rpc, ACancelledCallEndsAndTheServerIsTold) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    const uint64_t id = client->call_async(server.address(), kHold, {}, Deadline::never(), call.callback());
    const auto responder = server.take_held();
    EXPECT_FALSE(responder->abandoned());
    client->cancel(id);
    EXPECT_EQ(call.get().error().code(), Code::kCancelled);
    EXPECT_TRUE(eventually([&] { return responder->abandoned(); }));
    client->cancel(id);
    client->cancel(0);
    client->cancel(UINT64_MAX);
}

TEST(Rpc, AnAnsweredCallCannotBeCancelled) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    const uint64_t id = client->call_async(server.address(), kEcho, bytes_of("x"), soon(), call.callback());
    EXPECT_TRUE(call.get());
    client->cancel(id);
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
}

TEST(Rpc, BothSidesLearnWhoTheOtherIs) {
    TestServer server({.hello = {.incarnation = {77}, .features = 0b0111, .software = "s"}});
    const auto client = Client::create({.hello = {.incarnation = {88}, .features = 0b1110, .software = "c"}});
    EXPECT_EQ(client->peer(server.address()).error().code(), Code::kNotFound);
    Caught call;
    client->call_async(server.address(), kHold, {}, soon(), call.callback());
    const auto responder = server.take_held();
    EXPECT_EQ(responder->peer().incarnation.value, 88u);
    EXPECT_EQ(responder->peer().features, 0b0110u);
    EXPECT_THAT(responder->peer().address, ::testing::StartsWith("127.0.0.1:"));
    const auto peer = client->peer(server.address());
    ASSERT_TRUE(peer);
    EXPECT_EQ(peer->incarnation.value, 77u);
    EXPECT_EQ(peer->features, 0b0110u);
    EXPECT_EQ(peer->address, server.address());
    responder->reply({});
    EXPECT_TRUE(call.get());
}

TEST(Rpc, UnknownFeaturesAreIgnored) {
    TestServer server({.hello = {.features = UINT64_MAX}});
    const auto client = Client::create({.hello = {.features = 1}});
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
    EXPECT_EQ(client->peer(server.address())->features, 1u);
}

TEST(Rpc, AnotherMajorVersionIsRefusedWithBothNames) {
    TestServer server({.protocol_major = 2, .hello = {.software = "mooncake 2.0"}});
    const auto client = Client::create({.protocol_major = 1, .hello = {.software = "mooncake 1.0.0a1"}});
    const auto reply = client->call(server.address(), kEcho, {}, soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kRefused);
    EXPECT_THAT(reply.error().message(), HasSubstr("server mooncake 2.0 speaks protocol 2, client mooncake 1.0.0a1 speaks protocol 1"));
    EXPECT_THAT(reply.error().message(), HasSubstr(server.address()));
}

TEST(Rpc, WorksOverIpv6) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.ipv6_address(), kHold, {}, soon(), call.callback());
    const auto responder = server.take_held();
    EXPECT_THAT(responder->peer().address, ::testing::StartsWith("[::1]:"));
    responder->reply(bytes_of("six"));
    EXPECT_EQ(text_of(*call.get()), "six");
}

TEST(Rpc, WorksWithNames) {
    TestServer server;
    const auto client = Client::create({});
    const auto reply = client->call(format_text("localhost:{}", server.port()), kEcho, bytes_of("x"), soon());
    ASSERT_TRUE(reply) << reply.error().to_string();
}

TEST(Rpc, ARequestTooLongForTheServerIsRefusedByTheClient) {
    TestServer server({.message_bytes_max = 1000});
    const auto client = Client::create({});
    // The first call does not know the limit yet, the second does.
    for (int i = 0; i < 2; ++i) {
        const auto reply = client->call(server.address(), kEcho, Bytes(1001), soon());
        ASSERT_FALSE(reply);
        EXPECT_EQ(reply.error().code(), Code::kInvalidArgument);
        EXPECT_THAT(reply.error().message(), HasSubstr("1001 bytes; the server takes at most 1000"));
    }
    EXPECT_TRUE(client->call(server.address(), kEcho, Bytes(1000), soon()));
}

TEST(Rpc, AReplyTooLongForTheClientBecomesAnError) {
    TestServer server;
    const auto client = Client::create({.message_bytes_max = 4096});
    EXPECT_TRUE(client->call(server.address(), kSize, number_body(4096), soon()));
    const auto reply = client->call(server.address(), kSize, number_body(4097), soon());
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code(), Code::kNoSpace);
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
}

TEST(Rpc, TooManyPendingCallsFailInsteadOfPilingUp) {
    TestServer server;
    const auto client = Client::create({.pending_calls_max = 10});
    std::vector<Caught> calls(11);
    for (auto& call : calls) client->call_async(server.address(), kHold, {}, soon(), call.callback());
    EXPECT_EQ(calls.back().get().error().code(), Code::kNoSpace);
    EXPECT_EQ(client->call(server.address(), kEcho, {}, soon()).error().code(), Code::kNoSpace);
    server.take_held()->reply({});
    EXPECT_TRUE(calls.front().get());
    EXPECT_TRUE(client->call(server.address(), kEcho, {}, soon()));
}

TEST(Rpc, NonsenseAddressesAreInvalid) {
    const auto client = Client::create({});
    for (const char* address : {"", "host", "host:", "host:0", "host:70000", "[::1", ":15000", "a b:1"}) {
        const auto reply = client->call(address, kEcho, {}, soon());
        ASSERT_FALSE(reply) << address;
        EXPECT_EQ(reply.error().code(), Code::kInvalidArgument) << address;
        Caught call;
        EXPECT_EQ(client->call_async(address, kEcho, {}, soon(), call.callback()), 0u);
        EXPECT_EQ(call.get().error().code(), Code::kInvalidArgument);
    }
}

TEST(Rpc, StopEndsCallsAndLaterCallsFail) {
    TestServer server;
    const auto client = Client::create({});
    Caught call;
    client->call_async(server.address(), kHold, {}, Deadline::never(), call.callback());
    Caught blocked;
    std::jthread caller([&] { blocked.promise->set_value(client->call(server.address(), kHold, {}, Deadline::never())); });
    ASSERT_TRUE(eventually([&] { return server.held() == 2; }));
    client->stop();
    EXPECT_EQ(call.get().error().code(), Code::kCancelled);
    EXPECT_EQ(blocked.get().error().code(), Code::kCancelled);
    EXPECT_EQ(client->call(server.address(), kEcho, {}, soon()).error().code(), Code::kCancelled);
    Caught later;
    client->call_async(server.address(), kEcho, {}, soon(), later.callback());
    EXPECT_EQ(later.get().error().code(), Code::kCancelled);
    client->stop();
}

TEST(Rpc, RespondersOutliveTheirServer) {
    auto server = std::make_unique<TestServer>();
    const auto client = Client::create({});
    Caught first, second;
    client->call_async(server->address(), kHold, {}, Deadline::never(), first.callback());
    client->call_async(server->address(), kHold, {}, Deadline::never(), second.callback());
    auto answered = server->take_held(), dropped = server->take_held();
    server.reset();
    EXPECT_EQ(first.get().error().code(), Code::kUnavailable);
    EXPECT_EQ(second.get().error().code(), Code::kUnavailable);
    EXPECT_TRUE(answered->abandoned());
    answered->reply(bytes_of("nobody hears this"));
    dropped.reset();
}

TEST(Rpc, AServerThatNeverStartedStops) {
    auto server = Server::create({});
    ASSERT_TRUE(server);
    EXPECT_GT((*server)->port(), 0);
    (*server)->stop();
    (*server)->stop();
}

TEST(Rpc, ATakenPortIsReported) {
    TestServer server;
    const auto second = Server::create({.port = server.port()});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
}

}  // namespace
}  // namespace mooncake::rpc
