// SPDX-License-Identifier: Apache-2.0
#include "metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

namespace mooncake::metrics {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(Counter, AddsUpWhatManyThreadsAdd) {
    Counter counter;
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 16; ++t) {
            threads.emplace_back([&counter] {
                for (int i = 0; i < 10'000; ++i) counter.add();
                counter.add(5);
            });
        }
    }
    EXPECT_EQ(counter.value(), 16u * 10'005u);
}

TEST(Gauge, GoesUpAndDown) {
    Gauge gauge;
    gauge.set(10);
    gauge.add(-25);
    EXPECT_EQ(gauge.value(), -15);
}

TEST(Histogram, KeepsSmallValuesApart) {
    Histogram histogram;
    for (uint64_t value = 1; value <= 8; ++value) histogram.observe(value);
    const auto snapshot = histogram.snapshot();
    ASSERT_EQ(snapshot.buckets.size(), 8u);
    for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(snapshot.buckets[i], std::make_pair(i + 1, uint64_t{1}));
}

TEST(Histogram, PutsAPowerOfTwoAtTheEndOfItsBucketAndTheNextValueInTheNext) {
    for (int power = 3; power < 64; ++power) {
        const uint64_t value = uint64_t{1} << power;
        Histogram histogram;
        histogram.observe(value);
        histogram.observe(value + 1);
        const auto snapshot = histogram.snapshot();
        ASSERT_EQ(snapshot.buckets.size(), 2u) << power;
        EXPECT_EQ(snapshot.buckets[0].first, value) << power;
    }
}

TEST(Histogram, PutsEveryValueIntoABucketAtMostAQuarterWide) {
    for (uint64_t value = 1; value < kMax / 3; value += 1 + value / 7) {
        Histogram histogram;
        histogram.observe(value);
        const uint64_t highest = histogram.snapshot().buckets.at(0).first;
        ASSERT_GE(highest, value);
        ASSERT_LE(highest - value, value / 4) << value;
    }
}

TEST(Histogram, TakesTheExtremes) {
    Histogram histogram;
    histogram.observe(0);
    histogram.observe(kMax);
    const auto snapshot = histogram.snapshot();
    EXPECT_EQ(snapshot.count, 2u);
    EXPECT_EQ(snapshot.buckets.front().first, 1u);
    EXPECT_EQ(snapshot.buckets.back().first, kMax);
    EXPECT_EQ(snapshot.quantile(1.0), kMax);
}

TEST(Histogram, EstimatesQuantilesWithinAQuarter) {
    Histogram histogram;
    for (uint64_t value = 1; value <= 100'000; ++value) histogram.observe(value);
    const auto snapshot = histogram.snapshot();
    for (const double q : {0.01, 0.1, 0.5, 0.9, 0.99, 0.999}) {
        const double exact = q * 100'000;
        EXPECT_NEAR(static_cast<double>(snapshot.quantile(q)), exact, exact * 0.25) << q;
    }
    EXPECT_EQ(snapshot.sum, 100'000ull * 100'001 / 2);
}

TEST(Histogram, AnswersNonsenseQuantilesLikeTheNearestSensibleOne) {
    Histogram histogram;
    EXPECT_EQ(histogram.snapshot().quantile(0.5), 0u);
    histogram.observe(100);
    const auto snapshot = histogram.snapshot();
    EXPECT_EQ(snapshot.quantile(7.0), snapshot.quantile(1.0));
    EXPECT_EQ(snapshot.quantile(-1.0), snapshot.quantile(0.0));
    EXPECT_EQ(snapshot.quantile(std::nan("")), snapshot.quantile(0.0));
}

TEST(Histogram, LosesNothingUnderThreads) {
    Histogram histogram;
    {
        std::vector<std::jthread> threads;
        for (int t = 0; t < 8; ++t)
            threads.emplace_back([&histogram] {
                for (uint64_t i = 0; i < 5'000; ++i) histogram.observe(i);
            });
    }
    const auto snapshot = histogram.snapshot();
    EXPECT_EQ(snapshot.count, 40'000u);
    EXPECT_EQ(snapshot.sum, 8ull * 5'000 * 4'999 / 2);
}

TEST(Registry, GivesTheSameObjectForTheSameNameAndLabelsInAnyOrder) {
    Registry registry;
    Counter& first = registry.counter("mc_bytes_total", "bytes", {{"path", "tcp"}, {"way", "read"}});
    EXPECT_EQ(&first, &registry.counter("mc_bytes_total", "bytes", {{"way", "read"}, {"path", "tcp"}}));
    EXPECT_NE(&first, &registry.counter("mc_bytes_total", "bytes", {{"way", "write"}, {"path", "tcp"}}));
}

TEST(Registry, WritesCountersAndGaugesAsPrometheusText) {
    Registry registry;
    registry.counter("mc_bytes_total", "bytes moved", {{"path", "tcp"}}).add(7);
    registry.gauge("mc_open", "open things").set(-2);
    const std::string text = registry.to_prometheus_text();
    EXPECT_THAT(text, HasSubstr("# HELP mc_bytes_total bytes moved\n# TYPE mc_bytes_total counter\nmc_bytes_total{path=\"tcp\"} 7\n"));
    EXPECT_THAT(text, HasSubstr("# TYPE mc_open gauge\nmc_open -2\n"));
}

TEST(Registry, WritesHistogramsCumulativelyWithScaledFixedBounds) {
    Registry registry;
    Histogram& histogram = registry.histogram("mc_wait_bytes", "sizes", {}, 256.0);
    histogram.observe(256);  // exactly on the first bound
    histogram.observe(257);
    histogram.observe(uint64_t{1} << 40);  // beyond the last
    const std::string text = registry.to_prometheus_text();
    EXPECT_THAT(text, HasSubstr("mc_wait_bytes_bucket{le=\"1\"} 1\n"));
    EXPECT_THAT(text, HasSubstr("mc_wait_bytes_bucket{le=\"2\"} 2\n"));
    EXPECT_THAT(text, HasSubstr("mc_wait_bytes_bucket{le=\"268435456\"} 2\n"));
    EXPECT_THAT(text, HasSubstr("mc_wait_bytes_bucket{le=\"+Inf\"} 3\n"));
    EXPECT_THAT(text, HasSubstr("mc_wait_bytes_count 3\n"));
}

TEST(Registry, EscapesLabelValuesThatCameFromOutside) {
    Registry registry;
    registry.counter("mc_peer_total", "x", {{"peer", "a\"b\\c\nd"}}).add();
    const std::string text = registry.to_prometheus_text();
    EXPECT_THAT(text, HasSubstr("mc_peer_total{peer=\"a\\\"b\\\\c\\nd\"} 1\n"));
    EXPECT_THAT(text, Not(HasSubstr("c\nd")));
}

TEST(Registry, IsSafeToUseAndWriteFromManyThreads) {
    Registry registry;
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&registry, t] {
            for (int i = 0; i < 200; ++i) {
                registry.counter("mc_total", "x", {{"i", std::to_string(i % 10)}}).add();
                registry.histogram("mc_time", "x", {{"t", std::to_string(t)}}).observe(static_cast<uint64_t>(i));
                if (i % 50 == 0) {
                    EXPECT_FALSE(registry.to_prometheus_text().empty());
                }
            }
        });
    }
    threads.clear();
    EXPECT_EQ(registry.counter("mc_total", "x", {{"i", "3"}}).value(), 80u);
}

TEST(RegistryDeathTest, AbortsOnANameThatPrometheusWouldRefuse) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    Registry registry;
    EXPECT_DEATH(registry.counter("bad name", "x"), "check failed");
    EXPECT_DEATH(registry.counter("good", "x", {{"bad:label", ""}}), "check failed");
}

TEST(RegistryDeathTest, AbortsOnOneNameForTwoKinds) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    Registry registry;
    registry.counter("mc_total", "x");
    EXPECT_DEATH(registry.gauge("mc_total", "x"), "check failed");
}

}  // namespace
}  // namespace mooncake::metrics
