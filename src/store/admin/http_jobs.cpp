// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <chrono>

#include "store/admin/http_admin.h"
#include "store/admin/http_json.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

constexpr uint32_t kConcurrencyMax = 1024;
constexpr size_t kNamesMax = 10'000;

std::string_view drain_status_name(DrainStatus status) {
    switch (status) {
        case DrainStatus::kCreated: return "CREATED";
        case DrainStatus::kRunning: return "RUNNING";
        case DrainStatus::kSucceeded: return "SUCCEEDED";
        case DrainStatus::kFailed: return "FAILED";
        case DrainStatus::kCancelled: return "CANCELED";
    }
    return "UNKNOWN";
}

/// The numbers that users know.
int drain_status_number(DrainStatus status) {
    switch (status) {
        case DrainStatus::kCreated: return 0;
        case DrainStatus::kRunning: return 2;
        case DrainStatus::kSucceeded: return 3;
        case DrainStatus::kFailed: return 4;
        case DrainStatus::kCancelled: return 5;
    }
    return -1;
}

/// A list of texts, or nothing at all.
bool read_names(const Json& json, const char* field, std::vector<std::string>& names) {
    const auto found = json.find(field);
    if (found == json.end() || found->is_null()) return true;
    if (!found->is_array() || found->size() > kNamesMax) return false;
    for (const Json& name : *found) {
        if (!name.is_string() || name.get_ref<const std::string&>().empty()) return false;
        names.push_back(name.get<std::string>());
    }
    return true;
}

std::optional<DrainRequest> read_drain(const std::string& body) {
    const Json json = Json::parse(body, nullptr, false);
    DrainRequest request;
    if (!json.is_object() || !read_names(json, "segments", request.segments) || !read_names(json, "target_segments", request.targets))
        return {};
    if (request.segments.empty()) return {};
    if (const auto found = json.find("max_concurrency"); found != json.end() && !found->is_null()) {
        if (!found->is_number_unsigned() || *found == 0 || *found > kConcurrencyMax) return {};
        request.concurrency = found->get<uint32_t>();
    }
    return request;
}

/// "12-34"
std::optional<JobId> parse_job(const std::string* text) {
    if (text == nullptr) return {};
    JobId id;
    const char* const end = text->data() + text->size();
    const auto [dash, high] = std::from_chars(text->data(), end, id.high);
    if (high != std::errc() || dash == end || *dash != '-') return {};
    const auto [last, low] = std::from_chars(dash + 1, end, id.low);
    if (low != std::errc() || last != end) return {};
    return id;
}

/// The core's clock has no relation to the calendar; ours has.
int64_t wall_ms(Time at) {
    const auto wall = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(at - Clock::now());
    return std::chrono::duration_cast<std::chrono::milliseconds>(wall.time_since_epoch()).count();
}

net::HttpResponse bad_job() { return error_answer(StoreCode::kInvalidParams, "job_id is missing or no id"); }

}  // namespace

net::HttpResponse AdminService::post_drain(const Request& request) {
    const auto wanted = read_drain(request.body);
    if (!wanted)
        return error_answer(StoreCode::kInvalidParams,
                            "the body must be {\"segments\": [names], \"target_segments\": [names], \"max_concurrency\": 1 to 1024}");
    const DrainReply reply = master_.run([&](Transaction& transaction, Time now) { return create_drain(transaction, *wanted, now); });
    if (reply.code != StoreCode::kOk) return error_answer(reply.code);
    options_.changed();
    return json_answer(
        {{"success", true}, {"error_code", 0}, {"error_message", ""}, {"job_id", reply.job.to_string()}, {"status", "CREATED"}});
}

net::HttpResponse AdminService::get_drain(const Request& request) const {
    const auto id = parse_job(request.parameter("job_id"));
    if (!id) return bad_job();
    const auto view = master_.look([&](const MasterState& state, Time) { return query_drain(state, *id); });
    if (!view) return error_answer(StoreCode::kJobNotFound);
    const DrainInfo* const info = &view->info;
    return json_answer({{"success", true},
                        {"error_code", 0},
                        {"error_message", ""},
                        {"job_id", id->to_string()},
                        {"type", 0},
                        {"type_name", "DRAIN"},
                        {"status", drain_status_number(info->status)},
                        {"status_name", drain_status_name(info->status)},
                        {"created_at_ms_epoch", wall_ms(view->created)},
                        {"last_updated_at_ms_epoch", wall_ms(view->updated)},
                        {"segments", info->segments},
                        {"succeeded_units", info->succeeded},
                        {"failed_units", info->failed},
                        {"blocked_units", info->blocked},
                        {"active_units", info->active},
                        {"migrated_bytes", info->migrated_bytes},
                        {"message", info->message}});
}

net::HttpResponse AdminService::post_cancel(const Request& request) {
    const auto id = parse_job(request.parameter("job_id"));
    if (!id) return bad_job();
    const StoreCode code = master_.run([&](Transaction& transaction, Time now) { return cancel_drain(transaction, *id, now); });
    if (code != StoreCode::kOk) return error_answer(code);
    options_.changed();
    return json_answer({{"success", true}, {"error_code", 0}, {"error_message", ""}, {"job_id", id->to_string()}, {"status", "CANCELED"}});
}

}  // namespace mooncake::store
