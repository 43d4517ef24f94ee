// SPDX-License-Identifier: Apache-2.0
#include "store/admin/http_admin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "net/http_client.h"
#include "net/socket.h"
#include "store/admin/metrics_text.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr uint64_t kMiB = 1 << 20;

/// A master with nodes and values, and its admin server.
class AdminTest : public testing::Test {
protected:
    void SetUp() override { serve({}); }
    void serve(MasterOptions options, const std::string& quota_file = {}) {
        server_.reset();
        options.lease_ttl = 1h;
        master_.emplace(options, nullptr, nullptr);
        admin_.emplace(*master_, metrics_,
                       AdminOptions{.address = "10.0.0.1:50051", .quota_file = quota_file, .settle = [this] { ++settled_; }});
        ASSERT_TRUE(admin_->load_quota_file());
        auto made = net::HttpServer::create({.host = "127.0.0.1"});
        ASSERT_TRUE(made);
        server_ = std::move(*made);
        admin_->attach(*server_);
        server_->start();
    }

    SegmentSpec add_node(uint64_t number, uint64_t size = kMiB) {
        SegmentSpec spec{.id = {3, number},
                         .name = format_text("node{}:1", number),
                         .base = 0x10000000 * number,
                         .size = size,
                         .endpoint = format_text("e{}", number),
                         .protocol = "tcp"};
        master_->run([&](Transaction& t, Time now) {
            remount(t, {.client = {2, number}, .segments = {}}, now);
            return mount_segment(t, {.client = {2, number}, .segment = spec}, now);
        });
        return spec;
    }
    StoreCode put(std::string_view key, uint64_t length = 1000, std::string_view tenant = "default", bool end = true) {
        return master_->run([&](Transaction& t, Time now) {
            const PutItem item{.key = key, .length = length};
            const PutStartReply reply = put_start(t, {.client = {2, 1}, .tenant = tenant, .items = {&item, 1}}, now);
            if (reply.items[0].code != StoreCode::kOk || !end) return reply.items[0].code;
            const PutEndItem done{.key = key, .generation = reply.items[0].generation};
            return put_end(t, {.client = {2, 1}, .tenant = tenant, .items = {&done, 1}}, now).codes[0];
        });
    }
    bool leased(std::string_view key) {
        return master_->look([&](const MasterState& state, Time now) {
            return !state.objects()[state.objects().find(TenantTable::kDefault, key)].free_of_leases(now);
        });
    }

    net::HttpResponse ask(const std::string& target, const std::string& method = "GET", const std::string& body = {}) {
        const auto answer = net::http_request(
            {.method = method, .url = format_text("http://127.0.0.1:{}{}", server_->port(), target), .body = body}, Deadline::after(20s));
        EXPECT_TRUE(answer) << answer.error().message();
        return answer ? *answer : net::HttpResponse{.status = 0};
    }
    json ask_json(const std::string& target, int status = 200, const std::string& method = "GET", const std::string& body = {}) {
        const net::HttpResponse answer = ask(target, method, body);
        EXPECT_EQ(answer.status, status) << answer.body;
        EXPECT_THAT(answer.content_type, StartsWith("application/json"));
        return json::parse(answer.body, nullptr, false);
    }

    MasterMetrics metrics_;
    std::atomic<int> settled_ = 0;
    std::optional<LockedMaster> master_;
    std::optional<AdminService> admin_;
    std::unique_ptr<net::HttpServer> server_;
};

TEST_F(AdminTest, TellsThatItServes) {
    EXPECT_EQ(ask_json("/health"), json::parse(R"({"status": "ok", "role": "leader", "ha_state": "serving", "service_ready": true,
                                                   "leader_address": "10.0.0.1:50051", "view_version": null})"));
    EXPECT_EQ(ask("/role").body, "leader");
    EXPECT_EQ(ask("/ha_status").body, "serving");
    EXPECT_EQ(ask_json("/leader"), json::parse(R"({"present": true, "leader_address": "10.0.0.1:50051", "view_version": null})"));
    EXPECT_EQ(ask_json("/kv_events/status")["enabled"], false);
}

