// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>

/// Another process that does `body`; killed when this goes away. Stands alone, as raw_limits does. Fork before there are threads.
class Child {
public:
    explicit Child(const std::function<void()>& body) : pid_(::fork()) {
        if (pid_ < 0) {
            std::perror("fork");
            std::exit(1);
        }
        if (pid_ != 0) return;
        body();
        ::_exit(0);
    }
    ~Child() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    pid_t pid() const { return pid_; }
    /// Takes its cores away, and gives them back.
    void stop() const { ::kill(pid_, SIGSTOP); }
    void resume() const { ::kill(pid_, SIGCONT); }

private:
    const pid_t pid_;
};
