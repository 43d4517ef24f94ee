// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/events.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace mooncake::conductor {

namespace {

using Json = nlohmann::json;

/// The end of the first event from `from` on; npos: it is not whole.
size_t end_of_event(const std::string& text, size_t from) {
    for (size_t at = text.find('\n', from); at != std::string::npos; at = text.find('\n', at + 1)) {
        if (at + 1 < text.size() && text[at + 1] == '\n') return at + 2;
        if (at + 2 < text.size() && text[at + 1] == '\r' && text[at + 2] == '\n') return at + 3;
    }
    return std::string::npos;
}

bool set_cached(Json& answer, uint64_t cached_tokens) {
    const auto usage = answer.is_object() ? answer.find("usage") : answer.end();
    if (usage == answer.end() || !usage->is_object()) return false;
    Json& details = (*usage)["prompt_tokens_details"];
    if (!details.is_object()) details = Json::object();
    details["cached_tokens"] = cached_tokens;
    return true;
}

}  // namespace

Result<std::vector<std::string>> EventSplitter::feed(std::string_view bytes) {
    rest_.append(bytes);
    std::vector<std::string> events;
    size_t begin = 0;
    // The last characters of the piece before may belong to the end of an event.
    for (size_t from = searched_ > 3 ? searched_ - 3 : 0;;) {
        const size_t end = end_of_event(rest_, from);
        if (end == std::string::npos) break;
        events.push_back(rest_.substr(begin, end - begin));
        begin = from = end;
    }
    rest_.erase(0, begin);
    searched_ = rest_.size();
    if (rest_.size() > bytes_max_) return fail(Code::kNoSpace, "an event of more than {} bytes", bytes_max_);
    return events;
}

std::string correct_usage(std::string text, uint64_t cached_tokens) {
    if (text.find("\"usage\"") == std::string::npos) return text;
    Json answer = Json::parse(text, nullptr, false);
    return set_cached(answer, cached_tokens) ? answer.dump(-1, ' ', false, Json::error_handler_t::replace) : text;
}

std::string correct_event_usage(std::string event, uint64_t cached_tokens) {
    constexpr std::string_view kData = "data: ";
    if (!event.starts_with(kData) || event.find("\"usage\"") == std::string::npos) return event;
    const size_t end = std::min(event.find_first_of("\r\n"), event.size());
    Json answer = Json::parse(event.substr(kData.size(), end - kData.size()), nullptr, false);
    if (!set_cached(answer, cached_tokens)) return event;
    return std::string(kData) + answer.dump(-1, ' ', false, Json::error_handler_t::replace) + event.substr(end);
}

std::string error_body(std::string_view message, std::string_view type, int code) {
    return Json{{"error", {{"message", message}, {"type", type}, {"code", code}}}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_events(std::string_view message) {
    return "data: " + error_body(message, "upstream_error", 502) + "\n\ndata: [DONE]\n\n";
}

}  // namespace mooncake::conductor