TEST_F(AdminTest, TellsWhereAKeyIsAndLeasesIt) {
    add_node(1);
    ASSERT_EQ(put("a key/with=odd&signs %,\xc3\xa4"), StoreCode::kOk);
    const json answer = ask_json("/query_key?key=a+key%2Fwith%3Dodd%26signs%20%25%2C%C3%A4");
    EXPECT_EQ(answer, json::parse(R"({"success": true, "data": [{"size_": 1000, "buffer_address_": 268435456, "protocol_": "tcp",
                                      "transport_endpoint_": "node1:1"}]})"));
    EXPECT_TRUE(leased("a key/with=odd&signs %,\xc3\xa4"));
    EXPECT_EQ(metrics_.total(CountedCall::kGetReplicaList), 1u);
    EXPECT_EQ(metrics_.lookups().found, 1u);
    EXPECT_THAT(ask("/metrics").body, HasSubstr("\nmem_cache_hit_bytes_total 1000\n"));
}

TEST_F(AdminTest, SaysWhyAKeyCannotBeFound) {
    add_node(1);
    ASSERT_EQ(put("unfinished", 1000, "default", false), StoreCode::kOk);
    EXPECT_EQ(ask_json("/query_key?key=none", 404),
              json::parse(R"({"success": false, "error_code": -704, "error_message": "OBJECT_NOT_FOUND"})"));
    EXPECT_EQ(ask_json("/query_key?key=unfinished", 404)["error_code"], -703);
    EXPECT_EQ(ask_json("/query_key", 400)["error_code"], -600);
    EXPECT_EQ(ask_json("/query_key?key=", 400)["error_code"], -600);
    EXPECT_EQ(ask("/query_key?key=%zz").status, 400);
}

TEST_F(AdminTest, LooksAtManyKeysWithoutLeasingThem) {
    add_node(1);
    put("a");
    put("b,c");
    const json answer = ask_json("/batch_query_keys?keys=a,none&key=b%2Cc");
    EXPECT_EQ(answer["success"], true);
    EXPECT_EQ(answer["data"]["a"]["ok"], true);
    EXPECT_EQ(answer["data"]["a"]["values"][0]["size_"], 1000);
    EXPECT_EQ(answer["data"]["none"], json::parse(R"({"ok": false, "error": "OBJECT_NOT_FOUND", "values": null, "disk_values": null,
                                                               "local_disk_values": null, "nof_values": null})"));
    EXPECT_EQ(answer["data"]["a"]["error"], nullptr);
    EXPECT_EQ(answer["data"]["b,c"]["ok"], true);
    EXPECT_FALSE(leased("a"));
    EXPECT_EQ(ask_json("/batch_query_keys?keys=", 400)["error_code"], -600);
    EXPECT_EQ(ask_json("/batch_query_keys", 400)["error_code"], -600);
}

TEST_F(AdminTest, ListsAllKeysHoweverMany) {
    add_node(1, 64 * kMiB);
    size_t length = 0;
    constexpr int kKeys = 5000;
    for (int i = 0; i < kKeys; ++i) {
        ASSERT_EQ(put(format_text("key-{}", i), 64), StoreCode::kOk);
        length += format_text("key-{}\n", i).size();
    }
    put("unfinished", 64, "default", false);
    const std::string keys = ask("/get_all_keys").body;
    EXPECT_EQ(keys.size(), length);
    EXPECT_THAT(keys, AllOf(HasSubstr("key-0\n"), HasSubstr("key-4999\n"), Not(HasSubstr("unfinished"))));
}

TEST_F(AdminTest, ListsNothingOfAnEmptyPool) {
    EXPECT_EQ(ask("/get_all_keys").body, "");
    EXPECT_EQ(ask("/get_all_segments").body, "");
    EXPECT_EQ(ask_json("/get_segments_detail"), json::parse(R"({"total_segments": 0, "segments": []})"));
}

TEST_F(AdminTest, DescribesSegments) {
    add_node(1);
    add_node(2, 2 * kMiB);
    put("a", 1024);
    EXPECT_EQ(ask("/get_all_segments").body, "node1:1\nnode2:1\n");
    const json detail = ask_json("/get_segments_detail");
    EXPECT_EQ(detail["total_segments"], 2);
    const json& second = detail["segments"][1];
    EXPECT_EQ(second["segment_name"], "node2:1");
    EXPECT_EQ(second["segment_id"], "3-2");
    EXPECT_EQ(second["client_id"], "2-2");
    EXPECT_EQ(second["base_address"], "0x20000000");
    EXPECT_EQ(second["size_bytes"], 2 * kMiB);
    EXPECT_EQ(second["size_human"], "2.00 MB");
    EXPECT_EQ(second["te_endpoint"], "e2");
    EXPECT_EQ(second["protocol"], "tcp");
    EXPECT_EQ(second["status"], "OK");
    EXPECT_EQ(second["allocator_capacity_bytes"], 2 * kMiB);
    const uint64_t used = detail["segments"][0]["allocator_used_bytes"].get<uint64_t>() + second["allocator_used_bytes"].get<uint64_t>();
    EXPECT_EQ(used, 1024u);
    EXPECT_NEAR(second["allocator_usage_percent"].get<double>(), 100.0 * second["allocator_used_bytes"].get<double>() / (2 * kMiB), 1e-9);
}

