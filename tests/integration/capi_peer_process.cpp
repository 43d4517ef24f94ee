// SPDX-License-Identifier: Apache-2.0
#include "capi_peer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <sstream>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX wants it declared by the program

namespace {

struct Pipe {
    std::array<int, 2> ends{-1, -1};
    Pipe() {
        if (::pipe2(ends.data(), O_CLOEXEC) != 0) std::perror("pipe2");
    }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (std::string& text : texts) list.push_back(text.data());
    return list;
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& environment, const char* argument) {
    const Pipe commands, answers;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, commands.ends[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, answers.ends[1], STDOUT_FILENO);
    std::vector<std::string> words = {CAPI_PEER, argument};
    std::vector<std::string> more = environment;
    std::vector<char*> arguments = pointers(words), variables = pointers(more);
    arguments.push_back(nullptr);
    for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
    variables.push_back(nullptr);
    if (::posix_spawn(&pid_, CAPI_PEER, &actions, nullptr, arguments.data(), variables.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    ::close(commands.ends[0]);
    ::close(answers.ends[1]);
    commands_ = ::fdopen(commands.ends[1], "w");
    answers_ = ::fdopen(answers.ends[0], "r");
    std::istringstream(read_line()) >> name_ >> address_ >> bytes_;
}

PeerProcess::~PeerProcess() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    if (commands_ != nullptr) std::fclose(commands_);
    std::fclose(answers_);
}

std::string PeerProcess::ask(const std::string& command) {
    std::fputs((command + "\n").c_str(), commands_);
    std::fflush(commands_);
    return read_line();
}

void PeerProcess::signal(int number) const { ::kill(pid_, number); }

void PeerProcess::close_commands() {
    std::fclose(commands_);
    commands_ = nullptr;
}

int PeerProcess::wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string PeerProcess::read_line() {
    std::string line;
    for (int c = std::fgetc(answers_); c != EOF && c != '\n'; c = std::fgetc(answers_)) line.push_back(static_cast<char>(c));
    return line;
}
