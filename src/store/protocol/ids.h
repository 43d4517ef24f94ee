// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "base/format.h"

namespace mooncake::store {

/// 128 random bits naming one life of one thing: a client that restarts, or a segment mounted again from nothing, has another id.
/// All zero means none.
template <typename Tag>
struct Id {
    uint64_t high = 0, low = 0;

    explicit operator bool() const noexcept { return (high | low) != 0; }
    /// The two halves in decimal, as the Python face shows them.
    std::string to_string() const { return format_text("{}-{}", high, low); }
    friend auto operator<=>(const Id&, const Id&) = default;  // NOLINT(modernize-use-nullptr): what the compiler writes compares with 0
};

using ClientId = Id<struct ClientTag>;
using SegmentId = Id<struct SegmentTag>;
using TaskId = Id<struct TaskTag>;
using JobId = Id<struct JobTag>;

}  // namespace mooncake::store

template <typename Tag>
struct std::hash<mooncake::store::Id<Tag>> {
    size_t operator()(const mooncake::store::Id<Tag>& id) const noexcept {
        return static_cast<size_t>((id.high ^ 0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd ^ id.low);
    }
};
