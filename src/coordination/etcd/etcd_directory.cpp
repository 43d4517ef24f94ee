// SPDX-License-Identifier: Apache-2.0
#include "coordination/etcd/etcd_directory.h"

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>

#include "coordination/etcd/base64.h"
#include "coordination/etcd/etcd_answer.h"
#include "net/address.h"
#include "net/http_client.h"

namespace mooncake {

namespace {

using Json = nlohmann::json;

constexpr Duration kCallTimeout = 3s;  // of one request to one endpoint
constexpr uint16_t kDefaultPort = 2379;
constexpr std::array<const char*, 2> kPrefixes = {"/v3", "/v3beta"};  // etcd 3.3 knows only the latter

class EtcdDirectory final : public Directory {
public:
    explicit EtcdDirectory(std::vector<std::string> endpoints) : endpoints_(std::move(endpoints)) {}

    Result<std::string> get(const std::string& key, Deadline deadline) override {
        auto answer = call("/kv/range", {{"key", base64_encode(key)}}, deadline);
        if (!answer) return in_context("get", key, std::move(answer).error());
        auto value = parse_range_answer(*answer);
        const std::string& server = endpoints_[preferred_.load(std::memory_order_relaxed)];
        if (!value) return in_context("get", key, std::move(value).error().with_context(server));
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
    Result<std::string> call(const std::string& path, const Json& request, Deadline deadline) {
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

    Result<std::string> call_endpoint(const std::string& endpoint, const std::string& path, const std::string& body, Deadline deadline) {
        const size_t first = prefix_.load(std::memory_order_relaxed);
        for (size_t i = 0;; ++i) {
            const size_t prefix = (first + i) % kPrefixes.size();
            const std::string url = format_text("{}{}{}", endpoint, kPrefixes[prefix], path);
            MC_ASSIGN_OR_RETURN(
                net::HttpResponse answer,
                client_.send({.method = "POST", .url = url, .body = body, .content_type = "application/json", .repeatable = true},
                             deadline));
            if (answer.status == 404 && i + 1 < kPrefixes.size()) continue;
            if (answer.status != 200) {
                const Code code = answer.status >= 500 ? Code::kUnavailable : Code::kRefused;
                return fail(code, "{} answered {}: {}", url, answer.status, etcd_error_text(answer.body));
            }
            prefix_.store(prefix, std::memory_order_relaxed);
            return std::move(answer.body);
        }
    }

    const std::vector<std::string> endpoints_;  // "http://host:port"
    net::HttpClient client_;
    std::atomic<size_t> preferred_{0};  // a hint only: any order of updates is right
    std::atomic<size_t> prefix_{0};     // likewise
};

Result<std::string> parse_endpoint(std::string text) {
    if (text.starts_with("https://"))
        return fail(Code::kNotSupported, "etcd endpoint '{}': https is not supported by this build; use http", text);
    if (text.starts_with("http://")) text.erase(0, 7);
    if (text.ends_with('/')) text.pop_back();
    auto address = net::HostPort::parse(text);
    if (!address || !address->suffix.empty()) return fail(Code::kInvalidArgument, "etcd endpoint '{}' is not host:port", text);
    const std::string url = "http://" + net::join_host_port(address->host, address->port != 0 ? address->port : kDefaultPort);
    const auto parsed = net::HttpUrl::parse(url);
    if (!parsed || parsed->host != address->host || parsed->target != "/")
        return fail(Code::kInvalidArgument, "etcd endpoint '{}' is not host:port", text);
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
