// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace mooncake::bench {

void Latencies::add(uint64_t nanoseconds) {
    if (seen_++ % stride_ != 0) return;
    if (samples_.size() == kSamplesMax) {
        for (size_t i = 0; i < kSamplesMax / 2; ++i) samples_[i] = samples_[2 * i];
        samples_.resize(kSamplesMax / 2);
        stride_ *= 2;
    }
    samples_.push_back(nanoseconds);
}

std::optional<double> unit_bytes(std::string_view unit) {
    static constexpr std::array<std::pair<std::string_view, double>, 9> kUnits = {{{"GB", 1e9},
                                                                                   {"GiB", 1 << 30},
                                                                                   {"Gb", 1e9 / 8},
                                                                                   {"MB", 1e6},
                                                                                   {"MiB", 1 << 20},
                                                                                   {"Mb", 1e6 / 8},
                                                                                   {"KB", 1e3},
                                                                                   {"KiB", 1 << 10},
                                                                                   {"Kb", 1e3 / 8}}};
    for (const auto& [name, bytes] : kUnits)
        if (name == unit) return bytes;
    return std::nullopt;
}

namespace {

double quantile_us(const std::vector<uint64_t>& sorted, double share) {
    if (sorted.empty()) return 0;
    const auto index = static_cast<size_t>(share * static_cast<double>(sorted.size()));
    return static_cast<double>(sorted[std::min(index, sorted.size() - 1)]) / 1e3;
}

}  // namespace

std::string report(const Options& options, Outcome outcome) {
    std::sort(outcome.latencies_ns.begin(), outcome.latencies_ns.end());
    const double speed = outcome.seconds > 0 ? static_cast<double>(outcome.bytes) / outcome.seconds : 0;
    const double p50 = quantile_us(outcome.latencies_ns, 0.5);
    const double p99 = quantile_us(outcome.latencies_ns, 0.99);
    const double p999 = quantile_us(outcome.latencies_ns, 0.999);
    const char* operation = options.direction == Direction::kRead ? "read" : "write";
    if (!options.json) {
        return format_text(
            "{} of {} bytes x {}, {} threads: {} batches in {:.2f} s, {:.{}f} {}/s\nlatency of a batch: p50 {:.1f} us, p99 {:.1f} us, p999 "
            "{:.1f} us\n",
            operation, options.block_bytes, options.blocks_per_batch, options.threads, outcome.batches, outcome.seconds,
            speed / unit_bytes(options.unit).value_or(1), options.precision, options.unit, p50, p99, p999);
    }
    const nlohmann::ordered_json json = {{"operation", operation},
                                         {"segment", options.segment},
                                         {"block_size", options.block_bytes},
                                         {"batch_size", options.blocks_per_batch},
                                         {"threads", options.threads},
                                         {"seconds", outcome.seconds},
                                         {"batches", outcome.batches},
                                         {"bytes", outcome.bytes},
                                         {"bytes_per_second", speed},
                                         {"p50_us", p50},
                                         {"p99_us", p99},
                                         {"p999_us", p999}};
    return json.dump() + "\n";
}

}  // namespace mooncake::bench
