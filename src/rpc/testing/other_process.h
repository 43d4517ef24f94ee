// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/format.h"

namespace mooncake::rpc::testing {

/// A server in a process of its own, to be stopped and killed: this test program once more, running the one disabled test that serves (threads
/// cannot be started after a fork under all sanitizers). Killed when this goes away. One thread.
class OtherProcess {
public:
    /// `filter`: the disabled test, which calls tell_port() first.
    explicit OtherProcess(const std::string& filter) {
        int fds[2];
        MC_CHECK(::pipe2(fds, O_CLOEXEC) == 0);
        const std::string argument = "--gtest_filter=" + filter;
        pid_ = ::fork();
        MC_CHECK(pid_ >= 0);
        if (pid_ == 0) {
            ::dup2(fds[1], kPortFd);
            ::execl("/proc/self/exe", "other_process", "--gtest_also_run_disabled_tests", argument.c_str(), nullptr);
            ::_exit(127);
        }
        ::close(fds[1]);
        MC_CHECK(::read(fds[0], &port_, sizeof port_) == sizeof port_);
        ::close(fds[0]);
    }
    ~OtherProcess() { kill(); }
    OtherProcess(const OtherProcess&) = delete;
    OtherProcess& operator=(const OtherProcess&) = delete;

    /// In the other process.
    static void tell_port(uint16_t port) { MC_CHECK(::write(kPortFd, &port, sizeof port) == sizeof port); }

    std::string address() const { return format_text("127.0.0.1:{}", port_); }
    /// Until it has stopped itself.
    bool wait_stopped() const {
        int status = 0;
        return ::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
    }
    bool stop() const { return ::kill(pid_, SIGSTOP) == 0 && wait_stopped(); }
    bool go_on() const { return ::kill(pid_, SIGCONT) == 0; }
    void kill() {
        if (pid_ < 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }

private:
    static constexpr int kPortFd = 100;

    pid_t pid_ = -1;
    uint16_t port_ = 0;
};

}  // namespace mooncake::rpc::testing
