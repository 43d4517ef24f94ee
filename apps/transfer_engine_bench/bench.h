// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "engine/engine.h"

// The two sides of the benchmark. Each is one blocking function, to be called from main() once.
namespace mooncake::bench {

struct Options {
    EngineConfig engine;
    std::string segment;  // the target's, as it prints it; initiator only
    Direction direction = Direction::kRead;
    uint64_t block_bytes = 64 * 1024;
    uint32_t blocks_per_batch = 128;
    uint32_t threads = 1;
    uint64_t buffer_bytes = 1 << 30;
    Duration duration = 10s;
    bool managed_memory = false;  // memory from the engine, which peers on the same host can map
    std::string unit = "GB";
    int precision = 2;
    bool json = false;
};

/// Lends a buffer until SIGINT or SIGTERM. Both must be blocked in the calling thread.
Result<> run_target(const Options& options);
/// Moves batches between our buffer and the target's for the given time and reports the speed.
Result<> run_initiator(const Options& options);

}  // namespace mooncake::bench
