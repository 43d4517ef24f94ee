// SPDX-License-Identifier: Apache-2.0
#include "topology/sysfs.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "topology/topology.h"

namespace mooncake::sysfs {

namespace {

/// Cuts a number off the front of `text`.
std::optional<int> take_number(std::string_view& text) {
    int number = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (status != std::errc() || number < 0) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return number;
}

}  // namespace

std::string read_line(const std::filesystem::path& file) {
    std::ifstream stream(file);
    std::string line;
    std::getline(stream, line);
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) return {};
    return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

std::optional<long> read_number(const std::filesystem::path& file) {
    const std::string line = read_line(file);
    const bool hex = line.starts_with("0x");
    const char* const begin = line.data() + (hex ? 2 : 0);
    const char* const end = line.data() + line.size();
    long number = 0;
    const auto [stop, status] = std::from_chars(begin, end, number, hex ? 16 : 10);
    if (status != std::errc() || stop != end) return std::nullopt;
    return number;
}

std::vector<std::string> list_names(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    std::error_code status;
    for (std::filesystem::directory_iterator entry(folder, status), end; !status && entry != end; entry.increment(status))
        names.push_back(entry->path().filename().string());
    std::sort(names.begin(), names.end(), NaturalOrder());
    return names;
}

std::vector<int> parse_cpu_list(std::string_view text) {
    constexpr int kNumberMax = 1 << 16;  // a wrong file must not make us fill the memory
    std::vector<int> numbers;
    while (!text.empty()) {
        const auto first = take_number(text);
        if (!first) break;
        auto last = first;
        if (text.starts_with('-')) {
            text.remove_prefix(1);
            last = take_number(text);
        }
        if (!last || *last > kNumberMax) break;
        for (int number = *first; number <= *last; ++number) numbers.push_back(number);
        if (!text.starts_with(',')) break;
        text.remove_prefix(1);
    }
    return numbers;
}

}  // namespace mooncake::sysfs
