// SPDX-License-Identifier: Apache-2.0
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <locale>
#include <map>
#include <sstream>
#include <variant>

#include "metrics/metrics.h"

namespace mooncake::metrics {

namespace {

using Metric = std::variant<std::unique_ptr<Counter>, std::unique_ptr<Gauge>, std::unique_ptr<Histogram>>;

constexpr int kLowestPower = 8, kHighestPower = 36;

/// All metrics of one name.
struct Family {
    std::string help;
    prometheus::MetricType type = prometheus::MetricType::Untyped;
    double scale = 1.0;
    std::map<Labels, Metric> metrics;
};

bool valid_name(const std::string& name, bool colon) {
    const auto letter = [colon](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colon && c == ':'); };
    const auto other = [letter](char c) { return letter(c) || (c >= '0' && c <= '9'); };
    return !name.empty() && letter(name.front()) && std::all_of(name.begin(), name.end(), other);
}

prometheus::ClientMetric::Histogram to_prometheus(const Histogram& histogram, double scale) {
    const Histogram::Snapshot snapshot = histogram.snapshot();
    prometheus::ClientMetric::Histogram result;
    uint64_t cumulative = 0;
    auto next = snapshot.buckets.begin();
    for (int power = kLowestPower; power <= kHighestPower; ++power) {
        const uint64_t bound = uint64_t{1} << power;
        for (; next != snapshot.buckets.end() && next->first <= bound; ++next) cumulative += next->second;
        result.bucket.push_back({.cumulative_count = cumulative, .upper_bound = static_cast<double>(bound) / scale});
    }
    result.bucket.push_back({.cumulative_count = snapshot.count, .upper_bound = std::numeric_limits<double>::infinity()});
    result.sample_count = snapshot.count;
    result.sample_sum = static_cast<double>(snapshot.sum) / scale;
    return result;
}

prometheus::ClientMetric to_prometheus(const Labels& labels, const Metric& metric, double scale) {
    prometheus::ClientMetric result;
    for (const auto& [name, value] : labels) result.label.push_back({.name = name, .value = value});
    if (const auto* counter = std::get_if<std::unique_ptr<Counter>>(&metric)) {
        result.counter.value = static_cast<double>((*counter)->value());
    } else if (const auto* gauge = std::get_if<std::unique_ptr<Gauge>>(&metric)) {
        result.gauge.value = static_cast<double>((*gauge)->value());
    } else {
        result.histogram = to_prometheus(*std::get<std::unique_ptr<Histogram>>(metric), scale);
    }
    return result;
}

}  // namespace

struct Registry::Impl final : prometheus::Collectable {
    template <typename Kind>
    Kind& find_or_add(prometheus::MetricType type, const std::string& name, const std::string& help, Labels labels, double scale) {
        MC_CHECK(valid_name(name, true));
        for (const auto& [label, value] : labels) MC_CHECK(valid_name(label, false));
        std::sort(labels.begin(), labels.end());
        Lock lock(mutex);
        auto [found, added] = families.try_emplace(name);
        Family& family = found->second;
        if (added) {
            family.help = help;
            family.type = type;
            family.scale = scale;
        }
        MC_CHECK(family.type == type && family.scale == scale);
        Metric& metric = family.metrics.try_emplace(std::move(labels), std::unique_ptr<Kind>()).first->second;
        auto& owner = std::get<std::unique_ptr<Kind>>(metric);
        if (!owner) owner = std::make_unique<Kind>();
        return *owner;
    }

    std::vector<prometheus::MetricFamily> Collect() const override {
        std::vector<prometheus::MetricFamily> result;
        Lock lock(mutex);
        for (const auto& [name, family] : families) {
            prometheus::MetricFamily& out = result.emplace_back();
            out.name = name;
            out.help = family.help;
            out.type = family.type;
            for (const auto& [labels, metric] : family.metrics) out.metric.push_back(to_prometheus(labels, metric, family.scale));
        }
        return result;
    }

    mutable Mutex mutex;
    std::map<std::string, Family> families MC_GUARDED_BY(mutex);
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

Counter& Registry::counter(const std::string& name, const std::string& help, const Labels& labels) {
    return impl_->find_or_add<Counter>(prometheus::MetricType::Counter, name, help, labels, 1.0);
}

Gauge& Registry::gauge(const std::string& name, const std::string& help, const Labels& labels) {
    return impl_->find_or_add<Gauge>(prometheus::MetricType::Gauge, name, help, labels, 1.0);
}

Histogram& Registry::histogram(const std::string& name, const std::string& help, const Labels& labels, double scale) {
    return impl_->find_or_add<Histogram>(prometheus::MetricType::Histogram, name, help, labels, scale);
}

std::string Registry::to_prometheus_text() const {
    std::ostringstream text;
    text.imbue(std::locale::classic());
    text.exceptions(std::ios::badbit);  // a stream that finds no memory would else end the text there, and say nothing
    prometheus::TextSerializer().Serialize(text, impl_->Collect());
    return std::move(text).str();
}

}  // namespace mooncake::metrics
