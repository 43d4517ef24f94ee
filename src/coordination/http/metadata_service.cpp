// SPDX-License-Identifier: Apache-2.0
#include "coordination/http/metadata_service.h"

namespace mooncake {

namespace {

net::HttpResponse text_answer(int status, const char* text) {
    return {.status = status, .body = text, .content_type = "application/json; charset=utf-8"};
}

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(" \t\r\n\v\f");
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n\v\f") - first + 1);
}

}  // namespace

void MetadataService::attach(net::HttpServer& server) {
    server.handle("*", "/metadata", [this](const net::HttpServerRequest& request) { return handle(request); });
    server.handle("GET", "/health", [](const net::HttpServerRequest&) { return net::HttpResponse{.body = "OK"}; });
}

net::HttpResponse MetadataService::handle(const net::HttpServerRequest& request) {
    const std::string* given = request.parameter("key");
    const std::string key = given != nullptr ? trimmed(*given) : std::string();
    if (key.empty()) return text_answer(400, "metadata key is required");
    if (request.method == "GET") return get(key);
    if (request.method == "PUT") return put(key, request.body);
    if (request.method == "DELETE") return remove(key);
    return text_answer(405, "Method not allowed");
}

net::HttpResponse MetadataService::get(const std::string& key) {
    Lock lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return text_answer(404, "metadata not found");
    return {.status = 200, .body = found->second, .content_type = "application/json"};
}

net::HttpResponse MetadataService::put(const std::string& key, const std::string& value) {
    Lock lock(mutex_);
    const auto found = values_.find(key);
    const bool exists = found != values_.end();
    // An address entry is never replaced, so that two live processes of one name are noticed; clients that know better delete it.
    if (exists && key.find("rpc_meta") != std::string::npos)
        return found->second == value ? text_answer(200, "metadata unchanged") : text_answer(400, "Duplicate rpc_meta key not allowed");
    const uint64_t before = exists ? found->second.size() : 0;
    const uint64_t after = value.size() + (exists ? 0 : key.size());
    if (bytes_ - before + after > bytes_max_) return text_answer(507, "metadata store is full");
    bytes_ = bytes_ - before + after;
    values_[key] = value;
    return text_answer(200, "metadata updated");
}

net::HttpResponse MetadataService::remove(const std::string& key) {
    Lock lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return text_answer(404, "metadata not found");
    bytes_ -= key.size() + found->second.size();
    values_.erase(found);
    return text_answer(200, "metadata deleted");
}

}  // namespace mooncake
