// SPDX-License-Identifier: Apache-2.0
#include "engine/control_plane.h"

#include <gtest/gtest.h>

#include <future>
#include <semaphore>
#include <thread>

#include "engine/messages.h"

namespace mooncake {
namespace {

using Bytes = ControlPlane::Bytes;

Deadline soon() { return Deadline::after(10s); }
Bytes bytes(std::string_view text) {
    const auto span = std::as_bytes(std::span(text.data(), text.size()));
    return Bytes(span.begin(), span.end());
}
std::string text(std::span<const std::byte> bytes) { return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

/// A process with a control port.
struct Side {
    explicit Side(uint64_t number) : incarnation{number} {
        const rpc::Hello hello{.incarnation = incarnation, .features = 0, .software = "test"};
        server = rpc::Server::create({.host = "127.0.0.1", .hello = hello}).value();
        client = rpc::Client::create({.hello = hello});
        control = std::make_unique<RpcControl>(*client, incarnation);
        server->handle(rpc::Method::kControl, [this](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder) {
            control->answer(body, std::move(responder));
        });
        server->start();
    }
    ~Side() {
        client->stop();
        server->stop();
    }
    SegmentDescriptor descriptor() const {
        return {.name = "them",
                .incarnation = incarnation,
                .host = "127.0.0.1",
                .rpc_port = server->port(),
                .boot_id = {},
                .endpoints = {},
                .buffers = {}};
    }

    Incarnation incarnation;
    std::unique_ptr<rpc::Server> server;
    std::unique_ptr<rpc::Client> client;
    std::unique_ptr<RpcControl> control;
};

TEST(ControlPlane, CarriesAQuestionAndItsAnswer) {
    Side us(1), them(2);
    them.control->serve("fabric", [](std::span<const std::byte> request) -> Result<Bytes> { return bytes("you said " + text(request)); });
    const auto answer = us.control->call(them.descriptor(), "fabric", bytes("hello"), soon());
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(text(*answer), "you said hello");
}

TEST(ControlPlane, TellsTransportsApart) {
    Side us(1), them(2);
    them.control->serve("a", [](std::span<const std::byte>) -> Result<Bytes> { return bytes("a"); });
    them.control->serve("b", [](std::span<const std::byte>) -> Result<Bytes> { return bytes("b"); });
    EXPECT_EQ(text(us.control->call(them.descriptor(), "a", {}, soon()).value()), "a");
    EXPECT_EQ(text(us.control->call(them.descriptor(), "b", {}, soon()).value()), "b");
    const auto nobody = us.control->call(them.descriptor(), "c", {}, soon());
    ASSERT_FALSE(nobody);
    EXPECT_EQ(nobody.error().code(), Code::kNotSupported);
}

TEST(ControlPlane, GivesTheHandlersErrorToTheCaller) {
    Side us(1), them(2);
    them.control->serve("fabric", [](std::span<const std::byte>) -> Result<Bytes> { return fail(Code::kBusy, "not now"); });
    const auto answer = us.control->call(them.descriptor(), "fabric", {}, soon());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kBusy);
    EXPECT_NE(answer.error().message().find("not now"), std::string::npos);
}

TEST(ControlPlane, IsStaleForAnotherIncarnation) {
    Side us(1), them(2);
    bool asked = false;
    them.control->serve("fabric", [&](std::span<const std::byte>) -> Result<Bytes> {
        asked = true;
        return Bytes();
    });
    SegmentDescriptor earlier = them.descriptor();
    earlier.incarnation = Incarnation{3};
    const auto answer = us.control->call(earlier, "fabric", {}, soon());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kStale);
    EXPECT_FALSE(asked);
}

TEST(ControlPlane, IsUnavailableWhenNobodyListens) {
    Side us(1);
    SegmentDescriptor gone;
    {
        Side them(2);
        gone = them.descriptor();
    }
    const auto answer = us.control->call(gone, "fabric", {}, soon());
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kUnavailable);
}

