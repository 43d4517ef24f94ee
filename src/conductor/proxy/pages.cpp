// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/pages.h"

#include <charconv>
#include <utility>

#include "conductor/proxy/dialect.h"
#include "conductor/proxy/events.h"
#include "net/address.h"
#include "net/http_url.h"

namespace mooncake::conductor {

namespace {

const char* role_name(Role role) { return role == Role::kPrefill ? "prefill" : role == Role::kDecode ? "decode" : "both"; }

const char* breaker_name(BreakerState state) {
    return state == BreakerState::kClosed ? "closed" : state == BreakerState::kOpen ? "open" : "half-open";
}

PageAnswer error_page(int status, std::string_view message) {
    return {.status = status, .body = error_body(message, "invalid_request_error", status)};
}

PageAnswer result_page(const Result<>& result) {
    if (result) return {.body = "{}"};
    const Code code = result.error().code();
    return error_page(code == Code::kNotFound ? 404 : code == Code::kAlreadyExists ? 409 : 400, result.error().message());
}

Json member_json(const Cluster::Member& member) {
    return {{"name", member.endpoint->name},
            {"address", net::join_host_port(member.endpoint->host, member.endpoint->port)},
            {"role", role_name(member.role)},
            {"healthy", member.healthy},
            {"draining", member.draining},
            {"removed", member.removed},
            {"breaker", breaker_name(member.breaker)},
            {"waiting", member.waiting},
            {"prefilling", member.prefilling},
            {"decoding", member.decoding},
            {"work_seconds", member.work_seconds},
            {"cached_blocks", member.cached_blocks}};
}

PageAnswer status_page(Cluster& cluster, const ProxyOptions& options) {
    Json members = Json::array();
    for (const auto& member : cluster.members()) members.push_back(member_json(member));
    const Json status{{"dialect", options.dialect},
                      {"policy", policy_name(cluster.options().policy)},
                      {"open_requests", cluster.metrics().open.value()},
                      {"waiting_requests", cluster.metrics().waiting.value()},
                      {"instances", std::move(members)}};
    return {.body = status.dump(2, ' ', false, Json::error_handler_t::replace)};
}

/// Ready to serve: somebody can prefill and somebody can decode.
PageAnswer health_page(Cluster& cluster) {
    bool prefill = false, decode = false;
    for (const auto& member : cluster.members()) {
        if (!member.healthy || member.draining || member.removed || member.breaker == BreakerState::kOpen) continue;
        prefill |= prefills(member.role);
        decode |= decodes(member.role);
    }
    if (prefill && decode) return {.body = R"({"status": "ok"})"};
    return error_page(503, !prefill ? "no prefill instance is fit" : "no decode instance is fit");
}

Result<std::string> name_in(std::string_view body) {
    const Json request = Json::parse(body, nullptr, false);
    const auto name = request.is_object() ? request.find("name") : request.end();
    if (name == request.end() || !name->is_string()) return fail(Code::kInvalidArgument, "name is missing");
    return name->get<std::string>();
}

PageAnswer change_members(std::string_view what, std::string_view body, Cluster& cluster) {
    if (what == "add") {
        auto spec = parse_member(body);
        if (!spec) return error_page(400, spec.error().message());
        const auto name = cluster.add(std::move(*spec));
        if (!name) return result_page(Unexpected(Error(name.error())));
        return {.body = Json{{"name", *name}}.dump()};
    }
    const auto name = name_in(body);
    if (!name) return error_page(400, name.error().message());
    if (what == "remove") return result_page(cluster.remove(*name));
    return result_page(cluster.drain(*name, what == "drain"));
}

/// {"token_ids", "model"} or {"seq_hashes"} -> how much of it each instance holds, in tokens: {"default": {name: {"longest_matched", "GPU", "DP": {"0": ...}}}}.
PageAnswer query_page(std::string_view body, bool by_hash, Cluster& cluster, uint32_t block_tokens) {
    const Json request = Json::parse(body, nullptr, false);
    const auto list = request.is_object() ? request.find(by_hash ? "seq_hashes" : "token_ids") : request.end();
    if (list == request.end() || !list->is_array()) return error_page(400, by_hash ? "seq_hashes is missing" : "token_ids is missing");
    for (const Json& one : *list)
        if (!one.is_number_unsigned()) return error_page(400, "not a list of numbers");
    if (const auto size = request.find("block_size"); size != request.end() && *size != block_tokens)
        return error_page(400, fmt::format("blocks have {} tokens here (--block_tokens)", block_tokens));
    const auto model = request.find("model");
    const uint64_t seed = seed_of_model(model != request.end() && model->is_string() ? model->get<std::string>() : std::string());
    const auto blocks = by_hash ? list->get<std::vector<BlockHash>>() : hash_tokens(list->get<std::vector<uint32_t>>(), block_tokens, seed);
    std::vector<uint32_t> lengths;
    cluster.with_cache([&](PrefixIndex& cache, const auto&) { cache.match(blocks, lengths); });
    Json instances = Json::object();
    for (const auto& member : cluster.members()) {
        if (!prefills(member.role) || member.removed || member.id >= lengths.size()) continue;
        const uint64_t tokens = uint64_t{lengths[member.id]} * block_tokens;
        instances[member.endpoint->name] = {{"longest_matched", tokens}, {"GPU", tokens}, {"CPU", 0}, {"DISK", 0}, {"DP", {{"0", tokens}}}};
    }
    return {.body = Json{{"default", std::move(instances)}}.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

template <typename Number>
Result<> read_number(const Json& request, const char* name, Number& value) {
    const auto found = request.find(name);
    if (found == request.end()) return {};
    if (!found->is_number_unsigned() || !std::in_range<Number>(found->get<uint64_t>())) {
        return fail(Code::kInvalidArgument, "{} is no number that fits", name);
    }
    value = found->get<Number>();
    return {};
}

Result<Role> parse_role(const Json& request) {
    const std::string role = request.contains("role") && request["role"].is_string() ? request["role"].get<std::string>() : "";
    if (role == "prefill") return Role::kPrefill;
    if (role == "decode") return Role::kDecode;
    if (role == "both") return Role::kBoth;
    return fail(Code::kInvalidArgument, "role is prefill, decode or both");
}

}  // namespace

Result<MemberSpec> parse_member_address(std::string_view text, Role role) {
    constexpr std::string_view kScheme = "http://";
    if (text.starts_with(kScheme)) text.remove_prefix(kScheme.size());
    MemberSpec spec;
    spec.instance.role = role;
    if (const size_t slash = text.find('/'); slash != std::string_view::npos) {
        const std::string_view port = text.substr(slash + 1);
        const auto [end, problem] = std::from_chars(port.data(), port.data() + port.size(), spec.bootstrap_port);
        if (!port.empty() && (problem != std::errc() || end != port.data() + port.size()))
            return fail(Code::kInvalidArgument, "{} is no port", port);
        text = text.substr(0, slash);
    }
    MC_ASSIGN_OR_RETURN(const net::HostPort address, net::HostPort::parse(text));
    if (address.port == 0) return fail(Code::kInvalidArgument, "{} has no port", text);
    spec.host = address.host;
    spec.port = address.port;
    return spec;
}

Result<MemberSpec> parse_member(std::string_view json) {
    const Json request = Json::parse(json, nullptr, false);
    if (!request.is_object()) return fail(Code::kInvalidArgument, "the body is no JSON object");
    MC_ASSIGN_OR_RETURN(const Role role, parse_role(request));
    MemberSpec spec;
    if (request.contains("url") && request["url"].is_string()) {
        MC_ASSIGN_OR_RETURN(spec, parse_member_address(request["url"].get<std::string>(), role));
    } else {
        if (!request.contains("host") || !request["host"].is_string()) return fail(Code::kInvalidArgument, "url or host is missing");
        spec.host = request["host"].get<std::string>();
        MC_RETURN_IF_ERROR(read_number(request, "port", spec.port));
    }
    // It is written into requests as it is.
    if (spec.host.empty() || spec.host.find_first_of(" \r\n\t/") != std::string::npos)
        return fail(Code::kInvalidArgument, "{} is no host", spec.host);
    spec.instance.role = role;
    if (request.contains("name") && request["name"].is_string()) spec.instance.name = request["name"].get<std::string>();
    MC_RETURN_IF_ERROR(read_number(request, "bootstrap_port", spec.bootstrap_port));
    MC_RETURN_IF_ERROR(read_number(request, "cache_blocks", spec.instance.cache_blocks));
    MC_RETURN_IF_ERROR(read_number(request, "stages", spec.instance.pipeline.stages));
    MC_RETURN_IF_ERROR(read_number(request, "kv_tokens_max", spec.instance.kv_tokens_max));
    return spec;
}

namespace {

/// For people: what /status says, again and again.
constexpr const char* kStatusHtml = R"(<!doctype html><html lang="en"><meta charset="utf-8"><title>Mooncake conductor</title>
<style>body{font:14px system-ui,sans-serif;margin:2em;color-scheme:light dark}table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}.bad{color:#c33;font-weight:600}.calm{opacity:.7}</style>
<h1>Mooncake conductor</h1><p id="sum" class="calm">...</p><table><thead><tr><th>instance<th>role<th>state<th>waiting<th>prefilling<th>decoding<th>work, s<th>cached blocks</tr></thead>
<tbody id="rows"></tbody></table><p class="calm"><a href="/status">status</a> <a href="/metrics">metrics</a></p>
<script>
const cell=(row,text,kind)=>{const td=row.insertCell();td.textContent=text;if(kind)td.className=kind};
async function look(){
 try{const s=await(await fetch("/status")).json();
  document.getElementById("sum").textContent=`${s.dialect}, policy ${s.policy}: ${s.open_requests} open, ${s.waiting_requests} waiting`;
  const rows=document.getElementById("rows");rows.replaceChildren();
  for(const i of s.instances){const r=rows.insertRow();const state=i.removed?"removed":i.draining?"draining":!i.healthy?"ill":i.breaker!="closed"?i.breaker:"well";
   cell(r,i.name);cell(r,i.role);cell(r,state,state=="well"?"":"bad");cell(r,i.waiting);cell(r,i.prefilling);cell(r,i.decoding);cell(r,i.work_seconds.toFixed(1));cell(r,i.cached_blocks)}
 }catch(e){document.getElementById("sum").textContent="no answer: "+e}
 setTimeout(look,1000)}
look()</script></html>
)";

}  // namespace

std::optional<PageAnswer> answer_page(const PageRequest& request, Cluster& cluster, const ProxyOptions& options) {
    const bool get = request.method == "GET" || request.method == "HEAD";
    if (get && (request.path == "/health" || request.path == "/healthcheck" || request.path == "/readiness")) return health_page(cluster);
    if (get && request.path == "/") return PageAnswer{.body = kStatusHtml, .content_type = "text/html; charset=utf-8"};
    if (get && request.path == "/liveness") return PageAnswer{.body = R"({"status": "ok"})"};
    if (get && (request.path == "/status" || request.path == "/instances")) return status_page(cluster, options);
    if (get && request.path == "/metrics") {
        return PageAnswer{.body = cluster.metrics().registry.to_prometheus_text(), .content_type = "text/plain; version=0.0.4"};
    }
    if (request.method == "POST" && (request.path == "/query" || request.path == "/query_by_hash"))
        return query_page(request.body, request.path == "/query_by_hash", cluster, options.block_tokens);
    constexpr std::string_view kInstances = "/instances/";
    if (!request.path.starts_with(kInstances)) return std::nullopt;
    const std::string_view what = request.path.substr(kInstances.size());
    if (what != "add" && what != "remove" && what != "drain" && what != "undrain") return std::nullopt;
    if (request.method != "POST") return error_page(405, "POST is meant");
    if (!options.api_key.empty() && request.api_key != options.api_key) return error_page(401, "X-API-Key is missing or wrong");
    return change_members(what, request.body, cluster);
}

}  // namespace mooncake::conductor
