// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/cost.h"

#include <algorithm>
#include <cmath>

namespace mooncake::conductor {

namespace {

constexpr double kForget = 0.995;        // a measurement counts half after about 140 others
constexpr double kGuessVariance = 0.05;  // relative to the noise: how far the first guess is trusted
constexpr double kVarianceMax = 10;      // forgetting must not blow up what is never measured
constexpr double kTokensScale = 1e4, kSquaresScale = 1e8;

Regression::Features features_of(double tokens, double prefix) noexcept { return {1, tokens - prefix, tokens * tokens - prefix * prefix}; }

}  // namespace

Regression::Regression(const Features& guess, const Features& scale) noexcept : scale_(scale) {
    for (size_t i = 0; i < weights_.size(); ++i) {
        weights_[i] = guess[i] * scale[i];
        covariance_[i][i] = kGuessVariance;
    }
}

double Regression::predict(const Features& features) const noexcept {
    double sum = 0;
    for (size_t i = 0; i < weights_.size(); ++i) sum += weights_[i] * features[i] / scale_[i];
    return std::max(0.0, sum);
}

void Regression::observe(const Features& features, double value) noexcept {
    if (!std::isfinite(value) || value <= 0) return;
    Features x{}, px{};
    for (size_t i = 0; i < x.size(); ++i) x[i] = features[i] / scale_[i];
    double denominator = kForget, error = value;
    for (size_t i = 0; i < x.size(); ++i) {
        for (size_t j = 0; j < x.size(); ++j) px[i] += covariance_[i][j] * x[j];
        denominator += x[i] * px[i];
        error -= weights_[i] * x[i];
    }
    for (size_t i = 0; i < x.size(); ++i)
        weights_[i] = std::max(0.0, weights_[i] + px[i] / denominator * error);  // no work takes less than none
    for (size_t i = 0; i < x.size(); ++i) {
        for (size_t j = 0; j < x.size(); ++j) covariance_[i][j] = (covariance_[i][j] - px[i] * px[j] / denominator) / kForget;
    }
    for (size_t i = 0; i < x.size(); ++i) {
        if (covariance_[i][i] <= kVarianceMax) continue;
        const double shrink = std::sqrt(kVarianceMax / covariance_[i][i]);
        for (size_t j = 0; j < x.size(); ++j) {
            covariance_[i][j] *= shrink;
            covariance_[j][i] *= shrink;
        }
    }
    ++observations_;
}

PrefillCost::PrefillCost(const ModelShape& shape, double flops_per_second, Pipeline pipeline) noexcept
    : pipeline_(pipeline), time_({0, shape.layers * shape.linear_flops * shape.width * shape.width / flops_per_second,
                                  shape.layers * shape.attention_flops * shape.width / flops_per_second},
                                 {1, kTokensScale, kSquaresScale}) {}

PrefillTime PrefillCost::predict(uint64_t tokens, uint64_t prefix) const noexcept {
    prefix = std::min(prefix, tokens);
    const double stages = pipeline_.stages;
    const double whole = time_.predict(features_of(static_cast<double>(tokens), static_cast<double>(prefix)));
    if (pipeline_.stages <= 1) return {.latency = whole, .occupancy = whole};
    return {.latency = time_.predict(latency_features(tokens, prefix)), .occupancy = whole / stages};
}

void PrefillCost::observe(uint64_t tokens, uint64_t prefix, double seconds) noexcept {
    time_.observe(latency_features(tokens, std::min(prefix, tokens)), seconds);
}

/// The stages work on different chunks at the same time; the last chunk passes all of them when the others are through.
Regression::Features PrefillCost::latency_features(uint64_t tokens, uint64_t prefix) const noexcept {
    Regression::Features sum = features_of(static_cast<double>(tokens), static_cast<double>(prefix));
    if (pipeline_.stages <= 1) return sum;
    const uint64_t last = std::min<uint64_t>(pipeline_.chunk_tokens, tokens - prefix);
    const Regression::Features tail = features_of(static_cast<double>(tokens), static_cast<double>(tokens - last));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = (sum[i] + (pipeline_.stages - 1) * tail[i]) / pipeline_.stages;
    return sum;
}

DecodeCost::DecodeCost(double step_seconds, double per_request_seconds, double per_token_seconds) noexcept
    : time_({step_seconds, per_request_seconds, per_token_seconds}, {1, 32, 1e5}) {}

double DecodeCost::predict(double requests, double tokens) const noexcept { return time_.predict({1, requests, tokens}); }

void DecodeCost::observe(double requests, double tokens, double seconds) noexcept { time_.observe({1, requests, tokens}, seconds); }

}  // namespace mooncake::conductor
