// SPDX-License-Identifier: Apache-2.0
#include "coordination/etcd/etcd_directory.h"

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>

#include "coordination/etcd/base64.h"
#include "net/address.h"
#include "net/http_client.h"

namespace mooncake {

namespace {

using Json = nlohmann::json;

constexpr Duration kCallTimeout = 3s;  // of one request to one endpoint
constexpr uint16_t kDefaultPort = 2379;
constexpr std::array<const char*, 2> kPrefixes = {"/v3", "/v3beta"};  // etcd 3.3 knows only the latter

/// An answer that parsed; fails with kCorrupt otherwise.
Result<Json> parse_answer(const std::string& body) {
    Json json = Json::parse(body, nullptr, false);
    if (!json.is_object()) return fail(Code::kCorrupt, "the answer is no JSON object");
    return json;
}

/// The text of {"error": ..., "code": ...}, or the beginning of whatever came.
std::string error_text(const std::string& body) {
    const Json json = Json::parse(body, nullptr, false);
    if (json.is_object()) {
        for (const char* name : {"error", "message"})
            if (const auto found = json.find(name); found != json.end() && found->is_string()) return found->get<std::string>().substr(0, 200);
    }
    return body.substr(0, 200);
}

/// The first value of a range answer; an empty value is left out of the JSON.
Result<std::string> first_value(const Json& answer) {
    const auto kvs = answer.find("kvs");
    if (kvs == answer.end()) return fail(Code::kNotFound, "no such key");
    if (!kvs->is_array() || kvs->size() != 1 || !(*kvs)[0].is_object()) return fail(Code::kCorrupt, "the answer has no list of one entry");
    const auto value = (*kvs)[0].find("value");
    if (value == (*kvs)[0].end()) return std::string();
    if (!value->is_string()) return fail(Code::kCorrupt, "the value in the answer is no text");
    return base64_decode(value->get_ref<const std::string&>());
}

class EtcdDirectory final : public Directory {
public:
    explicit EtcdDirectory(std::vector<std::string> endpoints) : endpoints_(std::move(endpoints)) {}

    Result<std::string> get(const std::string& key, Deadline deadline) override {
        auto answer = call("/kv/range", {{"key", base64_encode(key)}}, deadline);
        auto value = answer ? first_value(*answer) : Result<std::string>(Unexpected(std::move(answer).error()));
        if (!value) return in_context("get", key, std::move(value).error());
        return value;
    }
    Result<> put(const std::string& key, const std::string& value, Deadline deadline) override {
        auto answer = call("/kv/put", {{"key", base64_encode(key)}, {"value", base64_encode(value)}}, deadline);
        if (!answer) return in_context("put", key, std::move(answer).error());
        return {};
    }
    Result<> remove(const std::string& key, Deadline deadline) override {
        auto answer = call("/kv/deleterange", {{"key", base64_encode(key)}}, deadline);
        if (!answer) return in_context("remove", key, std::move(answer).error());
        return {};
    }

private:
    static Unexpected in_context(const char* operation, const std::string& key, Error error) {
        return Unexpected(std::move(error).with_context(format_text("etcd {} '{}'", operation, key)));
    }

    /// Asks one endpoint after the other; each gets its share of the time, so that a hung one does not use up all of it.
    Result<Json> call(const std::string& path, const Json& request, Deadline deadline) {
        const std::string body = request.dump();
        const size_t first = preferred_.load(std::memory_order_relaxed);
        Error last;
        for (size_t i = 0; i < endpoints_.size(); ++i) {
            const size_t index = (first + i) % endpoints_.size();
            const Duration share = deadline.left() / static_cast<int64_t>(endpoints_.size() - i);
            auto answer = call_endpoint(endpoints_[index], path, body, deadline.earlier(Deadline::after(std::min(share, kCallTimeout))));
            if (answer) preferred_.store(index, std::memory_order_relaxed);
            if (answer || answer.error().code() == Code::kRefused) return answer;
            last = std::move(answer).error();
        }
        return Unexpected(std::move(last));
    }

    Result<Json> call_endpoint(const std::string& endpoint, const std::string& path, const std::string& body, Deadline deadline) {
        for (size_t prefix = prefix_.load(std::memory_order_relaxed);; ++prefix) {
            const std::string url = endpoint + kPrefixes[prefix] + path;
            MC_ASSIGN_OR_RETURN(const net::HttpResponse answer,
                                client_.send({.method = "POST", .url = url, .body = body, .content_type = "application/json", .repeatable = true}, deadline));
            if (answer.status == 404 && prefix + 1 < kPrefixes.size()) continue;
            if (answer.status != 200) {
                const Code code = answer.status >= 500 ? Code::kUnavailable : Code::kRefused;
                return fail(code, "{} answered {}: {}", url, answer.status, error_text(answer.body));
            }
            prefix_.store(prefix, std::memory_order_relaxed);
            auto json = parse_answer(answer.body);
            if (!json) return Unexpected(std::move(json).error().with_context(url));
            return json;
        }
    }

    const std::vector<std::string> endpoints_;  // "http://host:port"
    net::HttpClient client_;
    std::atomic<size_t> preferred_{0};  // a hint only: any order of updates is right
    std::atomic<size_t> prefix_{0};     // likewise
};

Result<std::string> parse_endpoint(std::string text) {
    if (text.starts_with("https://")) return fail(Code::kNotSupported, "etcd endpoint '{}': https is not supported by this build; use http", text);
    if (text.starts_with("http://")) text.erase(0, 7);
    if (text.ends_with('/')) text.pop_back();
    auto address = net::HostPort::parse(text);
    if (!address || !address->suffix.empty()) return fail(Code::kInvalidArgument, "etcd endpoint '{}' is not host:port", text);
    const std::string url = "http://" + net::join_host_port(address->host, address->port != 0 ? address->port : kDefaultPort);
    const auto parsed = net::HttpUrl::parse(url);
    if (!parsed || parsed->host != address->host || parsed->target != "/") return fail(Code::kInvalidArgument, "etcd endpoint '{}' is not host:port", text);
    return url;
}

}  // namespace

Result<std::unique_ptr<Directory>> make_etcd_directory(const std::string& endpoints) {
    std::vector<std::string> urls;
    for (const std::string& text : split_list(endpoints)) {
        MC_ASSIGN_OR_RETURN(std::string url, parse_endpoint(text));
        urls.push_back(std::move(url));
    }
    if (urls.empty()) return fail(Code::kInvalidArgument, "etcd without endpoints; etcd://host:port[,host:port...] is expected");
    return std::make_unique<EtcdDirectory>(std::move(urls));
}

}  // namespace mooncake
