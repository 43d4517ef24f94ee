// SPDX-License-Identifier: Apache-2.0
#include "coordination/testing/server_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "net/socket.h"

namespace mooncake::testing {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "directory-XXXXXX").string();
    MC_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

uint16_t free_port() { return net::listen_on(0, 1).value().port; }

void ServerProcess::start(const std::vector<std::string>& command, const fs::path& log) {
    kill();
    ASSERT_EQ(::access(command.front().c_str(), X_OK), 0) << command.front() << " is missing; deps/ lists what the tests need";
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string log_path = log.string();
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        const int output = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        ::dup2(output, 1);
        ::dup2(output, 2);
        ::execv(arguments[0], arguments.data());
        ::_exit(127);
    }
    ASSERT_GT(pid_, 0);
}

bool ServerProcess::has_ended() {
    if (pid_ <= 0) return true;
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == 0) return false;
    pid_ = -1;
    return true;
}

bool ServerProcess::wait_listening(uint16_t port) {
    const Deadline deadline = Deadline::after(60s);
    while (!deadline.passed()) {
        if (has_ended()) return false;
        if (net::connect_to("127.0.0.1", port, deadline)) return true;
        ::poll(nullptr, 0, 5);  // nothing tells us when another program begins to listen
    }
    return false;
}

void ServerProcess::kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

void ServerProcess::pause() {
    ASSERT_GT(pid_, 0);
    ::kill(pid_, SIGSTOP);
    int status = 0;
    ASSERT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
}

void ServerProcess::resume() {
    ASSERT_GT(pid_, 0);
    ::kill(pid_, SIGCONT);
}

}  // namespace mooncake::testing
