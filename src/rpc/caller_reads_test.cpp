// SPDX-License-Identifier: Apache-2.0
// A caller that waits alone reads the connection itself (Connection::read_here): what that must not change for it and for others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "rpc/look_ahead.h"
#include "rpc/rpc.h"
#include "rpc/testing/test_server.h"

namespace mooncake::rpc {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A connected client, and a blocked caller whose request the server holds.
class CallerReads : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_TRUE(client_->call(server_.address(), kEcho, {}, soon())); }

    std::unique_ptr<Responder> block(Deadline deadline = soon()) {
        caller_ = std::async(std::launch::async, [this, deadline] {
            caller_thread_ = std::this_thread::get_id();
            return client_->call(server_.address(), kHold, {}, deadline);
        });
        return server_.take_held();
    }
    Result<Bytes> result() {
        MC_CHECK(caller_.wait_for(kPatience) == std::future_status::ready);
        return caller_.get();
    }

    TestServer server_;
    std::unique_ptr<Client> client_ = Client::create({});
    std::future<Result<Bytes>> caller_;
    std::atomic<std::thread::id> caller_thread_;
};

TEST_F(CallerReads, CallbacksOfOthersStillRunOnAnIoThread) {
    const auto held = block();
    for (int i = 0; i < 100; ++i) {
        std::promise<std::thread::id> where;
        client_->call_async(server_.address(), kEcho, {}, soon(), [&](const Result<Bytes>& reply) {
            EXPECT_TRUE(reply);
            where.set_value(std::this_thread::get_id());
        });
        auto ran = where.get_future();
        ASSERT_EQ(ran.wait_for(kPatience), std::future_status::ready);
        EXPECT_NE(ran.get(), caller_thread_.load());
    }
    held->reply(bytes_of("mine"));
    EXPECT_EQ(text_of(*result()), "mine");
}

TEST_F(CallerReads, OtherBlockedCallersAreAnsweredWhateverComesFirst) {
    for (int round = 0; round < 50; ++round) {
        auto first = block();
        auto other = std::async(std::launch::async, [&] { return client_->call(server_.address(), kHold, {}, soon()); });
        auto second = server_.take_held();
        if (round % 2 == 0) std::swap(first, second);
        first->reply(bytes_of("a"));
        second->reply(bytes_of("b"));
        EXPECT_EQ(text_of(*result()), round % 2 == 0 ? "b" : "a");
        ASSERT_EQ(other.wait_for(kPatience), std::future_status::ready);
        EXPECT_EQ(text_of(*other.get()), round % 2 == 0 ? "a" : "b");
    }
}

TEST_F(CallerReads, AStreamThatBeginsMeanwhileKeepsItsOrder) {
    const auto held = block();
    std::vector<std::string> parts, sent;
    Caught end;
    client_->call_stream(
        server_.address(), kHold, {}, [&](std::span<const std::byte> part) { parts.push_back(text_of(part)); }, end.callback());
    const auto stream = server_.take_held();
    for (int i = 0; i < 200; ++i) {
        if (i == 100) held->reply({});  // from here on the loop reads
        sent.push_back(std::to_string(i));
        ASSERT_TRUE(stream->part(bytes_of(sent.back())));
    }
    stream->reply({});
    EXPECT_TRUE(end.get());
    EXPECT_EQ(parts, sent);
    EXPECT_TRUE(result());
}

TEST_F(CallerReads, ADeadlineEndsItAndTheConnectionGoesOn) {
    const auto held = block(Deadline::after(30ms));
    EXPECT_EQ(result().error().code(), Code::kTimedOut);
    held->reply(bytes_of("late"));
    EXPECT_TRUE(client_->call(server_.address(), kEcho, {}, soon()));
}

TEST_F(CallerReads, ALostConnectionEndsIt) {
    const auto held = block(Deadline::never());
    server_.stop();
    const auto lost = result();
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code(), Code::kUnavailable);
    EXPECT_TRUE(peer_closed(lost.error()));
    EXPECT_THAT(lost.error().message(), HasSubstr(server_.address()));
}

