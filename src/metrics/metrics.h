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
#include "base/thread_number.h"

namespace mooncake::metrics {

using Labels = std::vector<std::pair<std::string, std::string>>;

/// A number that only grows. add() is one relaxed add on a cache line that few threads share.
class MC_EXPORT Counter {
public:
    void add(uint64_t amount = 1) noexcept { shards_[thread_number() % kShards].value.fetch_add(amount, std::memory_order_relaxed); }
    uint64_t value() const noexcept;

private:
    static constexpr size_t kShards = 16;
    struct alignas(64) Shard {
        std::atomic<uint64_t> value{0};
    };
    std::array<Shard, kShards> shards_;
};

/// A number that goes up and down.
class MC_EXPORT Gauge {
public:
    void set(int64_t value) noexcept { value_.store(value, std::memory_order_relaxed); }
    void add(int64_t amount) noexcept { value_.fetch_add(amount, std::memory_order_relaxed); }
    int64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<int64_t> value_{0};
};

/// Counts observations in buckets with four even steps to each power of two, so a quantile is wrong by 25 % at the very most
/// and usually by far less. Unit-free; by habit nanoseconds or bytes. observe() is two relaxed adds on cache lines that few threads share.
class MC_EXPORT Histogram {
public:
    void observe(uint64_t value) noexcept;

    struct MC_EXPORT Snapshot {
        uint64_t count = 0;
        uint64_t sum = 0;
        std::vector<std::pair<uint64_t, uint64_t>> buckets;  // (highest value in it, observations), only non-empty ones, ascending
        /// The value below which a share `q` (0..1) of the observations lies, estimated evenly inside its bucket; 0 without any.
        uint64_t quantile(double q) const noexcept;
    };
    Snapshot snapshot() const;

private:
    static constexpr size_t kBuckets = 63 * 4;
    static constexpr size_t kShards = 8;
    struct alignas(64) Shard {
        std::array<std::atomic<uint64_t>, kBuckets> counts{};
        std::atomic<uint64_t> sum{0};
    };
    std::array<Shard, kShards> shards_;
};

/// Owns the metrics of one engine or server and writes them as Prometheus text. Thread-safe. Same name and labels, in any
/// order, give the same object, which lives as long as the registry. Names are code: a bad one, or one used for two kinds of
/// metric, is a bug of ours and aborts. Label values may be any text.
class MC_EXPORT Registry {
public:
    Registry();
    ~Registry();

    Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
    Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
    /// Exported as a Prometheus histogram with the same bounds everywhere, so that those of many processes add up: the powers
    /// of two from 2^8 to 2^36, divided by `scale` (1e9 turns nanoseconds into seconds).
    Histogram& histogram(const std::string& name, const std::string& help, const Labels& labels = {}, double scale = 1.0);

    std::string to_prometheus_text() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace mooncake::metrics
