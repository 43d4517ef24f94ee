// SPDX-License-Identifier: Apache-2.0
#include "apps/common/config_file.h"

#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

#include "base/read_file.h"

namespace mooncake::store {

namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

Result<Entries> from_json(std::string_view text) {
    const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
    if (json.is_discarded()) return fail(Code::kInvalidArgument, "the file begins like JSON and is none");
    Entries entries;
    for (const auto& [name, value] : json.items()) {
        if (value.is_null()) continue;
        if (value.is_structured()) return fail(Code::kInvalidArgument, "'{}' must be a single value", name);
        entries.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    }
    return entries;
}

Result<Entries> from_yaml(std::string_view text) try {
    const YAML::Node root = YAML::Load(std::string(text));
    Entries entries;
    if (root.IsNull()) return entries;
    if (!root.IsMap()) return fail(Code::kInvalidArgument, "a list of names with values is expected");
    for (const auto& entry : root) {
        if (!entry.first.IsScalar()) return fail(Code::kInvalidArgument, "names must be single words");
        if (entry.second.IsNull()) continue;
        if (!entry.second.IsScalar()) return fail(Code::kInvalidArgument, "'{}' must be a single value", entry.first.Scalar());
        entries.emplace_back(entry.first.Scalar(), entry.second.Scalar());
    }
    return entries;
} catch (const YAML::Exception& problem) {
    return fail(Code::kInvalidArgument, "not readable as YAML: {}", problem.what());
}

}  // namespace

Result<Entries> parse_config(std::string_view text) {
    if (text.size() > kConfigBytesMax) return fail(Code::kInvalidArgument, "the file is longer than {} bytes", kConfigBytesMax);
    const size_t first = text.find_first_not_of(" \t\r\n");
    return first != std::string_view::npos && text[first] == '{' ? from_json(text) : from_yaml(text);
}

Result<std::string> read_config_file(const std::string& path) { return read_file(path, kConfigBytesMax); }

}  // namespace mooncake::store
