// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mooncake::testing {

/// A folder of its own, removed on destruction.
class TemporaryFolder {
public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    const std::filesystem::path& path() const noexcept { return path_; }

private:
    std::filesystem::path path_;
};

/// A port of the loopback address that nobody used a moment ago.
uint16_t free_port();

/// A program run by a test; killed on destruction, and by the kernel if the test dies. Its output goes to `log`.
class ServerProcess {
public:
    ServerProcess() = default;
    ~ServerProcess() { kill(); }
    ServerProcess(const ServerProcess&) = delete;
    ServerProcess& operator=(const ServerProcess&) = delete;

    /// The first word is the program's full path; a missing one fails the test.
    void start(const std::vector<std::string>& command, const std::filesystem::path& log);
    /// Waits until somebody listens on the port; false if the program ended instead.
    bool wait_listening(uint16_t port);
    void kill();    // SIGKILL, and waits for the end
    void pause();   // SIGSTOP
    void resume();  // SIGCONT

private:
    bool has_ended();
    pid_t pid_ = -1;
};

}  // namespace mooncake::testing
