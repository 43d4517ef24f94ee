// SPDX-License-Identifier: Apache-2.0
#include "store/service/master_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mooncake::store {

namespace {

using testing::HasSubstr;
using testing::Not;

std::string text_of(const MasterMetrics& metrics) { return metrics.registry().to_prometheus_text(); }

TEST(MasterMetrics, CountsOneKeyAsACallAndSeveralAsABatch) {
    MasterMetrics metrics;
    metrics.exist({.results = {1}});
    metrics.exist({.results = {static_cast<int32_t>(StoreCode::kInvalidParams)}});
    metrics.exist({.results = {1, 0, -600}});
    const std::string text = text_of(metrics);
    EXPECT_THAT(text, HasSubstr("\nmaster_exist_key_requests_total 2\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_exist_key_failures_total 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_batch_exist_key_requests_total 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_batch_exist_key_items_total 3\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_batch_exist_key_failed_items_total 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_batch_exist_key_partial_successes_total 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_batch_exist_key_failures_total 0\n"));
    EXPECT_EQ(metrics.total(CountedCall::kExistKey), 5u);
    EXPECT_EQ(metrics.lookups().keys, 5u);
    EXPECT_EQ(metrics.lookups().found, 2u);
}

TEST(MasterMetrics, CountsHitsAndTheirBytes) {
    MasterMetrics metrics;
    metrics.get_replicas({.items = {{.length = 10}, {.code = StoreCode::kObjectNotFound}, {.length = 30}}});
    EXPECT_THAT(text_of(metrics), HasSubstr("\ntotal_get_nums_ 3\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nvalid_get_nums_ 2\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmem_cache_hit_nums_ 2\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmem_cache_hit_bytes_total 40\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_batch_get_replica_list_failed_items_total 1\n"));
}

TEST(MasterMetrics, CountsValuesThatGotNoOrTooLittleMemory) {
    MasterMetrics metrics;
    const PutItem wanted[] = {{.key = "a", .length = 100}, {.key = "b", .length = 100}, {.key = "c", .length = 100}};
    metrics.put_start({.config = {.replica_num = 2}, .items = wanted},
                      {.items = {{.replica_count = 1}, {.replica_count = 2}, {.code = StoreCode::kNoAvailableHandle}}});
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_put_start_alloc_failures_total 1\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_put_start_partial_allocations_total 1\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_value_size_bytes_count 2\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_batch_put_start_partial_successes_total 1\n"));
}

TEST(MasterMetrics, CountsWhatTenantsAreRefused) {
    MasterMetrics metrics;
    const PutItem wanted[] = {{.key = "a", .length = 1}};
    metrics.put_start({.tenant = "red", .items = wanted}, {.items = {{.code = StoreCode::kTenantQuotaExceeded}}});
    metrics.put_start({.tenant = "stranger", .items = wanted}, {.items = {{.code = StoreCode::kTenantNotRegistered}}});
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmooncake_tenant_quota_reject_total{reason=\"quota_exceeded\",tenant_id=\"red\"} 1\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmooncake_tenant_quota_reject_total{reason=\"not_registered\",tenant_id=\"\"} 1\n"));
    EXPECT_THAT(text_of(metrics), Not(HasSubstr("stranger")));
}

TEST(MasterMetrics, CountsABatchWithoutAnySuccessAsFailed) {
    MasterMetrics metrics;
    metrics.put_end({.codes = {StoreCode::kInvalidWrite, StoreCode::kIllegalClient}});
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_batch_put_end_failures_total 1\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_batch_put_end_partial_successes_total 0\n"));
    metrics.replica_clear({.codes = {StoreCode::kOk}});  // has no form for one key
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_batch_replica_clear_items_total 1\n"));
    EXPECT_THAT(text_of(metrics), Not(HasSubstr("master_replica_clear")));
}

TEST(MasterMetrics, CountsEvictionRunsAndOtherCalls) {
    MasterMetrics metrics;
    metrics.evicted({});
    metrics.evicted({.over = true});
    metrics.evicted({.entries = 3, .bytes = 300, .over = true});
    metrics.call(CountedCall::kPing, true);
    metrics.remount({.segments = {{.code = StoreCode::kOk}, {.code = StoreCode::kInvalidParams}}});
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_attempted_evictions_total 2\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_successful_evictions_total 1\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_ping_requests_total 1\n"));
    EXPECT_THAT(text_of(metrics), HasSubstr("\nmaster_remount_segment_failures_total 1\n"));
}

}  // namespace

}  // namespace mooncake::store
