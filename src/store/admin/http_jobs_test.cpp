// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "store/admin/config_quotas.h"
#include "store/admin/http_admin.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

namespace {

using nlohmann::json;
using testing::HasSubstr;

/// Answers what the admin service is asked, without sockets.
class Routes final : public net::HttpServer {
public:
    void handle(const std::string& method, const std::string& path, net::HttpHandler handler) override {
        handlers_[method + path] = std::move(handler);
    }
    void start() override {}
    uint16_t port() const noexcept override { return 0; }
    void stop() override {}
    net::HttpResponse ask(net::HttpServerRequest request) { return handlers_.at(request.method + request.path)(request); }

private:
    std::map<std::string, net::HttpHandler> handlers_;
};

class AdminJobsTest : public testing::Test {
protected:
    void SetUp() override {
        char path[] = "/tmp/mooncake-admin-XXXXXX";
        ASSERT_NE(::mkdtemp(path), nullptr);
        folder_ = path;
        serve(false);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    void serve(bool tenants) {
        MasterOptions options;
        options.tenants = tenants;
        master_.emplace(options, nullptr, nullptr);
        admin_.emplace(*master_, metrics_, AdminOptions{.quota_file = file()});
        admin_->attach(routes_);
        const Result<> loaded = admin_->load_quota_file();
        ASSERT_TRUE(loaded) << loaded.error().to_string();
    }
    std::string file() const { return (folder_ / "quotas.yaml").string(); }

    void add_node(uint64_t number) {
        master_->run([&](Transaction& t, Time now) {
            remount(t, {.client = {2, number}, .segments = {}}, now);
            const SegmentSpec spec{.id = {3, number},
                                   .name = format_text("node{}:1", number),
                                   .base = number << 32,
                                   .size = 1 << 20,
                                   .endpoint = "e",
                                   .protocol = "tcp"};
            return mount_segment(t, {.client = {2, number}, .segment = spec}, now);
        });
    }
    StoreCode put(std::string_view key, std::string_view tenant, uint64_t length = 1000) {
        return master_->run([&](Transaction& t, Time now) {
            const PutItem item{.key = key, .length = length};
            const PutStartReply reply = put_start(t, {.client = {2, 1}, .tenant = tenant, .items = {&item, 1}}, now);
            if (reply.items[0].code != StoreCode::kOk) return reply.items[0].code;
            const PutEndItem done{.key = key, .generation = reply.items[0].generation};
            return put_end(t, {.client = {2, 1}, .tenant = tenant, .items = {&done, 1}}, now).codes[0];
        });
    }
    json ask(int status, const std::string& method, const std::string& path, net::HttpParameters parameters = {},
             const std::string& body = {}) {
        const net::HttpResponse answer = routes_.ask({.method = method, .path = path, .parameters = std::move(parameters), .body = body});
        EXPECT_EQ(answer.status, status) << answer.body;
        return json::parse(answer.body, nullptr, false);
    }
    json put_quota(int status, const std::string& tenant, const std::string& body) {
        return ask(status, "PUT", "/api/v1/tenant_quotas", {{"tenant_id", tenant}}, body);
    }

    std::filesystem::path folder_;
    MasterMetrics metrics_;
    Routes routes_;
    std::optional<LockedMaster> master_;
    std::optional<AdminService> admin_;
};

TEST_F(AdminJobsTest, QuotasNeedTenants) {
    EXPECT_EQ(ask(409, "GET", "/api/v1/tenant_quotas")["error_code"], -1011);
    EXPECT_EQ(put_quota(409, "a", R"({"requested_quota_bytes": 5})")["error_code"], -1011);
    EXPECT_EQ(ask(409, "DELETE", "/api/v1/tenant_quotas", {{"tenant_id", "a"}})["error_code"], -1011);
}

TEST_F(AdminJobsTest, SetsShowsAndKeepsQuotas) {
    serve(true);
    add_node(1);
    EXPECT_EQ(put("k", "red"), StoreCode::kTenantNotRegistered);
    const json set = put_quota(200, "red", R"({"requested_quota_bytes": 500000})");
    EXPECT_EQ(set["data"],
              json::parse(R"({"tenant_id": "red", "requested_quota_bytes": 500000, "effective_quota_bytes": 500000, "charged_bytes": 0,
                                           "admission_closed": false, "over_quota": false, "has_explicit_policy": true})"));
    EXPECT_EQ(put("k", "red"), StoreCode::kOk);
    EXPECT_EQ(ask(200, "GET", "/api/v1/tenant_quotas", {{"tenant_id", "red"}})["data"]["charged_bytes"], 1024);
    put_quota(200, "blue", R"({"requested_quota_bytes": 1000})");
    EXPECT_EQ(ask(200, "GET", "/api/v1/tenant_quotas")["data"].size(), 2u);
    EXPECT_EQ(ask(200, "GET", "/api/v1/tenant_quotas", {{"tenant_id", ""}})["data"].size(), 2u);
    EXPECT_EQ(*load_quotas(file()), (Quotas{{"blue", 1000}, {"red", 500000}}));
    EXPECT_EQ(ask(404, "GET", "/api/v1/tenant_quotas", {{"tenant_id", "none"}})["error_code"], -1701);
    EXPECT_THAT(admin_->metrics_text(), HasSubstr("mooncake_tenant_quota_charged_bytes{tenant_id=\"red\"} 1024"));
}

TEST_F(AdminJobsTest, ForgetsAQuotaOnlyOfAnEmptyTenant) {
    serve(true);
    add_node(1);
    put_quota(200, "red", R"({"requested_quota_bytes": 500000})");
    ASSERT_EQ(put("k", "red"), StoreCode::kOk);
    const net::HttpParameters red = {{"tenant_id", "red"}};
    EXPECT_EQ(ask(409, "DELETE", "/api/v1/tenant_quotas", red)["error_code"], -1702);
    EXPECT_EQ(ask(200, "POST", "/api/v1/remove_all", {{"tenant_id", "red"}, {"force", "true"}})["removed_count"], 1);
    EXPECT_EQ(ask(200, "DELETE", "/api/v1/tenant_quotas", red), json::parse(R"({"success": true, "data": null})"));
    EXPECT_EQ(ask(404, "DELETE", "/api/v1/tenant_quotas", red)["error_code"], -1701);
    EXPECT_EQ(*load_quotas(file()), Quotas{});
    EXPECT_EQ(ask(400, "DELETE", "/api/v1/tenant_quotas")["error_code"], -600);
}

TEST_F(AdminJobsTest, RefusesBadQuotas) {
    serve(true);
    for (const char* body : {"", "5", "[]", "{}", "{", R"({"requested_quota_bytes": 0})", R"({"requested_quota_bytes": -1})",
                             R"({"requested_quota_bytes": "5"})", R"({"requested_quota_bytes": 1.5})",
                             R"({"requested_quota_bytes": 9223372036854775808})", R"({"requested_quota_bytes": null})"})
        EXPECT_EQ(put_quota(400, "red", body)["error_code"], -600) << body;
    for (const char* name : {"", "_hidden", "a\nb", "\xff"})
        EXPECT_EQ(put_quota(400, name, R"({"requested_quota_bytes": 5})")["error_code"], -600) << name;
    EXPECT_EQ(ask(400, "PUT", "/api/v1/tenant_quotas", {}, R"({"requested_quota_bytes": 5})")["error_code"], -600);
    EXPECT_EQ(ask(200, "GET", "/api/v1/tenant_quotas")["data"].size(), 0u);
}

TEST_F(AdminJobsTest, TakesQuotasFromTheFileAndRefusesABadOne) {
    std::ofstream(file()) << "version: 1\ntenants: [{name: red, quota: 1MB}]\n";
    serve(true);
    EXPECT_EQ(ask(200, "GET", "/api/v1/tenant_quotas", {{"tenant_id", "red"}})["data"]["requested_quota_bytes"], 1 << 20);
    std::ofstream(file()) << "version: 9\n";
    AdminService other(*master_, metrics_, AdminOptions{.quota_file = file()});
    EXPECT_FALSE(other.load_quota_file());
}

TEST_F(AdminJobsTest, UndoesAQuotaThatCannotBeSaved) {
    serve(true);
    put_quota(200, "red", R"({"requested_quota_bytes": 5})");
    std::filesystem::remove_all(folder_);
    EXPECT_EQ(put_quota(500, "red", R"({"requested_quota_bytes": 6})")["error_code"], -1);
    EXPECT_EQ(put_quota(500, "new", R"({"requested_quota_bytes": 6})")["error_code"], -1);
    EXPECT_EQ(ask(500, "DELETE", "/api/v1/tenant_quotas", {{"tenant_id", "red"}})["error_code"], -1);
    EXPECT_EQ(ask(200, "GET", "/api/v1/tenant_quotas", {{"tenant_id", "red"}})["data"]["requested_quota_bytes"], 5);
    EXPECT_EQ(ask(404, "GET", "/api/v1/tenant_quotas", {{"tenant_id", "new"}})["error_code"], -1701);
}

TEST_F(AdminJobsTest, DrainsAnEmptySegmentAtOnce) {
    add_node(1);
    add_node(2);
    const json created = ask(200, "POST", "/api/v1/drain_jobs", {},
                             R"({"segments": ["node1:1"], "target_segments": ["node2:1"], "max_concurrency": 2})");
    EXPECT_EQ(created["success"], true);
    EXPECT_EQ(created["status"], "CREATED");
    const net::HttpParameters job = {{"job_id", created["job_id"].get<std::string>()}};
    EXPECT_EQ(ask(200, "GET", "/api/v1/segments/status", {{"segment", "node1:1"}})["status_name"], "DRAINING");
    for (int i = 0; i < 10; ++i) master_->run([](Transaction& t, Time now) { return run_jobs(t, now); });
    const json info = ask(200, "GET", "/api/v1/drain_jobs/query", job);
    EXPECT_EQ(info["status_name"], "SUCCEEDED");
    EXPECT_EQ(info["status"], 3);
    EXPECT_EQ(info["type_name"], "DRAIN");
    EXPECT_EQ(info["segments"], json::parse(R"(["node1:1"])"));
    for (const char* field : {"job_id", "type", "status", "created_at_ms_epoch", "last_updated_at_ms_epoch", "succeeded_units",
                              "failed_units", "blocked_units", "active_units", "migrated_bytes", "message"})
        EXPECT_TRUE(info.contains(field)) << field;
    EXPECT_GT(info["created_at_ms_epoch"].get<int64_t>(), 1'600'000'000'000);
    EXPECT_EQ(ask(200, "GET", "/api/v1/segments/status", {{"segment", "node1:1"}})["status_name"], "DRAINED");
    EXPECT_EQ(ask(409, "POST", "/api/v1/drain_jobs/cancel", job)["error_code"], -1010);
}

TEST_F(AdminJobsTest, CancelsADrain) {
    add_node(1);
    add_node(2);
    const json created = ask(200, "POST", "/api/v1/drain_jobs", {}, R"({"segments": ["node1:1"]})");
    const net::HttpParameters job = {{"job_id", created["job_id"].get<std::string>()}};
    EXPECT_EQ(ask(200, "POST", "/api/v1/drain_jobs/cancel", job)["status"], "CANCELED");
    EXPECT_EQ(ask(200, "GET", "/api/v1/drain_jobs/query", job)["status_name"], "CANCELED");
    EXPECT_EQ(ask(200, "GET", "/api/v1/drain_jobs/query", job)["status"], 5);
    EXPECT_EQ(ask(200, "GET", "/api/v1/segments/status", {{"segment", "node1:1"}})["status_name"], "OK");
}

TEST_F(AdminJobsTest, RefusesBadDrains) {
    add_node(1);
    for (const char* body :
         {"", "x", "[]", "{}", R"({"segments": []})", R"({"segments": "node1:1"})", R"({"segments": [1]})", R"({"segments": [""]})",
          R"({"segments": ["node1:1"], "max_concurrency": 0})", R"({"segments": ["node1:1"], "max_concurrency": -1})",
          R"({"segments": ["node1:1"], "max_concurrency": 5000})", R"({"segments": ["node1:1"], "target_segments": 5})",
          R"({"segments": ["node1:1"], "target_segments": ["node1:1"]})"})
        EXPECT_EQ(ask(400, "POST", "/api/v1/drain_jobs", {}, body)["error_code"], -600) << body;
    EXPECT_EQ(ask(404, "POST", "/api/v1/drain_jobs", {}, R"({"segments": ["none"]})")["error_code"], -101);
    EXPECT_EQ(ask(404, "POST", "/api/v1/drain_jobs", {}, R"({"segments": ["node1:1"], "target_segments": ["none"]})")["error_code"], -101);
    for (const char* path : {"/api/v1/drain_jobs/query", "/api/v1/drain_jobs/cancel"}) {
        const std::string method = std::string(path).ends_with("query") ? "GET" : "POST";
        EXPECT_EQ(ask(400, method, path)["error_code"], -600);
        for (const char* id : {"", "x", "1", "1-", "-1", "1-x", "1-2-3", "99999999999999999999-1"})
            EXPECT_EQ(ask(400, method, path, {{"job_id", id}})["error_code"], -600) << id;
        EXPECT_EQ(ask(404, method, path, {{"job_id", "7-7"}})["error_code"], -1402);
    }
}

}  // namespace

}  // namespace mooncake::store
