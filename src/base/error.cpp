// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mooncake {

std::string_view code_name(Code code) noexcept {
    switch (code) {
        case Code::kOk: return "ok";
        case Code::kInvalidArgument: return "invalid argument";
        case Code::kNotFound: return "not found";
        case Code::kAlreadyExists: return "already exists";
        case Code::kOverlap: return "overlap";
        case Code::kNotRegistered: return "not registered";
        case Code::kNoSpace: return "no space";
        case Code::kBusy: return "busy";
        case Code::kUnavailable: return "unavailable";
        case Code::kStale: return "stale peer";
        case Code::kTimedOut: return "timed out";
        case Code::kCancelled: return "cancelled";
        case Code::kRefused: return "refused";
        case Code::kCorrupt: return "corrupt";
        case Code::kNotSupported: return "not supported";
        case Code::kInternal: return "internal error";
    }
    return "unknown";
}

std::string Error::to_string() const {
    std::string text = format_text("{}: {}", code_name(code_), message_);
    if (errno_ > 0) text += format_text(" (errno {} {})", errno_, ::strerrordesc_np(errno_) ? ::strerrordesc_np(errno_) : "?");
    return text;
}

Error Error::with_context(std::string_view context) && {
    message_ = format_text("{}: {}", context, message_);
    return std::move(*this);
}

Unexpected fail_errno_text(Code code, std::string message, int system_errno) {
    return Unexpected(Error(code, std::move(message), system_errno));
}

void check_failed(const char* condition, const char* file, int line) {
    std::fprintf(stderr, "mooncake: check failed: %s (%s:%d)\n", condition, file, line);
    std::abort();
}

}  // namespace mooncake
