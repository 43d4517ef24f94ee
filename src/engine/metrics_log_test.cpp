// SPDX-License-Identifier: Apache-2.0
#include "engine/metrics_log.h"

#include <gtest/gtest.h>

namespace mooncake {
namespace {

TEST(MetricsLog, ReportsOnlyWhatMovedSinceTheLastLine) {
    metrics::Registry registry;
    PathMetrics path;
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        const metrics::Labels labels = {{"direction", direction == Direction::kRead ? "read" : "write"}};
        path.of(direction) = {.bytes = &registry.counter("bytes", "", labels),
                              .transfers = &registry.counter("transfers", "", labels),
                              .failures = &registry.counter("failures", "", labels),
                              .latency_ns = &registry.histogram("latency", "", labels)};
    }
    MetricsLog log({{.path = "tcp", .metrics = &path}});
    EXPECT_TRUE(log.lines(1s).empty());

    path.of(Direction::kWrite).bytes->add(2'000'000);
    path.of(Direction::kWrite).transfers->add();
    path.of(Direction::kWrite).latency_ns->observe(100'000);
    const auto first = log.lines(2s);
    ASSERT_EQ(first.size(), 1u);
    EXPECT_TRUE(first[0].starts_with("tcp write: 1.0 MB/s, 1 transfers, p50 ")) << first[0];
    EXPECT_TRUE(log.lines(2s).empty());

    path.of(Direction::kRead).transfers->add(3);
    for (int i = 0; i < 3; ++i) path.of(Direction::kRead).latency_ns->observe(7'000'000);
    const auto second = log.lines(1s);
    ASSERT_EQ(second.size(), 1u);
    EXPECT_TRUE(second[0].starts_with("tcp read: 0.0 MB/s, 3 transfers")) << second[0];
}

}  // namespace
}  // namespace mooncake
