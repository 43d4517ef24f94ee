// SPDX-License-Identifier: Apache-2.0
#include "metrics/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace mooncake::metrics {

namespace {

/// Values 1, 2, 3, ... 8 have a bucket each (0 shares the first); above, four buckets divide each range (2^n, 2^(n+1)].
/// Counting from value - 1 makes the powers of two the highest value of their bucket, which is how Prometheus reads bounds.
size_t bucket_of(uint64_t value) noexcept {
    const uint64_t v = value == 0 ? 0 : value - 1;
    if (v < 4) return v;
    const auto exponent = static_cast<size_t>(std::bit_width(v)) - 1;
    return 4 * (exponent - 1) + ((v >> (exponent - 2)) & 3);
}

uint64_t highest_value_in(size_t bucket) noexcept {
    if (bucket < 4) return bucket + 1;
    const size_t exponent = bucket / 4 + 1;
    const uint64_t steps = 4 + bucket % 4 + 1;
    // The last bucket would end at 2^64.
    if (steps > std::numeric_limits<uint64_t>::max() >> (exponent - 2)) return std::numeric_limits<uint64_t>::max();
    return steps << (exponent - 2);
}

}  // namespace

uint64_t Counter::value() const noexcept {
    uint64_t total = 0;
    for (const Shard& shard : shards_) total += shard.value.load(std::memory_order_relaxed);
    return total;
}

void Histogram::observe(uint64_t value) noexcept {
    Shard& shard = shards_[thread_number() % kShards];
    shard.counts[bucket_of(value)].fetch_add(1, std::memory_order_relaxed);
    shard.sum.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::snapshot() const {
    Snapshot snapshot;
    for (size_t i = 0; i < kBuckets; ++i) {
        uint64_t count = 0;
        for (const Shard& shard : shards_) count += shard.counts[i].load(std::memory_order_relaxed);
        if (count == 0) continue;
        snapshot.count += count;
        snapshot.buckets.emplace_back(highest_value_in(i), count);
    }
    for (const Shard& shard : shards_) snapshot.sum += shard.sum.load(std::memory_order_relaxed);
    return snapshot;
}

uint64_t Histogram::Snapshot::quantile(double q) const noexcept {
    if (count == 0) return 0;
    const double rank = (std::isnan(q) ? 0.0 : std::clamp(q, 0.0, 1.0)) * static_cast<double>(count);
    double below = 0;
    for (const auto& [highest, here] : buckets) {
        const auto share = static_cast<double>(here);
        if (below + share >= rank) {
            const size_t bucket = bucket_of(highest);
            const uint64_t lowest = bucket == 0 ? 0 : highest_value_in(bucket - 1);
            const auto width = static_cast<double>(highest - lowest);
            const auto inside = static_cast<uint64_t>(width * (rank - below) / share);
            return lowest + std::min(inside, highest - lowest);
        }
        below += share;
    }
    return buckets.back().first;
}

}  // namespace mooncake::metrics
