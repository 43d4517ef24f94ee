// SPDX-License-Identifier: Apache-2.0
#include "net/lookups.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

namespace mooncake::net {
namespace {

Lookups::Addresses found() { return std::vector<SocketAddress>(1); }

TEST(Lookups, NamesThatGetNoAnswerDoNotKeepOthersWaiting) {
    std::latch silent(1);
    Lookups lookups([&](const std::string& host) {
        if (host.starts_with("dead")) silent.wait();
        return found();
    });
    for (size_t i = 0; i < Lookups::kThreadsMax - 1; ++i) lookups.ask("dead" + std::to_string(i), [](const auto&) {});
    std::latch answered(1);
    lookups.ask("localhost", [&](const auto& addresses) {
        EXPECT_TRUE(addresses);
        answered.count_down();
    });
    answered.wait();
    silent.count_down();
}

TEST(Lookups, NamesInTroubleWaitForEachOtherTheNextTime) {
    std::latch silent(1);
    std::atomic<bool> quick{true};
    Lookups lookups([&](const std::string& host) -> Lookups::Addresses {
        if (!host.starts_with("dead")) return found();
        if (!quick) silent.wait();
        return fail(Code::kUnavailable, "nobody knows");
    });
    constexpr size_t kNames = 2 * Lookups::kThreadsMax;
    const auto ask_all = [&](std::latch& done) {
        for (size_t i = 0; i < kNames; ++i) lookups.ask("dead" + std::to_string(i), [&](const auto&) { done.count_down(); });
    };
    std::latch first(kNames), second(kNames), answered(1);
    ask_all(first);
    first.wait();
    quick = false;
    ask_all(second);
    lookups.ask("alive", [&](const auto&) { answered.count_down(); });
    answered.wait();
    silent.count_down();
    second.wait();
}

TEST(Lookups, ANameIsAskedForOnceForAllThatWait) {
    std::latch go(1);
    std::atomic<int> asked{0};
    Lookups lookups([&](const std::string&) {
        ++asked;
        go.wait();
        return found();
    });
    std::latch done(10);
    for (int i = 0; i < 10; ++i) lookups.ask("name", [&](const auto&) { done.count_down(); });
    go.count_down();
    done.wait();
    EXPECT_EQ(asked, 1);
}

TEST(Lookups, MoreQuestionsThanMayWaitAreAnsweredAtOnce) {
    std::latch go(1);
    Lookups lookups([&](const std::string&) {
        go.wait();
        return found();
    });
    std::latch done(Lookups::kQuestionsMax);
    for (size_t i = 0; i < Lookups::kQuestionsMax; ++i) lookups.ask("name", [&](const auto&) { done.count_down(); });
    bool refused = false;
    lookups.ask("other", [&](const auto& addresses) { refused = !addresses; });
    EXPECT_TRUE(refused);
    go.count_down();
    done.wait();
}

}  // namespace
}  // namespace mooncake::net
