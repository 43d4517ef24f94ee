// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench.h"

namespace mooncake::bench {

/// A sample of durations, evenly spread over the run and bounded in size. One thread.
class Latencies {
public:
    void add(uint64_t nanoseconds);
    const std::vector<uint64_t>& samples() const noexcept { return samples_; }

private:
    static constexpr size_t kSamplesMax = 1 << 18;
    std::vector<uint64_t> samples_;
    uint64_t stride_ = 1;  // every stride-th is kept
    uint64_t seen_ = 0;
};

/// Bytes in one unit of "GB", "GiB", "Gb", ..., "Kb"; nothing for other text.
std::optional<double> unit_bytes(std::string_view unit);

struct Outcome {
    uint64_t bytes = 0;
    uint64_t batches = 0;
    double seconds = 0;
    std::vector<uint64_t> latencies_ns;
};

/// For people or as one line of JSON, according to the options.
std::string report(const Options& options, Outcome outcome);

}  // namespace mooncake::bench
