// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"

namespace mooncake::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

/// A number that only grows. add() is one relaxed add on a cache line that few threads share.
class Counter {
public:
    void add(uint64_t amount = 1) noexcept { shards_[shard()].value.fetch_add(amount, std::memory_order_relaxed); }
    uint64_t value() const noexcept;

private:
    static constexpr size_t kShards = 8;
    static size_t shard() noexcept;
    struct alignas(64) Shard {
        std::atomic<uint64_t> value{0};
    };
    std::array<Shard, kShards> shards_;
};

/// A number that goes up and down.
class Gauge {
public:
    void set(int64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
    void add(int64_t amount) noexcept { value_.fetch_add(amount, std::memory_order_relaxed); }
    int64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<int64_t> value_{0};
};

/// Counts observations in buckets that grow by powers of two with four steps each: any quantile is right to about 19 %.
/// Unit-free; by habit nanoseconds or bytes. observe() is two relaxed adds.
class Histogram {
public:
    void observe(uint64_t value) noexcept;

    struct Snapshot {
        uint64_t count = 0;
        uint64_t sum = 0;
        std::vector<std::pair<uint64_t, uint64_t>> buckets;  // (upper bound, observations in it), only non-empty ones, ascending
        /// The value below which a share `q` (0..1) of the observations lies; 0 without observations.
        uint64_t quantile(double q) const noexcept;
    };
    Snapshot snapshot() const;

private:
    static constexpr size_t kBuckets = 64 * 4;
    std::array<std::atomic<uint64_t>, kBuckets> counts_{};
    std::atomic<uint64_t> sum_{0};
};

/// Owns the metrics of one engine or server and writes them as Prometheus text. Thread-safe. Same name and labels give the
/// same object, which lives as long as the registry.
class MC_EXPORT Registry {
public:
    Registry();
    ~Registry();

    Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
    Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
    /// Exported as a Prometheus histogram whose bounds are divided by `scale` (1e9 turns nanoseconds into seconds).
    Histogram& histogram(const std::string& name, const std::string& help, const Labels& labels = {}, double scale = 1.0);

    std::string to_prometheus_text() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace mooncake::metrics
