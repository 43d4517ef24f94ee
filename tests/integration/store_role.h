// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/time.h"

namespace mooncake::store {

/// How much longer things may take.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlowness = 10;
#else
constexpr double kSlowness = 1;
#endif

/// A store_role process (store_role_program.cpp). Killed when this goes away. One thread.
class RoleProcess {
public:
    explicit RoleProcess(const std::vector<std::string>& arguments);
    ~RoleProcess();
    RoleProcess(const RoleProcess&) = delete;
    RoleProcess& operator=(const RoleProcess&) = delete;

    /// The next line it prints; empty when none comes in time, or it is gone.
    std::string line(Duration patience = std::chrono::seconds(60));
    /// SIGSTOP: returns when it has stopped.
    void stop() const;
    void go_on() const;
    /// SIGKILL: returns when it is gone.
    void kill();
    /// Closes its standard input: returns when it has ended by itself.
    void end();

private:
    pid_t pid_ = -1;
    int to_ = -1, from_ = -1;
    std::string read_;
};

/// A master as a process; start() again after kill() takes the same port.
class MasterProcess {
public:
    explicit MasterProcess(Duration client_ttl = 10s, Duration lease = 5s) : client_ttl_(client_ttl), lease_(lease) { start(); }
    /// Returns when it listens.
    void start() {
        const auto ms = [](Duration duration) {
            return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
        };
        process_ = std::make_unique<RoleProcess>(std::vector<std::string>{"master", std::to_string(port_), ms(client_ttl_), ms(lease_)});
        std::istringstream(process_->line()) >> port_ >> epoch_;
        MC_CHECK(epoch_ != 0);
    }
    void kill() { process_->kill(); }
    RoleProcess& process() { return *process_; }
    std::string address() const { return format_text("127.0.0.1:{}", port_); }
    uint64_t epoch() const { return epoch_; }

private:
    const Duration client_ttl_, lease_;
    uint16_t port_ = 0;
    uint64_t epoch_ = 0;
    std::unique_ptr<RoleProcess> process_;
};

}  // namespace mooncake::store
