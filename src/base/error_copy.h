// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

#include "base/error.h"

namespace mooncake {

/// For those who must get to their end also where there is no memory. Its texts are so short that they need none.
inline Error out_of_memory() noexcept { return Error(Code::kUnavailable, "out of memory"); }

/// A copy that never throws: where there is no memory for the text, only the code is kept.
inline Error copy_error(const Error& error) noexcept {
    try {
        return error;
    } catch (const std::bad_alloc&) {
        return Error(error.code(), "out of memory", error.system_errno());
    }
}

/// Does a step that ends with a Result. An allocation that fails on the way is an error like others.
template <typename Step>
auto contained(const Step& step) -> decltype(step()) {
    try {
        return step();
    } catch (const std::bad_alloc&) {
        return Unexpected(out_of_memory());
    }
}

}  // namespace mooncake