TEST_F(AdminTest, DescribesOneSegment) {
    add_node(1);
    put("a", 1024);
    EXPECT_EQ(ask("/query_segment?segment=node1:1").body, "node1:1\nUsed(bytes): 1024\nCapacity(bytes) : 1048576\n");
    EXPECT_EQ(
        ask_json("/api/v1/segments/status?segment=node1%3A1"),
        json::parse(R"({"success": true, "error_code": 0, "error_message": "", "segment": "node1:1", "status": 1, "status_name": "OK"})"));
    for (const char* path : {"/query_segment", "/api/v1/segments/status"}) {
        EXPECT_EQ(ask_json(format_text("{}?segment=none", path), 404)["error_code"], -101);
        EXPECT_EQ(ask_json(path, 400)["error_code"], -600);
    }
}

TEST_F(AdminTest, RemovesAllThatIsNotLeased) {
    add_node(1);
    for (int i = 0; i < 3000; ++i) ASSERT_EQ(put(std::to_string(i), 64), StoreCode::kOk);
    ask("/query_key?key=7");
    EXPECT_EQ(ask_json("/api/v1/remove_all", 200, "POST"), json::parse(R"({"success": true, "removed_count": 2999})"));
    EXPECT_EQ(settled_, 1) << "who hears the answer can count on it";
    EXPECT_EQ(ask("/get_all_keys").body, "7\n");
    EXPECT_EQ(ask_json("/api/v1/remove_all?force=maybe", 400, "POST")["error_code"], -600);
    EXPECT_EQ(ask_json("/api/v1/remove_all?force=true", 200, "POST")["removed_count"], 1);
    EXPECT_EQ(ask("/get_all_keys").body, "");
    EXPECT_EQ(ask("/api/v1/remove_all").status, 405) << "only POST removes";
}

TEST_F(AdminTest, KnowsNoTenantsThatAreNotRegistered) {
    MasterOptions options;
    options.tenants = true;
    serve(options);
    EXPECT_EQ(ask_json("/api/v1/remove_all?tenant_id=nobody", 200, "POST"), json::parse(R"({"success": true, "removed_count": 0})"));
    EXPECT_EQ(ask_json("/get_all_keys?tenant_id=nobody", 404)["error_code"], -1701);
    EXPECT_EQ(ask_json("/query_key?key=a&tenant_id=nobody", 404)["success"], false);
}

TEST_F(AdminTest, ShowsCountersAndStateAsMetrics) {
    add_node(1);
    put("a", 1000);
    metrics_.call(CountedCall::kPing, true);
    const net::HttpResponse answer = ask("/metrics");
    EXPECT_THAT(answer.content_type, StartsWith("text/plain; version=0.0.4"));
    for (const char* line :
         {"\nmaster_ping_requests_total 1\n", "\nmaster_allocated_bytes 1024\n", "\nmaster_total_capacity_bytes 1048576\n",
          "\nmaster_key_count 1\n", "\nmaster_active_clients 1\n", "\nsegment_allocated_bytes{segment=\"node1:1\"} 1024\n",
          "\nsegment_total_capacity_bytes{segment=\"node1:1\"} 1048576\n", "\nmaster_evicted_key_count 0\n"})
        EXPECT_THAT(answer.body, HasSubstr(line));
    EXPECT_THAT(answer.body, Not(HasSubstr("mooncake_tenant")));
    EXPECT_THAT(ask("/metrics/summary").body, AllOf(HasSubstr("1.00 KB of 1.00 MB"), HasSubstr("1 keys")));
}

TEST_F(AdminTest, CountsAValueThatIsBeingReplacedAmongThoseInMemory) {
    add_node(1);
    put("a");
    put("unfinished", 1000, "default", false);
    const PutItem item{.key = "a", .length = 1000};
    const StoreCode started = master_->run([&](Transaction& t, Time now) {
        return upsert_start(t, {.client = {2, 1}, .tenant = "default", .items = {&item, 1}}, now).items[0].code;
    });
    ASSERT_EQ(started, StoreCode::kOk);
    EXPECT_THAT(ask("/metrics").body, AllOf(HasSubstr("\nmaster_writes_in_progress 2\n"), HasSubstr("\nmem_cache_nums_ 1\n")));
}

