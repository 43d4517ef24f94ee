// SPDX-License-Identifier: Apache-2.0
// Where there is no memory a connection ends, and never the process.
#include "transport/testing/no_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <thread>

#include "transport/tcp/testing/raw.h"
#include "transport/tcp/testing/side.h"

namespace mooncake::tcp {
namespace {

using mooncake::testing::kCannotFailNew;
using mooncake::testing::NoMemory;
using mooncake::testing::NoMemoryHere;
using testing::FakeTarget;
using testing::fill;
using testing::greeted;
using testing::Raw;
using testing::run;
using testing::Side;

TEST(TcpNoMemory, AnInitiatorFailsWhatIsUnderWay) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    EngineOptions options;
    options.tcp_lanes = 1;
    options.tcp_io_threads = 1;
    Side here(8 << 20, options);
    FakeTarget target;
    std::unique_ptr<Peer> peer;
    std::optional<Raw> raw;
    {
        std::jthread connecting([&] { peer = std::move(*here.transport->connect(target.descriptor(), Deadline::after(20s))); });
        raw.emplace(target.welcome());
    }
    // As much as one lane has under way, and behind it many that need lists of their pieces, more of them than are told at one go.
    std::array<Completion, 12> completions;
    completions[0].add(1);
    const Slice large = here.slice(0, 1 << 20, 4 << 20, completions[0]);
    peer->submit(Direction::kRead, {&large, 1}, Submit::kLeave);
    std::vector<std::vector<Slice>> small(completions.size());
    for (size_t i = 1; i < completions.size(); ++i) {
        for (size_t k = 0; k < 500; ++k) small[i].push_back(here.slice((4 << 20) + k * 128, 1000 * k, 64, completions[i]));
        completions[i].add(static_cast<uint32_t>(small[i].size()));
        peer->submit(Direction::kRead, small[i], Submit::kLeave);
    }
    const auto asked = raw->receive_header();
    ASSERT_TRUE(asked);
    std::vector<std::byte> answer;
    append_head({.kind = Kind::kData, .payload_bytes = asked->payload_bytes, .id = asked->id}, {}, false, answer);
    answer.resize(answer.size() + asked->payload_bytes);
    {
        NoMemory none;
        ASSERT_TRUE(raw->send(answer));
        for (Completion& completion : completions) ASSERT_TRUE(completion.wait(Deadline::after(60s)));
        EXPECT_GT(NoMemory::refused(), 0);
    }
    for (const Completion& completion : completions) {
        ASSERT_FALSE(completion.result());
        EXPECT_EQ(completion.result().error().code(), Code::kUnavailable) << completion.result().error().to_string();
    }
    EXPECT_FALSE(peer->usable());
}

TEST(TcpNoMemory, WhoConnectsIsToldWhereverItRunsOut) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    EngineOptions options;
    options.tcp_lanes = 2;
    Side here(1 << 20, options), there(1 << 20);
    const SegmentDescriptor descriptor = there.descriptor();
    bool connected = false;
    int spared = 0;
    for (; !connected; ++spared) {
        ASSERT_LT(spared, 10'000);
        std::optional<Result<std::unique_ptr<Peer>>> peer;
        const NoMemoryHere none(spared);
        try {
            peer.emplace(here.transport->connect(descriptor, Deadline::after(60s)));
        } catch (const std::bad_alloc&) {  // the session, which asked for it, catches that
        }
        connected = peer && *peer;
    }
    EXPECT_GT(spared, 10);
}

TEST(TcpNoMemory, APeerWithWritesUnderWayCanBeGivenUp) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    EngineOptions options;
    options.tcp_lanes = 1;
    Side here(1 << 20, options);
    FakeTarget target;
    std::unique_ptr<Peer> peer;
    std::optional<Raw> raw;
    {
        std::jthread connecting([&] { peer = std::move(*here.transport->connect(target.descriptor(), Deadline::after(20s))); });
        raw.emplace(target.welcome());
    }
    Completion completion;
    completion.add(1);
    const Slice slice = here.slice(0, 1 << 20, 4096, completion);
    peer->submit(Direction::kWrite, {&slice, 1}, Submit::kLeave);
    ASSERT_TRUE(raw->receive_header());
    {
        const NoMemoryHere none(0);
        peer.reset();
        EXPECT_TRUE(NoMemoryHere::refused());
    }
    ASSERT_TRUE(completion.wait(Deadline::after(60s)));
    EXPECT_EQ(completion.result().error().code(), Code::kCancelled);
}

TEST(TcpNoMemory, ATargetGivesUpTheConnectionThatNeedsSome) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    Side here(1 << 20), there(1 << 20);
    const auto peer = here.connect(there);
    Raw named = greeted(there, Incarnation::random(), SessionId::random());
    Raw numbered = greeted(there, Incarnation::random(), 1);
    std::vector<AddressRange> ranges;
    for (size_t i = 0; i < kDescriptorsMax; ++i) ranges.push_back({.address = there.address(i * 64), .length = 32});
    std::vector<std::byte> request;
    append_head({.kind = Kind::kRead, .payload_bytes = kDescriptorsMax * 32, .id = 1}, ranges, false, request);
    {
        NoMemory none;
        EXPECT_TRUE(named.send(request));
        EXPECT_TRUE(numbered.send(request));
        EXPECT_TRUE(named.closed_by_peer());
        EXPECT_TRUE(numbered.closed_by_peer());
        EXPECT_TRUE(Raw::to(there.port()).closed_by_peer()) << "nor is there any for a new one";
        EXPECT_GT(NoMemory::refused(), 0);
    }
    // The others go on, and new ones come.
    fill(here.memory, 1);
    const auto another = here.connect(there);
    for (Peer* const one : {peer.get(), another.get()}) {
        Completion completion;
        const Slice slice = here.slice(0, there.address(), 1 << 20, completion);
        const auto moved = run(*one, Direction::kWrite, {&slice, 1}, completion);
        EXPECT_TRUE(moved) << moved.error().to_string();
        EXPECT_TRUE(here.memory == there.memory);
    }
}

}  // namespace
}  // namespace mooncake::tcp
