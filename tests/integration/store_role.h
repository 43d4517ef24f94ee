// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/time.h"

namespace mooncake::store {

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

private:
    pid_t pid_ = -1;
    int to_ = -1, from_ = -1;
    std::string read_;
};

}  // namespace mooncake::store
