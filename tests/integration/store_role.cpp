// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/store_role.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "base/error.h"

extern char** environ;

namespace mooncake::store {

RoleProcess::RoleProcess(const std::vector<std::string>& arguments) {
    int to_child[2], from_child[2];
    MC_CHECK(::pipe2(to_child, O_CLOEXEC) == 0 && ::pipe2(from_child, O_CLOEXEC) == 0);
    std::vector<char*> words{const_cast<char*>(STORE_ROLE)};
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
    MC_CHECK(::posix_spawn(&pid_, STORE_ROLE, &actions, nullptr, words.data(), environ) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(to_child[0]);
    ::close(from_child[1]);
    to_ = to_child[1];
    from_ = from_child[0];
}

RoleProcess::~RoleProcess() {
    kill();
    if (to_ >= 0) ::close(to_);
    ::close(from_);
}

std::string RoleProcess::line(Duration patience) {
    const Deadline deadline = Deadline::after(patience);
    for (;;) {
        if (const size_t end = read_.find('\n'); end != std::string::npos) {
            std::string found = read_.substr(0, end);
            read_.erase(0, end + 1);
            return found;
        }
        pollfd entry{.fd = from_, .events = POLLIN, .revents = 0};
        if (::poll(&entry, 1, deadline.left_ms()) <= 0) return {};
        char bytes[256];
        const ssize_t got = ::read(from_, bytes, sizeof bytes);
        if (got <= 0) return {};
        read_.append(bytes, static_cast<size_t>(got));
    }
}

void RoleProcess::stop() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    MC_CHECK(::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
}

void RoleProcess::go_on() const { ::kill(pid_, SIGCONT); }

void RoleProcess::end() {
    if (pid_ < 0) return;
    ::close(std::exchange(to_, -1));
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

void RoleProcess::kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

}  // namespace mooncake::store
