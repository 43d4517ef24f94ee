// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

/// A capi_peer process (capi_peer.c). Killed when this goes away. One thread.
class PeerProcess {
public:
    /// `environment`: "NAME=value" in addition to ours.
    explicit PeerProcess(const std::vector<std::string>& environment = {}, const char* argument = "plain");
    ~PeerProcess();
    PeerProcess(const PeerProcess&) = delete;
    PeerProcess& operator=(const PeerProcess&) = delete;

    /// Empty when it did not start.
    const std::string& name() const { return name_; }
    uint64_t address() const { return address_; }
    uint64_t bytes() const { return bytes_; }

    /// The line it answers; empty if it is gone.
    std::string ask(const std::string& command);
    void signal(int number) const;
    /// Lets it end in order.
    void close_commands();
    /// The exit status, or minus the signal that killed it.
    int wait();

private:
    std::string read_line();

    pid_t pid_ = -1;
    FILE* commands_ = nullptr;
    FILE* answers_ = nullptr;
    std::string name_;
    uint64_t address_ = 0;
    uint64_t bytes_ = 0;
};