TEST_F(CallerReads, StopEndsIt) {
    const auto held = block(Deadline::never());
    client_->stop();
    EXPECT_EQ(result().error().code(), Code::kCancelled);
}

TEST_F(CallerReads, LongAnswersArriveWhole) {
    for (const size_t size : {65'535, 65'536, 65'537, 900'000}) {
        const auto held = block();
        Bytes body(size);
        for (size_t i = 0; i < size; ++i) body[i] = static_cast<std::byte>(i * 7 + i / 256);
        held->reply(body);
        EXPECT_TRUE(*result() == body) << size;
    }
}

TEST_F(CallerReads, WorksWhileItWaits) {
    // The answer is given only by what is done meanwhile.
    const auto reply = client_->call(server_.address(), kHold, {}, soon(), [&] { server_.take_held()->reply(bytes_of("done")); });
    ASSERT_TRUE(reply) << reply.error().to_string();
    EXPECT_EQ(text_of(*reply), "done");
}

TEST_F(CallerReads, OthersAreAnsweredWhenItHasDoneItsWork) {
    std::future<Result<Bytes>> other;
    const auto reply = client_->call(server_.address(), kHold, {}, soon(), [&] {
        const auto held = server_.take_held();
        other = std::async(std::launch::async, [&] { return client_->call(server_.address(), kHold, {}, soon()); });
        server_.take_held()->reply(bytes_of("other"));
        held->reply(bytes_of("mine"));
    });
    ASSERT_TRUE(reply) << reply.error().to_string();
    EXPECT_EQ(text_of(*reply), "mine");
    ASSERT_EQ(other.wait_for(kPatience), std::future_status::ready);
    EXPECT_EQ(text_of(*other.get()), "other");
}

TEST_F(CallerReads, AConnectionLostWhileItWorksEndsIt) {
    std::unique_ptr<Responder> held;
    const auto lost = client_->call(server_.address(), kHold, {}, Deadline::never(), [&] {
        held = server_.take_held();
        server_.stop();
    });
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code(), Code::kUnavailable);
}

TEST_F(CallerReads, StopWhileItWorksEndsIt) {
    std::unique_ptr<Responder> held;
    const auto stopped = client_->call(server_.address(), kHold, {}, Deadline::never(), [&] {
        held = server_.take_held();
        std::jthread([&] { client_->stop(); }).join();
    });
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code(), Code::kCancelled);
}

TEST(LookAhead, StopsForAWhileAfterLookingInVainAndGoesOnWhenItPaysAgain) {
    LookAhead look;
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(look.pays());
        look.found();
    }
    std::vector<int> skipped;
    for (int round = 0; round < 8; ++round) {
        look.in_vain();
        for (skipped.push_back(0); !look.pays(); ++skipped.back()) {}
    }
    EXPECT_THAT(skipped, ElementsAre(1, 3, 7, 15, 31, 63, 63, 63));
    look.found();
    EXPECT_TRUE(look.pays());
    look.in_vain();
    EXPECT_FALSE(look.pays());
    EXPECT_TRUE(look.pays());
}

TEST(ExpectNext, AServerThatLooksForTheNextRequestServesEverybodyAndStops) {
    auto server = Server::create({.host = "127.0.0.1"});
    ASSERT_TRUE(server);
    (*server)->handle(kEcho, [](std::span<const std::byte> body, std::unique_ptr<Responder> responder) {
        responder->expect_next(20ms);
        responder->reply(Bytes(body.begin(), body.end()));
    });
    (*server)->start();
    const std::string address = format_text("127.0.0.1:{}", (*server)->port());
    std::vector<std::jthread> callers;
    for (int i = 0; i < 3; ++i) {
        callers.emplace_back([&] {
            const auto client = Client::create({});
            for (int call = 0; call < 50; ++call) EXPECT_TRUE(client->call(address, kEcho, {}, soon()));
        });
    }
    callers.clear();
    (*server)->stop();
}

}  // namespace
}  // namespace mooncake::rpc
