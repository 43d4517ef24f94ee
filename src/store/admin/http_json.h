// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "net/http_message.h"
#include "store/protocol/codes.h"

// How the admin server answers in JSON. Include only in .cpp files.
namespace mooncake::store {

using Json = nlohmann::ordered_json;

inline net::HttpResponse json_answer(const Json& json, int status = 200) {
    // Keys are any bytes; what is not UTF-8 in them cannot be shown.
    return {.status = status,
            .body = json.dump(-1, ' ', false, Json::error_handler_t::replace),
            .content_type = "application/json; charset=utf-8"};
}

/// The status that stands for a code.
constexpr int http_status(StoreCode code) {
    switch (code) {
        case StoreCode::kOk: return 200;
        case StoreCode::kInvalidParams: return 400;
        case StoreCode::kSegmentNotFound:
        case StoreCode::kClientNotFound:
        case StoreCode::kObjectNotFound:
        case StoreCode::kReplicaNotFound:
        case StoreCode::kTaskNotFound:
        case StoreCode::kJobNotFound:
        case StoreCode::kTenantNotRegistered: return 404;
        case StoreCode::kUnavailableInCurrentStatus:
        case StoreCode::kUnavailableInCurrentMode:
        case StoreCode::kTenantNotEmpty: return 409;
        default: return 500;
    }
}

inline net::HttpResponse error_answer(StoreCode code, std::string_view message = {}) {
    return json_answer({{"success", false},
                        {"error_code", static_cast<int32_t>(code)},
                        {"error_message", message.empty() ? store_code_name(code) : message}},
                       http_status(code));
}

}  // namespace mooncake::store
