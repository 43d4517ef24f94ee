// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/error.h"

/// What becomes of a failure at the border to Python: the number goes to the caller, the text is kept for last_error() and
/// logged (rate limited).
namespace mooncake::python {

/// Remembers the text for this thread and logs it. `call` is the name of the Python method.
void record_failure(const char* call, const Error& error);
/// The text of this thread's last failure; empty if there was none.
const std::string& last_error() noexcept;

/// record_failure(), then -1: what transfers answer to any failure.
inline int failed(const char* call, const Error& error) {
    record_failure(call, error);
    return -1;
}
/// record_failure(), then RuntimeError: where the answer is no number.
[[noreturn]] void raise_failure(const char* call, const Error& error);

}  // namespace mooncake::python
