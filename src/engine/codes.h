// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

namespace mooncake {

/// The numbers of the public interfaces, given out in this one place. Success is exactly 0.
///
/// Calls on an engine answer with the negative number, calls on a batch (submit, status, free) of the C and C++ faces with the
/// positive one. Both follow the table that callers of these interfaces have always known; our codes say what to do about a
/// failure, so some of them share a number.
MC_EXPORT int public_code(Code code) noexcept;
MC_EXPORT int status_code(Code code) noexcept;
/// As that of its code, except that a host name nobody could resolve has a number of its own.
MC_EXPORT int public_code(const Error& error) noexcept;
MC_EXPORT int status_code(const Error& error) noexcept;

/// 0, or the negative number of the error.
template <typename T>
int public_code(const Result<T>& result) noexcept {
    return result ? 0 : public_code(result.error());
}
/// 0, or the positive number of the error.
template <typename T>
int status_code(const Result<T>& result) noexcept {
    return result ? 0 : status_code(result.error());
}

}  // namespace mooncake
