// SPDX-License-Identifier: Apache-2.0
#include "engine/describer.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <optional>

#include "engine/messages.h"

namespace mooncake {
namespace {

/// Keeps the answer, for whoever waits for it.
struct Answer {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result<SegmentDescriptor>> got;

    void put(Result<SegmentDescriptor> result) {
        const std::lock_guard lock(mutex);
        got = std::move(result);
        changed.notify_all();
    }
    Result<SegmentDescriptor> wait() {
        std::unique_lock lock(mutex);
        if (!changed.wait_for(lock, 60s, [&] { return got.has_value(); })) return fail(Code::kTimedOut, "no answer");
        return *got;
    }
};

class FakeResponder final : public rpc::Responder {
public:
    explicit FakeResponder(Answer& answer) : answer_(answer) {}
    void reply(rpc::Bytes body) override { answer_.put(decode_descriptor(body)); }
    void fail(const Error& error) override { answer_.put(Unexpected(error)); }
    bool part(rpc::Bytes, Haste) override { return false; }
    bool abandoned() const noexcept override { return false; }
    Deadline deadline() const noexcept override { return Deadline::after(60s); }
    const rpc::PeerInfo& peer() const noexcept override { return peer_; }

private:
    Answer& answer_;
    rpc::PeerInfo peer_;
};

class DescriberTest : public ::testing::Test {
protected:
    SegmentDescriptor describe(uint32_t buffers_max) {
        if (buffers_max > Describer::kShortList) {
            ++lists;
            Lock lock(hold);
        }
        SegmentDescriptor made{.name = "test", .incarnation = {7}, .host = "127.0.0.1", .rpc_port = 1};
        made.endpoints["tcp"] = endpoint;
        for (uint64_t i = 0; i < std::min(buffers_max, 100'000u); ++i) made.buffers.push_back({.address = i << 12, .length = 1});
        return made;
    }
    Result<SegmentDescriptor> ask(uint32_t buffers_max) {
        Answer answer;
        describer.answer(buffers_max, std::make_unique<FakeResponder>(answer));
        return answer.wait();
    }

    std::atomic<int> lists{0};
    std::atomic<uint64_t> version{1};
    std::string endpoint = "a";
    Mutex hold;  // who has it keeps lists from being made
    Describer describer{
        {.describe = [this](uint32_t buffers_max) { return describe(buffers_max); }, .version = [this] { return version.load(); }}};
};

TEST_F(DescriberTest, MakesALongListOnceWhileNothingChanges) {
    for (int i = 0; i < 5; ++i) ASSERT_EQ(ask(UINT32_MAX)->buffers.size(), 100'000u);
    EXPECT_EQ(lists, 1);
    ++version;
    EXPECT_EQ(ask(UINT32_MAX)->buffers.size(), 100'000u);
    EXPECT_EQ(lists, 2);
    EXPECT_EQ(ask(1000)->buffers.size(), 1000u);
    EXPECT_EQ(lists, 3);
    endpoint = "b";
    EXPECT_EQ(ask(1000)->endpoints.at("tcp"), "b");
    EXPECT_EQ(lists, 4);
}

TEST_F(DescriberTest, AnswersPeersThatConnectWhileAListIsMade) {
    std::vector<std::unique_ptr<Answer>> asked;
    {
        Lock lock(hold);
        for (size_t i = 0; i < Describer::kWaitingMax; ++i) {
            asked.push_back(std::make_unique<Answer>());
            describer.answer(UINT32_MAX, std::make_unique<FakeResponder>(*asked.back()));
        }
        EXPECT_TRUE(ask(0)) << "at once";
        EXPECT_EQ(ask(1)->buffers.size(), 1u);
        EXPECT_EQ(ask(UINT32_MAX).error().code(), Code::kUnavailable) << "lists have a bound";
    }
    for (const auto& one : asked) EXPECT_TRUE(one->wait());
    EXPECT_EQ(ask(UINT32_MAX)->buffers.size(), 100'000u);
}

}  // namespace
}  // namespace mooncake
