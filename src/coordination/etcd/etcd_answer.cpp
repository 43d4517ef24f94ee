// SPDX-License-Identifier: Apache-2.0
#include "coordination/etcd/etcd_answer.h"

#include <nlohmann/json.hpp>

#include "coordination/etcd/base64.h"

namespace mooncake {

namespace {
using Json = nlohmann::json;
constexpr size_t kErrorBytesMax = 200;
}  // namespace

Result<std::string> parse_range_answer(const std::string& body) {
    const Json answer = Json::parse(body, nullptr, false);
    if (!answer.is_object()) return fail(Code::kCorrupt, "the answer is no JSON object");
    const auto kvs = answer.find("kvs");
    if (kvs == answer.end()) return fail(Code::kNotFound, "no such key");
    if (!kvs->is_array() || kvs->size() != 1 || !(*kvs)[0].is_object()) return fail(Code::kCorrupt, "the answer has no list of one entry");
    const auto value = (*kvs)[0].find("value");
    if (value == (*kvs)[0].end()) return std::string();  // an empty value is left out
    if (!value->is_string()) return fail(Code::kCorrupt, "the value in the answer is no text");
    return base64_decode(value->get_ref<const std::string&>());
}

std::string etcd_error_text(const std::string& body) {
    const Json json = Json::parse(body, nullptr, false);
    if (json.is_object()) {
        for (const char* name : {"error", "message"})
            if (const auto found = json.find(name); found != json.end() && found->is_string())
                return found->get<std::string>().substr(0, kErrorBytesMax);
    }
    return body.substr(0, kErrorBytesMax);
}

}  // namespace mooncake
