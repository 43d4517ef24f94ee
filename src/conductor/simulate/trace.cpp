// SPDX-License-Identifier: Apache-2.0
#include "conductor/simulate/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/read_file.h"

namespace mooncake::conductor {

namespace {

constexpr size_t kFileBytesMax = size_t{1} << 30;
constexpr uint64_t kTokensMax = 100'000'000, kTimeMaxMs = uint64_t{1000} * 86400 * 365;

Result<uint64_t> number(const nlohmann::json& line, const char* name, uint64_t max) {
    const auto found = line.find(name);
    if (found == line.end() || !found->is_number_integer() || found->get<double>() < 0)
        return fail(Code::kInvalidArgument, "{} is missing or no number", name);
    const auto value = found->get<uint64_t>();
    if (value > max) return fail(Code::kInvalidArgument, "{} is {}, at most {}", name, value, max);
    return value;
}

Result<TraceRequest> parse_line(std::string_view text) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) return fail(Code::kInvalidArgument, "no JSON object");
    TraceRequest request;
    MC_ASSIGN_OR_RETURN(request.timestamp_ms, number(line, "timestamp", kTimeMaxMs));
    MC_ASSIGN_OR_RETURN(request.input_tokens, number(line, "input_length", kTokensMax));
    MC_ASSIGN_OR_RETURN(request.output_tokens, number(line, "output_length", kTokensMax));
    const auto hashes = line.find("hash_ids");
    if (hashes == line.end() || !hashes->is_array()) return fail(Code::kInvalidArgument, "hash_ids is missing or no list");
    for (const auto& hash : *hashes) {
        if (!hash.is_number_integer()) return fail(Code::kInvalidArgument, "hash_ids holds something that is no number");
        request.blocks.push_back(static_cast<BlockHash>(hash.get<int64_t>()));
    }
    return request;
}

}  // namespace

Result<std::vector<TraceRequest>> parse_trace(std::string_view text) {
    std::vector<TraceRequest> requests;
    for (size_t number = 1; !text.empty(); ++number) {
        const size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        auto request = parse_line(line);
        if (!request) return Unexpected(std::move(request).error().with_context(fmt::format("line {}", number)));
        if (!requests.empty() && request->timestamp_ms < requests.back().timestamp_ms) {
            return fail(Code::kInvalidArgument, "line {}: the time goes back", number);
        }
        requests.push_back(std::move(*request));
    }
    if (requests.empty()) return fail(Code::kInvalidArgument, "the trace is empty");
    return requests;
}

Result<std::vector<TraceRequest>> read_trace(const std::string& path) {
    MC_ASSIGN_OR_RETURN(const std::string text, read_file(path, kFileBytesMax));
    auto requests = parse_trace(text);
    if (!requests) return Unexpected(std::move(requests).error().with_context(path));
    return requests;
}

}  // namespace mooncake::conductor
