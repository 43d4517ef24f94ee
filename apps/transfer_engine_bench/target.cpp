// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <cstdio>

#include "bench.h"
#include "buffer.h"

namespace mooncake::bench {

Result<> run_target(const Options& options) {
    MC_ASSIGN_OR_RETURN(const auto engine, Engine::create(options.engine));
    MC_ASSIGN_OR_RETURN(const Buffer buffer, Buffer::create(*engine, options.buffer_bytes, options.managed_memory));
    std::fprintf(stderr, "lending %llu bytes; start the other side with --segment_id=%s\n", static_cast<unsigned long long>(buffer.size()),
                 engine->segment_name().c_str());
    // The line that programs read.
    std::printf("segment_id %s\n", engine->segment_name().c_str());
    std::fflush(stdout);

    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    int signal_number = 0;
    if (const int problem = sigwait(&ending, &signal_number); problem != 0)
        return fail_errno(Code::kInternal, problem, "cannot wait for a signal");
    return {};
}

}  // namespace mooncake::bench
