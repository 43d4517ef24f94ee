// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/time.h"

namespace mooncake::store {

/// A duration whose plain numbers count milliseconds or seconds; "500ms", "5s", "30m" and "1h" mean the same for both.
struct Milliseconds {
    Duration* target = nullptr;
};
struct Seconds {
    Duration* target = nullptr;
};
using FlagTarget = std::variant<bool*, int64_t*, double*, std::string*, Milliseconds, Seconds>;

struct FlagSpec {
    std::string_view name;
    FlagTarget target;  // holds the default until something is set
    std::string_view help;
    bool built = true;  // false: understood and checked, but nothing here does it yet
    double min = 0;     // of numbers, and of durations in seconds
    double max = std::numeric_limits<double>::infinity();
    std::vector<std::string_view> choices{};  // of text; empty: anything
    std::string_view name_in_files{};         // where configuration files spell it in another way as well
    bool* given = nullptr;                    // becomes true when it is set, also to its default
};

/// The flags of a program, in the forms people use: -x=y, --x=y, --x y, and for switches --x and --nox. Writes to the targets it was given, which must
/// outlive it. Reads nothing and prints nothing. Not thread-safe.
class FlagSet {
public:
    void add(FlagSpec spec);
    /// A place for the value of a flag that nobody reads.
    bool* spare(bool value);
    int64_t* spare(int64_t value);
    double* spare(double value);
    std::string* spare(std::string_view value);

    using Assignment = std::pair<std::string, std::string>;  // name, text
    /// The command line (without the program's name), last one wins when applied in order. kInvalidArgument: an unknown flag, a value
    /// missing, something that is no flag. Applies nothing.
    Result<std::vector<Assignment>> split(std::span<const std::string> arguments) const;
    /// kNotFound: no such flag. kInvalidArgument: not a value for it; names flag, text and what is allowed.
    Result<> set(std::string_view name, std::string_view text);
    /// As set(), by the name that a configuration file uses.
    Result<> set_from_file(std::string_view name, std::string_view text);

    /// Those that are not built and were set to something else than their default.
    std::vector<std::string_view> set_in_vain() const;
    /// What --help prints: every flag with what it does, its type and its default.
    std::string help() const;
    const std::deque<FlagSpec>& all() const noexcept { return specs_; }
    std::string value(std::string_view name) const;  // as text; of a flag that there is
    const std::string& default_value(std::string_view name) const;

private:
    const FlagSpec* find(std::string_view name) const;
    Result<Assignment> split_one(std::string_view flag, std::span<const std::string> rest, bool& took_next) const;
    std::string nearest(std::string_view name) const;

    std::deque<FlagSpec> specs_;
    std::unordered_map<std::string_view, size_t> numbers_;  // by name, where in specs_
    std::deque<std::string> defaults_;                      // as text, in the order of specs_
    std::deque<std::variant<bool, int64_t, double, std::string>> spares_;
};

/// Not negative; plain numbers count `unit`.
Result<Duration> parse_duration(std::string_view text, Duration unit);

}  // namespace mooncake::store
