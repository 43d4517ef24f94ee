// SPDX-License-Identifier: Apache-2.0
#include "engine/metrics_log.h"

namespace mooncake {

std::vector<std::string> MetricsLog::lines(Duration since_last) {
    std::vector<std::string> lines;
    const double seconds = std::chrono::duration<double>(since_last).count();
    for (const Source& source : sources_) {
        for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
            Seen& seen = seen_[{source.path, direction}];
            PathMetrics::PerDirection& now = source.metrics->of(direction);
            const uint64_t bytes = now.bytes->value(), transfers = now.transfers->value();
            metrics::Histogram::Snapshot recent = now.latency_ns->snapshot();
            recent.count = 0;
            for (auto& [bound, count] : recent.buckets) {
                uint64_t& before = seen.buckets[bound];
                const uint64_t total = count;
                count -= before;
                before = total;
                recent.count += count;
            }
            if (transfers != seen.transfers) {
                lines.push_back(format_text("{} {}: {:.1f} MB/s, {} transfers, p50 {} us, p99 {} us", source.path,
                                            direction == Direction::kRead ? "read" : "write",
                                            static_cast<double>(bytes - seen.bytes) / 1e6 / seconds, transfers - seen.transfers,
                                            recent.quantile(0.5) / 1000, recent.quantile(0.99) / 1000));
            }
            seen.bytes = bytes;
            seen.transfers = transfers;
        }
    }
    return lines;
}

}  // namespace mooncake
