// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <iostream>

#include "net/socket.h"

namespace mooncake::testing {

ChildProcess::ChildProcess(const std::string& test_name) {
    std::array<int, 2> to_child{}, from_child{};
    MC_CHECK(::pipe2(to_child.data(), O_CLOEXEC) == 0 && ::pipe2(from_child.data(), O_CLOEXEC) == 0);
    const UniqueFd child_input(to_child[0]), child_output(from_child[1]);
    input_.reset(to_child[1]);
    output_.reset(from_child[0]);

    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, child_input.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, child_output.get(), STDOUT_FILENO);
    std::string program = "/proc/self/exe", filter = "--gtest_filter=" + test_name, disabled = "--gtest_also_run_disabled_tests";
    std::array<char*, 4> arguments{program.data(), filter.data(), disabled.data(), nullptr};
    MC_CHECK(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
}

ChildProcess::~ChildProcess() { kill(); }

void ChildProcess::send_line(const std::string& line) const { MC_CHECK(try_send_line(line)); }

bool ChildProcess::try_send_line(const std::string& line) const {
    const std::string text = line + "\n";
    return ::write(input_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

Result<std::string> ChildProcess::read_line(const std::string& prefix, Deadline deadline) {
    for (;;) {
        for (size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
            const std::string line = pending_.substr(0, end);
            pending_.erase(0, end + 1);
            if (line.starts_with(prefix)) return line.substr(prefix.size());
        }
        if (!net::wait_ready(output_.get(), POLLIN, deadline)) return fail(Code::kTimedOut, "no answer from the child");
        std::array<char, 4096> bytes;
        const ssize_t count = ::read(output_.get(), bytes.data(), bytes.size());
        if (count <= 0) return fail(Code::kUnavailable, "the child has ended");
        pending_.append(bytes.data(), static_cast<size_t>(count));
    }
}

void ChildProcess::signal(int number) const {
    MC_CHECK(::kill(pid_, number) == 0);
    // kill() only asks for the stop; the child's threads may run on for a moment.
    if (number == SIGSTOP) MC_CHECK(::waitpid(pid_, nullptr, WUNTRACED) == pid_);
}

void ChildProcess::kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    MC_CHECK(::waitpid(pid_, nullptr, 0) == pid_);
    pid_ = -1;
}

std::string read_command() {
    std::string line;
    if (!std::getline(std::cin, line)) ::_exit(0);
    return line;
}

void say(const std::string& line) { std::cout << line << std::endl; }

}  // namespace mooncake::testing
