// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

// Small readers for sysfs. What is missing or unreadable reads as nothing: a kernel may lack any of these files.
namespace mooncake::sysfs {

/// The first line, without blanks around it; empty if unreadable.
std::string read_line(const std::filesystem::path& file);
/// A decimal number, or one with 0x in front.
std::optional<long> read_number(const std::filesystem::path& file);
/// Names in a folder, in natural order.
std::vector<std::string> list_names(const std::filesystem::path& folder);
/// "0-2,5" -> {0, 1, 2, 5}; stops at what makes no sense.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace mooncake::sysfs
