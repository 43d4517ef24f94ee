// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "base/error.h"
#include "base/time.h"
#include "base/unique_fd.h"

namespace mooncake::testing {

/// This test program once more, running one (disabled) test of it as a second process. It talks through its standard input and
/// output, in lines; it should end when its input does. Killed on destruction. Not thread-safe.
class ChildProcess {
public:
    explicit ChildProcess(const std::string& test_name);
    ~ChildProcess();
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;

    pid_t pid() const noexcept { return pid_; }
    void send_line(const std::string& line) const;
    /// False: it has ended. SIGPIPE must be ignored.
    bool try_send_line(const std::string& line) const;
    /// The next line that begins with `prefix`, without it; kTimedOut, or kUnavailable when the child has ended.
    Result<std::string> read_line(const std::string& prefix, Deadline deadline);
    void signal(int number) const;
    /// Kills it and waits for its end.
    void kill();

private:
    pid_t pid_ = -1;
    UniqueFd input_, output_;
    std::string pending_;
};

/// For the child: the next line of standard input; ends the process when there is none.
std::string read_command();
/// For the child: a line for read_line().
void say(const std::string& line);

}  // namespace mooncake::testing