/// All that users of such masters know, but for parts that are not built: snapshots, promotion, heartbeats of NVMe-oF, high availability.
constexpr const char* kSingleMetrics[] = {"master_allocated_bytes",
                                          "master_total_capacity_bytes",
                                          "segment_allocated_bytes",
                                          "segment_total_capacity_bytes",
                                          "master_nof_allocated_bytes",
                                          "master_total_nof_capacity_bytes",
                                          "master_allocated_file_size_bytes",
                                          "master_total_file_capacity_bytes",
                                          "master_key_count",
                                          "master_soft_pin_key_count",
                                          "master_active_clients",
                                          "master_value_size_bytes",
                                          "mem_cache_hit_nums_",
                                          "file_cache_hit_nums_",
                                          "mem_cache_hit_bytes_total",
                                          "file_cache_hit_bytes_total",
                                          "mem_cache_nums_",
                                          "file_cache_nums_",
                                          "master_put_start_discard_cnt",
                                          "master_put_start_release_cnt",
                                          "master_put_start_discarded_staging_size",
                                          "master_put_start_alloc_failures_total",
                                          "master_put_start_partial_allocations_total",
                                          "total_get_nums_",
                                          "valid_get_nums_",
                                          "master_promotion_in_flight",
                                          "master_promotion_admitted_total",
                                          "master_promotion_completed_total",
                                          "master_promotion_completed_bytes_total",
                                          "master_promotion_failed_total",
                                          "master_promotion_cancelled_total",
                                          "master_promotion_expired_total",
                                          "master_promotion_rejected_cap_total",
                                          "master_promotion_rejected_frequency_total",
                                          "master_promotion_rejected_watermark_total",
                                          "master_promotion_candidate_recorded_total",
                                          "master_promotion_candidate_admitted_total",
                                          "master_promotion_candidate_admission_rejected_total",
                                          "master_promotion_candidate_dropped_limit_total",
                                          "master_promotion_candidate_expired_evaluated_total",
                                          "master_promotion_candidate_expired_unevaluated_total",
                                          "ha_oplog_last_sequence_id",
                                          "ha_oplog_applied_sequence_id",
                                          "ha_oplog_standby_lag",
                                          "ha_oplog_pending_entries",
                                          "ha_pending_mutation_queue_size",
                                          "ha_standby_state",
                                          "mooncake_tenant_quota_requested_bytes",
                                          "mooncake_tenant_quota_effective_bytes",
                                          "mooncake_tenant_quota_charged_bytes",
                                          "mooncake_tenant_quota_admission_closed",
                                          "mooncake_tenant_quota_over_quota",
                                          "mooncake_tenant_quota_explicit_policy",
                                          "mooncake_tenant_quota_reject_total",
                                          "mooncake_tenant_evict_bytes_total",
                                          "mooncake_tenant_quota_allocatable_capacity_bytes",
                                          "mooncake_tenant_quota_requested_bytes_sum",
                                          "mooncake_tenant_quota_effective_bytes_sum"};

std::vector<std::string> known_metrics() {
    std::vector<std::string> names(std::begin(kSingleMetrics), std::end(kSingleMetrics));
    for (const char* call : {"put_start",
                             "put_end",
                             "put_revoke",
                             "get_replica_list",
                             "get_replica_list_by_regex",
                             "exist_key",
                             "remove",
                             "remove_by_regex",
                             "remove_all",
                             "mount_segment",
                             "unmount_segment",
                             "remount_segment",
                             "ping",
                             "copy_start",
                             "copy_end",
                             "copy_revoke",
                             "move_start",
                             "move_end",
                             "move_revoke",
                             "evict_disk_replica",
                             "create_copy_task",
                             "create_move_task",
                             "query_task",
                             "fetch_tasks",
                             "update_task",
                             "mount_nof_segment",
                             "unmount_nof_segment",
                             "remount_nof_segment"})
        for (const char* what : {"requests", "failures"}) names.push_back(format_text("master_{}_{}_total", call, what));
    for (const char* call : {"exist_key", "get_replica_list", "put_start", "put_end", "put_revoke", "query_ip", "replica_clear"})
        for (const char* what : {"requests", "failures", "partial_successes", "items", "failed_items"})
            names.push_back(format_text("master_batch_{}_{}_total", call, what));
    for (const char* kind : {"total", "mem", "nof"})
        for (const char* how : {"attempted", "successful"}) names.push_back(format_text("master_{}_evictions_{}", how, kind));
    for (const char* suffix : {"", "_mem", "_nof"})
        for (const char* what : {"key_count", "size_bytes"}) names.push_back(format_text("master_evicted_{}{}", what, suffix));
    return names;
}

