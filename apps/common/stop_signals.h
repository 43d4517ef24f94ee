// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace mooncake {

/// SIGINT and SIGTERM as something to wait for. Made first in main(), before any thread, so that no thread is interrupted by them.
class StopSignals {
public:
    StopSignals() noexcept {
        sigemptyset(&set_);
        sigaddset(&set_, SIGINT);
        sigaddset(&set_, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &set_, nullptr);
        signal(SIGPIPE, SIG_IGN);  // a reader of our output that goes away is no reason to die
    }
    StopSignals(const StopSignals&) = delete;
    StopSignals& operator=(const StopSignals&) = delete;

    /// While nothing has to be put in order: they end the program at once, with success.
    void end_at_once() noexcept {
        for (const int number : {SIGINT, SIGTERM}) signal(number, [](int) { ::_exit(0); });
        pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
    }
    /// From now on they wait to be waited for, as in the beginning.
    void hold() noexcept { pthread_sigmask(SIG_BLOCK, &set_, nullptr); }
    /// Returns which came. From then on they have their usual effect: a second Ctrl-C ends a program that does not end by itself.
    int wait() noexcept {
        int number = 0;
        while (sigwait(&set_, &number) != 0) {}
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
        return number;
    }

private:
    sigset_t set_;
};

}  // namespace mooncake
