// SPDX-License-Identifier: Apache-2.0
#include "coordination/http/http_directory.h"

#include <algorithm>

#include "net/http_client.h"

namespace mooncake {

namespace {

constexpr Duration kCallTimeout = 3s;           // of one request, also when the caller would wait longer: connecting included
constexpr uint64_t kAnswerBytesMax = 16 << 20;  // several times the longest descriptor
constexpr Duration kBusyPauseMin = 20ms, kBusyPauseMax = 500ms;

class HttpDirectory final : public Directory {
public:
    HttpDirectory(std::string url, bool has_query) : key_prefix_(std::move(url) + (has_query ? "&key=" : "?key=")) {}

    Result<std::string> get(const std::string& key, Deadline deadline) override {
        MC_ASSIGN_OR_RETURN(net::HttpResponse answer, send("GET", key, {}, deadline));
        if (answer.status == 404) return fail(Code::kNotFound, "no key '{}' at {}", key, url_of(key));
        if (answer.status != 200) return unexpected_status("GET", key, answer);
        return std::move(answer.body);
    }

    Result<> put(const std::string& key, const std::string& value, Deadline deadline) override {
        MC_ASSIGN_OR_RETURN(const net::HttpResponse answer, send("PUT", key, value, deadline));
        if (answer.status == 200) return {};
        if (answer.status == 400 && key.find("rpc_meta") != std::string::npos)
            return fail(Code::kAlreadyExists, "PUT {}: the metadata server keeps another entry: {}", url_of(key),
                        answer.body.substr(0, 200));
        return unexpected_status("PUT", key, answer);
    }

    Result<> remove(const std::string& key, Deadline deadline) override {
        MC_ASSIGN_OR_RETURN(const net::HttpResponse answer, send("DELETE", key, {}, deadline));
        if (answer.status != 200 && answer.status != 404) return unexpected_status("DELETE", key, answer);
        return {};
    }

private:
    std::string url_of(const std::string& key) const { return key_prefix_ + net::percent_encode(key); }

    Result<net::HttpResponse> send(const char* method, const std::string& key, std::string body, Deadline deadline) {
        const net::HttpRequest request{.method = method,
                                       .url = url_of(key),
                                       .body = std::move(body),
                                       .content_type = std::string_view(method) == "PUT" ? "application/json" : ""};
        const Deadline end = deadline.earlier(Deadline::after(kCallTimeout));
        // A server that is too busy for us now (a whole cluster starts at once) is asked again for as long as there is time.
        for (Duration pause = kBusyPauseMin;; pause = std::min(2 * pause, kBusyPauseMax)) {
            auto answer = client_.send(request, end);
            if (!answer || answer->status != 503 || end.left() <= pause) return answer;
            (void)net::wait_ready(/*fd=*/-1, 0, Deadline::after(pause));  // for nothing: a pause
        }
    }

    Unexpected unexpected_status(const char* method, const std::string& key, const net::HttpResponse& answer) const {
        const Code code = answer.status >= 500 ? Code::kUnavailable : Code::kRefused;
        return fail(code, "{} {}: the metadata server answered {}: {}", method, url_of(key), answer.status, answer.body.substr(0, 200));
    }

    const std::string key_prefix_;
    // Questions are rare, and a server has only so many connections.
    net::HttpClient client_{{.response_bytes_max = kAnswerBytesMax, .idle_connections_max = 0}};
};

}  // namespace

Result<std::unique_ptr<Directory>> make_http_directory(const std::string& url) {
    MC_ASSIGN_OR_RETURN(const net::HttpUrl parsed, net::HttpUrl::parse(url));
    if (parsed.tls) return fail(Code::kNotSupported, "metadata server '{}': https is not supported by this build; use http", url);
    return std::make_unique<HttpDirectory>(url.substr(0, url.find('#')), parsed.target.find('?') != std::string::npos);
}

}  // namespace mooncake
