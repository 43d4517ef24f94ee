// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace mooncake::conductor {

/// What decides how much a prompt costs: the sizes of the model. The defaults are those of a dense model of 70 billion parameters.
struct ModelShape {
    double layers = 80, width = 8192;
    double heads_per_kv_head = 8;  // grouped-query attention
    double bytes_per_value = 2;
    double attention_flops = 4, linear_flops = 22;  // per layer: a n^2 d + b n d^2

    double kv_bytes_per_token() const noexcept { return layers * 2 * width / heads_per_kv_head * bytes_per_value; }
};

/// A linear model of three features that follows what is measured: recursive least squares with forgetting, started from a first guess that counts
/// as much as a few measurements. Not thread-safe.
class Regression {
public:
    using Features = std::array<double, 3>;

    /// `scale`: the usual size of each feature, so that all weigh alike.
    Regression(const Features& guess, const Features& scale) noexcept;
    double predict(const Features& features) const noexcept;  // never negative
    /// Measurements that are no number or not positive are passed over.
    void observe(const Features& features, double value) noexcept;
    uint64_t observations() const noexcept { return observations_; }

private:
    Features scale_, weights_;
    std::array<Features, 3> covariance_{};
    uint64_t observations_ = 0;
};

/// How a prefill instance computes: pipelines of several nodes cut a prompt into chunks that follow each other through the stages.
struct Pipeline {
    uint32_t stages = 1;
    uint32_t chunk_tokens = 4096;
};

/// What computing a prompt takes.
struct PrefillTime {
    double latency = 0;    // seconds from its start to its first token
    double occupancy = 0;  // seconds after which the next prompt may start
};

/// The time of prefills on one instance as a function of (length, cached prefix): c0 + c1 (n - p) + c2 (n^2 - p^2).
class PrefillCost {
public:
    PrefillCost(const ModelShape& shape, double flops_per_second, Pipeline pipeline = {}) noexcept;
    PrefillTime predict(uint64_t tokens, uint64_t prefix) const noexcept;
    /// A prompt took so many seconds from its start to its first token.
    void observe(uint64_t tokens, uint64_t prefix, double seconds) noexcept;
    uint64_t observations() const noexcept { return time_.observations(); }

private:
    Regression::Features latency_features(uint64_t tokens, uint64_t prefix) const noexcept;

    Pipeline pipeline_;
    Regression time_;
};

/// The time between two tokens of a decode instance: c0 + c1 (requests in the batch) + c2 (tokens whose KV is read).
class DecodeCost {
public:
    DecodeCost(double step_seconds, double per_request_seconds, double per_token_seconds) noexcept;
    double predict(double requests, double tokens) const noexcept;
    void observe(double requests, double tokens, double seconds) noexcept;

private:
    Regression time_;
};

}  // namespace mooncake::conductor
