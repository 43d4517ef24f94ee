// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace mooncake {

/// Writes lines to a descriptor without ever waiting for whoever reads there: a pipe that nobody empties, a terminal that was stopped or a log service that hangs
/// must not bring the process to a halt, as any of its threads may log, with any lock. What is not taken is left out, and the next line that is taken says
/// so. Files are waited for. Not thread-safe.
class LogOutput {
public:
    /// Borrows the descriptor, which others may replace at any time.
    explicit LogOutput(int descriptor) noexcept : descriptor_(descriptor) {}

    /// `line` ends with its newline.
    void write(std::string_view line) noexcept;

private:
    enum class Kind { kFile, kPipe, kOther };

    /// Whether all of it was taken. What was begun and not ended is ended by a newline before the next one.
    bool put(std::string_view text) noexcept;
    bool has_room(Kind kind) const noexcept;
    Kind kind() const noexcept;

    const int descriptor_;
    size_t lost_ = 0;      // lines, since one was taken
    bool broken_ = false;  // in the middle of one
};

}  // namespace mooncake
