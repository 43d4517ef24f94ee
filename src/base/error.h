// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tl/expected.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/format.h"

namespace mooncake {

/// What the caller should do about a failure; about a dozen, the same in every layer.
enum class Code : uint8_t {
    kOk = 0,
    kInvalidArgument,  // the call itself is wrong: do not repeat it
    kNotFound,         // no such segment, key, batch
    kAlreadyExists,    // taken by somebody else
    kOverlap,          // memory overlaps a registered range
    kNotRegistered,    // address outside every registered range, ours or the peer's
    kNoSpace,          // a bounded resource is full
    kBusy,             // still in use: try again later
    kUnavailable,      // peer or service cannot be reached now: retry may help
    kStale,            // the peer is not the incarnation we knew: refresh, then retry
    kTimedOut,         // the deadline passed; nothing moves any more
    kCancelled,        // stopped on request; nothing moves any more
    kRefused,          // the peer understood and said no (version, permission)
    kCorrupt,          // bytes failed their check, or a message made no sense
    kNotSupported,     // this build or this machine cannot
    kInternal,         // our bug
};

MC_EXPORT std::string_view code_name(Code code) noexcept;

/// A failure as a value: what to do (code), what the system said (errno; negative: EAI_...; 0: nothing), and a text for people.
class MC_EXPORT Error {
public:
    Error() = default;
    Error(Code code, std::string message, int system_errno = 0) : message_(std::move(message)), errno_(system_errno), code_(code) {}

    Code code() const noexcept { return code_; }
    int system_errno() const noexcept { return errno_; }
    const std::string& message() const noexcept { return message_; }
    /// "unavailable: cannot connect 10.0.0.1:15000 (errno 111 Connection refused)"
    std::string to_string() const;
    /// Prefixes the message with where it happened; used once per layer border.
    Error with_context(std::string_view context) &&;

private:
    std::string message_;
    int errno_ = 0;
    Code code_ = Code::kInternal;
};

template <typename... Args>
Error error(Code code, fmt::format_string<Args...> text, Args&&... arguments) {
    return Error(code, vformat_text(text, fmt::make_format_args(arguments...)));
}

template <typename T = void>
using Result = tl::expected<T, Error>;
using Unexpected = tl::unexpected<Error>;

template <typename... Args>
Unexpected fail(Code code, fmt::format_string<Args...> text, Args&&... arguments) {
    return Unexpected(Error(code, vformat_text(text, fmt::make_format_args(arguments...))));
}
/// As fail(), with errno as it is at the call.
MC_EXPORT Unexpected fail_errno_text(Code code, std::string message, int system_errno);
template <typename... Args>
Unexpected fail_errno(Code code, int system_errno, fmt::format_string<Args...> text, Args&&... arguments) {
    return fail_errno_text(code, vformat_text(text, fmt::make_format_args(arguments...)), system_errno);
}

/// Aborts with file and line: for our own bugs, never for input.
[[noreturn]] MC_EXPORT void check_failed(const char* condition, const char* file, int line);

}  // namespace mooncake

#define MC_CHECK(condition) \
    do { \
        if (!(condition)) [[unlikely]] \
            ::mooncake::check_failed(#condition, __FILE__, __LINE__); \
    } while (false)

#define MC_CONCAT_INNER(a, b) a##b
#define MC_CONCAT(a, b) MC_CONCAT_INNER(a, b)
/// MC_RETURN_IF_ERROR(expression): returns the error of a Result<> from the enclosing function.
#define MC_RETURN_IF_ERROR(expression) \
    do { \
        auto mc_result = (expression); \
        if (!mc_result) return ::mooncake::Unexpected(std::move(mc_result).error()); \
    } while (false)
/// MC_ASSIGN_OR_RETURN(auto value, expression): declares value, or returns the error.
#define MC_ASSIGN_OR_RETURN(declaration, expression) MC_ASSIGN_OR_RETURN_INNER(MC_CONCAT(mc_result_, __LINE__), declaration, expression)
#define MC_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
    auto result = (expression); \
    if (!result) return ::mooncake::Unexpected(std::move(result).error()); \
    declaration = std::move(*result)