TEST_F(AdminTest, PrintsEveryMetricOnce) {
    MasterOptions options;
    options.tenants = true;
    serve(options);
    add_node(1);
    EXPECT_EQ(ask("/api/v1/tenant_quotas?tenant_id=red", "PUT", R"({"requested_quota_bytes": 1000})").status, 200);
    const PutItem wanted[] = {{.key = "a", .length = 1}};
    metrics_.put_start({.tenant = "red", .items = wanted}, {.items = {{.code = StoreCode::kTenantQuotaExceeded}}});
    const std::string text = "\n" + ask("/metrics").body;
    for (const std::string& name : known_metrics()) {
        const std::string type = format_text("\n# TYPE {} ", name);
        const size_t first = text.find(type);
        EXPECT_NE(first, std::string::npos) << name << " is missing";
        EXPECT_EQ(first, text.rfind(type)) << name << " is there twice";
    }
}

TEST_F(AdminTest, ShowsWhatEachTenantMayUseAndUses) {
    MasterOptions options;
    options.tenants = true;
    serve(options);
    add_node(1);
    EXPECT_EQ(ask("/api/v1/tenant_quotas?tenant_id=red", "PUT", R"({"requested_quota_bytes": 4096})").status, 200);
    EXPECT_EQ(ask("/api/v1/tenant_quotas?tenant_id=blue", "PUT", R"({"requested_quota_bytes": 8192})").status, 200);
    EXPECT_EQ(put("mine", 2000, "blue"), StoreCode::kOk);
    for (const char* key : {"a", "b", "c", "d", "e"}) EXPECT_EQ(put(key, 1000, "red"), StoreCode::kOk);
    EXPECT_EQ(put("too large", 5000, "red"), StoreCode::kTenantQuotaExceeded);
    const auto shows = [&](std::string_view metric, std::string_view tenant, uint64_t value) {
        const std::string label = tenant.empty() ? "" : format_text("{{tenant_id=\"{}\"}}", tenant);
        EXPECT_THAT(ask("/metrics").body, HasSubstr(format_text("\nmooncake_tenant_{}{} {}\n", metric, label, value)));
    };
    for (const auto& [tenant, quota] : std::map<std::string, uint64_t>{{"red", 4096}, {"blue", 8192}}) {
        shows("quota_requested_bytes", tenant, quota);
        shows("quota_effective_bytes", tenant, quota);
        shows("quota_admission_closed", tenant, 0);
        shows("quota_over_quota", tenant, 0);
        shows("quota_explicit_policy", tenant, 1);
    }
    shows("quota_charged_bytes", "red", 4096);
    shows("quota_charged_bytes", "blue", 2048);
    shows("evict_bytes_total", "red", 1024);
    shows("evict_bytes_total", "blue", 0);
    shows("quota_requested_bytes_sum", "", 12'288);
    shows("quota_effective_bytes_sum", "", 12'288);
    shows("quota_allocatable_capacity_bytes", "", kMiB);
    // More than there is: everybody gets a share of it.
    EXPECT_EQ(ask("/api/v1/tenant_quotas?tenant_id=blue", "PUT", R"({"requested_quota_bytes": 1048576})").status, 200);
    shows("quota_requested_bytes", "blue", kMiB);
    shows("quota_effective_bytes", "blue", 1'044'496);
    shows("quota_effective_bytes", "red", 4080);
    shows("quota_over_quota", "red", 1);
    shows("quota_over_quota", "blue", 0);
    shows("quota_effective_bytes_sum", "", kMiB);
}

TEST_F(AdminTest, CountsSoftPinsAndCopies) {
    add_node(1);
    put("a");
    add_node(2);
    master_->run([&](Transaction& t, Time now) {
        const PutItem item{.key = "pinned", .length = 10};
        const WriteConfig config{.soft_pin = SoftPinAction::kEnable, .soft_pin_ttl = 60s};
        put_start(t, {.client = {2, 1}, .config = config, .items = {&item, 1}}, now);
        const PutEndItem done{.key = "pinned"};
        put_end(t, {.client = {2, 1}, .items = {&done, 1}}, now);
        const TaskReply task = create_task(t, {.type = TaskType::kCopy, .key = "a", .targets = {"node2:1"}}, now);
        dispatch_tasks(t, now);
        return end_task(t, {.client = {2, 1}, .task = task.task}, now);
    });
    std::string text = ask("/metrics").body;
    EXPECT_THAT(text, HasSubstr("\nmaster_soft_pin_key_count 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_copy_start_requests_total 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_copy_end_requests_total 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_fetch_tasks_requests_total 1\n"));
    EXPECT_THAT(text, HasSubstr("\nmaster_move_start_requests_total 0\n"));
    ask("/api/v1/remove_all?force=true", "POST");
    EXPECT_THAT(ask("/metrics").body, HasSubstr("\nmaster_soft_pin_key_count 0\n"));
}

TEST_F(AdminTest, ForgetsTheMetricsOfASegmentThatIsGone) {
    const SegmentSpec spec = add_node(1);
    EXPECT_THAT(ask("/metrics").body, HasSubstr("node1:1"));
    master_->run([&](Transaction& t, Time now) { return unmount_segment(t, {.client = {2, 1}, .segment = spec.id}, now); });
    EXPECT_THAT(ask("/metrics").body, Not(HasSubstr("node1:1")));
}

TEST_F(AdminTest, ShowsADashboard) {
    add_node(1);
    put("a");
    const net::HttpResponse page = ask("/");
    EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
    EXPECT_THAT(page.body, AllOf(StartsWith("<!DOCTYPE html>"), HasSubstr("api/v1/overview"), HasSubstr("</html>")));
    EXPECT_THAT(page.body, Not(HasSubstr("src="))) << "nothing is loaded from elsewhere";
    const json overview = ask_json("/api/v1/overview");
    EXPECT_EQ(overview["keys"], 1);
    EXPECT_EQ(overview["segments"].size(), 1u);
    EXPECT_EQ(overview["segments"][0]["name"], "node1:1");
    EXPECT_EQ(overview["clients"].size(), 1u);
    EXPECT_EQ(overview["clients"][0]["lent_bytes"], kMiB);
}

TEST_F(AdminTest, AnswersHeadAndUnknownPaths) {
    EXPECT_EQ(ask("/nothing/here").status, 404);
    EXPECT_EQ(ask("/metrics", "HEAD").status, 200);
    EXPECT_EQ(ask("/metrics", "DELETE").status, 405);
}

TEST_F(AdminTest, AnswersWhileTheMasterWorks) {
    add_node(1, 4 * kMiB);
    std::atomic<bool> asked{false};
    std::thread worker([&] {
        for (int i = 0; !asked; ++i) {
            put(format_text("key-{}", i % 3000), 1000);
            if (i % 100 == 0) add_node(2 + static_cast<uint64_t>(i / 100 % 20));
            metrics_.exist({.results = {1, 0}});
        }
    });
    for (int i = 0; i < 20; ++i) {
        for (const char* path : {"/metrics", "/metrics/summary", "/get_all_keys", "/get_all_segments", "/get_segments_detail",
                                 "/api/v1/overview", "/batch_query_keys?keys=key-1,key-2"})
            EXPECT_EQ(ask(path).status, 200) << path;
        EXPECT_EQ(ask("/api/v1/remove_all?force=1", "POST").status, 200);
    }
    asked = true;
    worker.join();
}

TEST_F(AdminTest, OutlivesGarbage) {
    for (const std::string& garbage :
         {std::string("\x16\x03\x01\x02\0\x01", 6), std::string("GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n"), std::string(100000, 'A'),
          std::string("POST /api/v1/remove_all?force HTTP/9.9\r\n\r\n"), std::string(5000, '\0')}) {
        auto connected = net::connect_to("127.0.0.1", server_->port(), Deadline::after(10s));
        ASSERT_TRUE(connected);
        (void)::send(connected->fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    }
    EXPECT_EQ(ask("/health").status, 200);
}

TEST(HumanBytes, ReadWell) {
    EXPECT_EQ(human_bytes(0), "0 B");
    EXPECT_EQ(human_bytes(1023), "1023 B");
    EXPECT_EQ(human_bytes(1536), "1.50 KB");
    EXPECT_EQ(human_bytes(uint64_t{4} << 30), "4.00 GB");
    EXPECT_EQ(human_bytes(UINT64_MAX), "16.00 EB");
}

}  // namespace

}  // namespace mooncake::store
