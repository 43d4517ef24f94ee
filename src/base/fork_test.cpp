// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/unique_fd.h"

namespace mooncake {
namespace {

/// Runs `body` in a forked child and returns its exit status.
int in_child(const std::function<bool()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(60);  // a child that hangs is killed, and the test fails
        ::_exit(body() ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(Fork, OnlyTheChildSeesANewGeneration) {
    const uint32_t before = fork_generation();
    EXPECT_EQ(in_child([before] { return fork_generation() == before + 1; }), 0);
    EXPECT_EQ(fork_generation(), before);
}

TEST(Fork, NamedDescriptorsAreClosedInTheChildOnly) {
    const UniqueFd closed(::open("/dev/null", O_RDONLY)), kept(::open("/dev/null", O_RDONLY)), released(::open("/dev/null", O_RDONLY));
    ASSERT_TRUE(closed && kept && released);
    close_in_child(closed.get());
    close_in_child(released.get());
    keep_in_child(released.get());
    EXPECT_EQ(in_child([&] { return !is_open(closed.get()) && is_open(kept.get()) && is_open(released.get()); }), 0);
    EXPECT_TRUE(is_open(closed.get()));
    keep_in_child(closed.get());
}

TEST(Fork, AProcessHasItsOwnEvenWhileAThreadOfItsParentHoldsTheLock) {
    struct Guarded {
        Mutex mutex;
        int value = 0;
    };
    static constinit PerProcess<Guarded> each;
    each.get().value = 7;
    const Lock held_across_the_fork(each.get().mutex);
    EXPECT_EQ(in_child([] {
                  const Lock lock(each.get().mutex);
                  return each.get().value == 0;
              }),
              0);
    EXPECT_EQ(each.get().value, 7);
}

TEST(Fork, AGrandchildKeepsWhatItsParentOpenedUnderAClosedNumber) {
    const UniqueFd named(::open("/dev/null", O_RDONLY));
    close_in_child(named.get());
    const auto child = [&] {
        const int again = ::open("/dev/null", O_RDONLY);  // the lowest free number: the one just closed
        return again == named.get() && in_child([again] { return is_open(again); }) == 0;
    };
    EXPECT_EQ(in_child(child), 0);
    keep_in_child(named.get());
}

TEST(Fork, NumbersThatCannotBeTrackedAreIgnored) {
    for (const int fd : {-1, 65536, 1 << 30}) {
        close_in_child(fd);
        keep_in_child(fd);
    }
    EXPECT_EQ(in_child([] { return true; }), 0);
}

TEST(Fork, AChildCanLogWhateverOtherThreadsWereDoing) {
    testing::internal::CaptureStderr();
    {
        std::atomic<bool> stop{false};
        std::vector<std::jthread> loggers;
        for (int t = 0; t < 2; ++t)
            loggers.push_back(start_thread("logger", [&stop] {
                for (; !stop; std::this_thread::yield()) MC_LOG_INFO("from the parent");
            }));
        for (int i = 0; i < 20; ++i) {
            EXPECT_EQ(in_child([] {
                          MC_LOG_INFO("from the child");
                          return true;
                      }),
                      0);
        }
        stop = true;
    }
    EXPECT_NE(testing::internal::GetCapturedStderr().find("from the child"), std::string::npos);
}

}  // namespace
}  // namespace mooncake
