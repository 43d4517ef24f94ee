// SPDX-License-Identifier: Apache-2.0
#include "store/client/http_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "net/http_client.h"

namespace mooncake::store {

namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ClientStatus, ShowsMetricsSummaryAndHealth) {
    MemberMetrics member("");
    ClientMetrics counters(member);
    counters.read_bytes.add(5);
    counters.get_latency.observe(3000);
    std::atomic<bool> well{true};
    const auto server = serve_status(
        {.metrics = [&] { return member.registry.to_prometheus_text(); }, .counters = &counters, .healthy = [&] { return well.load(); }},
        0);
    ASSERT_TRUE(server) << server.error().to_string();
    const auto ask = [&](const char* path) {
        const auto answer = net::http_request({.url = format_text("http://127.0.0.1:{}{}", (*server)->port(), path)}, Deadline::after(10s));
        EXPECT_TRUE(answer) << answer.error().to_string();
        return answer ? *answer : net::HttpResponse{.status = 0};
    };
    EXPECT_THAT(ask("/metrics").body, HasSubstr("mooncake_transfer_read_bytes"));
    EXPECT_THAT(ask("/metrics/summary").body, AllOf(HasSubstr("read 5 bytes"), HasSubstr("get: 1 calls")));
    EXPECT_EQ(ask("/health").status, 200);
    EXPECT_EQ(ask("/health").body, R"({"status":"healthy","code":0})");
    well = false;
    EXPECT_EQ(ask("/health").status, 503);
    EXPECT_EQ(ask("/health").body, R"({"status":"master_unreachable","code":2})");
}

TEST(ClientStatus, FailsOnATakenPort) {
    MemberMetrics member("");
    ClientMetrics counters(member);
    const StatusSources sources{.metrics = [] { return std::string(); }, .counters = &counters, .healthy = [] { return true; }};
    const auto first = serve_status(sources, 0);
    ASSERT_TRUE(first);
    EXPECT_FALSE(serve_status(sources, (*first)->port()));
}

}  // namespace

}  // namespace mooncake::store
