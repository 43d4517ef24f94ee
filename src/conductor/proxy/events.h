// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace mooncake::conductor {

/// Cuts a stream of server-sent events into whole ones, whichever way its bytes come. Not thread-safe.
class EventSplitter {
public:
    explicit EventSplitter(size_t bytes_max = 8 << 20) : bytes_max_(bytes_max) {}
    /// The events that became whole, each with the empty line that ends it. kNoSpace: one is larger than is allowed.
    Result<std::vector<std::string>> feed(std::string_view bytes);
    /// What came after the last whole event.
    const std::string& rest() const noexcept { return rest_; }

private:
    const size_t bytes_max_;
    std::string rest_;
    size_t searched_ = 0;
};

/// Sets how many tokens of the prompt were cached in the usage of an answer, or of an event that carries one; anything else is returned as it is. A decode
/// instance would say that all were, since it computed none.
std::string correct_usage(std::string text, uint64_t cached_tokens);
std::string correct_event_usage(std::string event, uint64_t cached_tokens);

/// The body of an error as clients of the OpenAI API expect it, and the same as the last events of a stream.
std::string error_body(std::string_view message, std::string_view type, int code);
std::string error_events(std::string_view message);

}  // namespace mooncake::conductor
