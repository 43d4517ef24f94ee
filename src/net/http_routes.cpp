// SPDX-License-Identifier: Apache-2.0
#include "net/http_routes.h"

#include <algorithm>
#include <exception>

#include "base/log.h"

namespace mooncake::net {

namespace {

/// Splits "/a%20b?key=c" into the decoded path and parameters. "http://host/a" is what clients send to proxies, and means the same.
Result<> decode_target(std::string_view target, HttpServerRequest& request) {
    if (const size_t scheme = target.find("://"); !target.starts_with('/') && scheme != std::string_view::npos) {
        target.remove_prefix(std::min(target.find_first_of("/?", scheme + 3), target.size()));
        if (!target.starts_with('/')) return fail(Code::kInvalidArgument, "a URL without a path");
    }
    const size_t question = std::min(target.find('?'), target.size());
    MC_ASSIGN_OR_RETURN(request.path, percent_decode(target.substr(0, question)));
    if (question < target.size()) {
        MC_ASSIGN_OR_RETURN(request.parameters, parse_query(target.substr(question + 1)));
    }
    return {};
}

std::string names_of(const std::map<std::string, HttpHandler>& methods) {
    std::string names;
    for (const auto& [method, handler] : methods) names += (names.empty() ? "" : ", ") + method + (method == "GET" ? ", HEAD" : "");
    return names;
}

}  // namespace

const std::string* HttpServerRequest::parameter(std::string_view name) const noexcept {
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& entry) { return entry.first == name; });
    return found == parameters.end() ? nullptr : &found->second;
}

HttpResponse HttpRoutes::answer(HttpServerRequest request, std::string_view target) const {
    if (auto decoded = decode_target(target, request); !decoded) return {.status = 400, .body = decoded.error().message()};
    const auto path = handlers_.find(request.path);
    if (path == handlers_.end()) return {.status = 404, .body = "not found"};
    const auto& methods = path->second;
    auto found = methods.find(request.method);
    if (found == methods.end() && request.method == "HEAD") found = methods.find("GET");
    if (found == methods.end()) found = methods.find("*");
    if (found == methods.end()) return {.status = 405, .body = "method not allowed", .allow = names_of(methods)};
    try {
        return found->second(request);
    } catch (const std::exception& problem) {  // what one request cannot have must not end the process for all
        MC_LOG_WARNING_EVERY(1s, "{} {} ended unexpectedly: {}", request.method, request.path, problem.what());
        return {.status = 500, .body = "internal error"};
    }
}

}  // namespace mooncake::net
