// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace mooncake {

/// Random id of one life of one engine; a restarted process on the same host:port has another. Zero means none.
struct Incarnation {
    uint64_t value = 0;

    static Incarnation random();
    /// 16 lower-case hex digits.
    std::string to_string() const { return format_text("{:016x}", value); }
    static Result<Incarnation> parse(std::string_view text);
    explicit operator bool() const noexcept { return value != 0; }
    friend bool operator==(Incarnation, Incarnation) = default;
};

/// A random number from the kernel; never fails.
uint64_t random_u64() noexcept;
/// Identifies this boot of this machine (/proc/sys/kernel/random/boot_id); empty if unreadable.
const std::string& boot_id();

}  // namespace mooncake
