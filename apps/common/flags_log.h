// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "apps/common/flags_set.h"
#include "base/log.h"

namespace mooncake::store {

/// The flags that all programs have: about their log, --help and --version.
struct LogFlags {
    std::string log_dir;
    bool logtostderr = false, alsologtostderr = false;
    int64_t v = 0, minloglevel = 0;
    bool help = false, version = false;
};
void add_log_flags(FlagSet& set, LogFlags& flags);

/// What they say, over `base`.
LogOptions log_options(const LogFlags& flags, LogOptions base);
/// Sets up the log of a program. With a folder it is PROGRAM.INFO.DATE-TIME.PID in there, and PROGRAM.INFO leads to it.
void configure_program_log(const LogFlags& flags, LogOptions base, const std::string& program);

}  // namespace mooncake::store