TEST(ControlPlane, GivesUpAtTheDeadlineAndGoesOn) {
    Side us(1), them(2);
    std::binary_semaphore go(0);
    them.control->serve("slow", [&](std::span<const std::byte>) -> Result<Bytes> {
        go.acquire();
        return Bytes();
    });
    const auto answer = us.control->call(them.descriptor(), "slow", {}, Deadline::after(50ms));
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), Code::kTimedOut);
    them.control->serve("fast", [](std::span<const std::byte>) -> Result<Bytes> { return bytes("fast"); });
    EXPECT_TRUE(us.control->call(them.descriptor(), "fast", {}, soon()));
    go.release();
}

TEST(ControlPlane, WaitsForTheHandlerThatIsTakenAway) {
    Side us(1), them(2);
    std::binary_semaphore began(0), go(0);
    std::atomic<bool> over = false;
    them.control->serve("fabric", [&](std::span<const std::byte>) -> Result<Bytes> {
        began.release();
        go.acquire();
        over = true;
        return bytes("done");
    });
    auto answer = std::async(std::launch::async, [&] { return text(us.control->call(them.descriptor(), "fabric", {}, soon()).value()); });
    began.acquire();
    auto gone = std::async(std::launch::async, [&] {
        them.control->serve("fabric", {});
        return over.load();
    });
    EXPECT_NE(gone.wait_for(20ms), std::future_status::ready);
    go.release();
    EXPECT_TRUE(gone.get());
    EXPECT_EQ(answer.get(), "done");
    EXPECT_EQ(us.control->call(them.descriptor(), "fabric", {}, soon()).error().code(), Code::kNotSupported);
}

TEST(ControlPlane, KeepsMessagesSmall) {
    Side us(1), them(2);
    them.control->serve("echo", [](std::span<const std::byte> request) -> Result<Bytes> { return Bytes(request.begin(), request.end()); });
    them.control->serve("long", [](std::span<const std::byte>) -> Result<Bytes> { return Bytes(kControlBytesMax + 1); });
    const auto largest = us.control->call(them.descriptor(), "echo", Bytes(kControlBytesMax), soon());
    ASSERT_TRUE(largest) << largest.error().to_string();
    EXPECT_EQ(largest->size(), kControlBytesMax);
    EXPECT_EQ(us.control->call(them.descriptor(), "echo", Bytes(kControlBytesMax + 1), soon()).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(us.control->call(them.descriptor(), "long", {}, soon()).error().code(), Code::kInternal);
}

Code decoded(const std::string& transport, uint64_t target, size_t length) {
    ControlRequest request;
    request.transport = transport;
    request.target = Incarnation{target};
    request.body.resize(length);
    const auto again = decode_control_request(encode_control_request(request));
    return again ? Code::kOk : again.error().code();
}

TEST(ControlPlane, RefusesMessagesForNobody) {
    EXPECT_EQ(decoded("t", 1, 0), Code::kOk);
    EXPECT_EQ(decoded("t", 1, kControlBytesMax), Code::kOk);
    EXPECT_EQ(decoded("", 1, 0), Code::kCorrupt);
    EXPECT_EQ(decoded("t", 0, 0), Code::kCorrupt);
    EXPECT_EQ(decoded("t", 1, kControlBytesMax + 1), Code::kCorrupt);
    EXPECT_EQ(decode_control_request(bytes("nonsense, and rather short")).error().code(), Code::kCorrupt);
}

TEST(ControlPlane, AnswersManyAtOnce) {
    Side us(1), them(2);
    them.control->serve("echo", [](std::span<const std::byte> request) -> Result<Bytes> { return Bytes(request.begin(), request.end()); });
    std::vector<std::jthread> threads;
    std::atomic<int> right = 0;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 50; ++i) {
                const std::string said = format_text("{} {}", t, i);
                const auto answer = us.control->call(them.descriptor(), "echo", bytes(said), soon());
                if (answer && text(*answer) == said) ++right;
            }
        });
    threads.clear();
    EXPECT_EQ(right, 200);
}

}  // namespace
}  // namespace mooncake
