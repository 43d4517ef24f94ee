// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "apps/common/config_file.h"
#include "apps/common/flags_master.h"
#include "apps/common/master_program.h"
#include "apps/common/stop_signals.h"
#include "base/options.h"
#include "base/version.h"

namespace {

using namespace mooncake;
using namespace mooncake::store;

int complain(const Error& error) {
    std::fprintf(stderr, "mooncake_master: %s\n", error.to_string().c_str());
    return 1;
}

}  // namespace

int main(int argc, char** argv) try {
    StopSignals signals;
    const Environment environment = process_environment();
    const auto flags = parse_master_flags(std::vector<std::string>(argv + 1, argv + argc),
                                          {.read_file = read_config_file, .environment = environment});
    if (!flags) return complain(flags.error());
    if (flags->log.help) return std::fputs(master_help().c_str(), stdout) < 0 ? 1 : 0;
    if (flags->log.version) return std::printf("mooncake_master %s\n", std::string(version()).c_str()) < 0 ? 1 : 0;
    configure_program_log(flags->log, load_options(environment).log, "mooncake_master");
    for (const std::string& warning : flags->warnings) MC_LOG_WARNING("{}", warning);

    auto program = MasterProgram::start(*flags);
    if (!program) return complain(program.error());
    // The line that scripts wait for.
    std::printf("Master service started on port %u\n", (*program)->port());
    std::fflush(stdout);
    const int signal_number = signals.wait();
    MC_LOG_INFO("ending on signal {}", signal_number);
    program->reset();
    return 0;
} catch (const std::exception& thrown) {  // no thread or no memory was to be had
    return complain(Error(Code::kUnavailable, thrown.what()));
}
