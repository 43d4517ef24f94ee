// SPDX-License-Identifier: Apache-2.0
// A process that may have only a few threads: making an engine fails, and nothing worse.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/engine.h"

namespace mooncake {
namespace {

enum Outcome : int { kMade = 0, kRefused = 1, kNotSetUp = 2 };

/// In a process of its own, as a user who has no other: the limit counts all threads of a user.
int make_engine_with(rlim_t threads) {
    constexpr uid_t kNobodyElse = 54321;
    const rlimit limit{.rlim_cur = threads, .rlim_max = threads};
    if (::setuid(kNobodyElse) != 0 || ::setrlimit(RLIMIT_NPROC, &limit) != 0) return kNotSetUp;
    EngineConfig config{.local_name = "127.0.0.1"};
    config.options.log.level = LogLevel::kError;
    auto engine = Engine::create(std::move(config));
    if (!engine) return kRefused;
    engine->reset();
    return kMade;
}

TEST(NoThreads, MakingAnEngineFailsWithAnError) {
    if (::geteuid() != 0) GTEST_SKIP() << "needs a user without other processes";
    int refused = 0;
    bool made = false;
    for (rlim_t threads = 1; threads < 32 && !made; ++threads) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(make_engine_with(threads));
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status)) << "with " << threads << " threads: signal " << WTERMSIG(status);
        ASSERT_NE(WEXITSTATUS(status), kNotSetUp);
        refused += WEXITSTATUS(status) == kRefused;
        made = WEXITSTATUS(status) == kMade;
    }
    EXPECT_TRUE(made);
    EXPECT_GE(refused, 1);
}

}  // namespace
}  // namespace mooncake
