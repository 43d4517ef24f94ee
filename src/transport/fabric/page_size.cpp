// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "transport/fabric/plan.h"

namespace mooncake::fabric {

namespace {

constexpr uint64_t kSmallestPage = 4096;
constexpr std::string_view kPageField = "KernelPageSize:";

struct Mapping {
    uint64_t start = 0, end = 0;
};

std::optional<uint64_t> number(std::string_view text, int base) {
    uint64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

/// "7f12a000-7f12b000 rw-p ..." begins a mapping.
std::optional<Mapping> mapping_in(std::string_view line) {
    const size_t dash = line.find('-'), blank = line.find(' ');
    if (dash == std::string_view::npos || blank == std::string_view::npos || dash > blank) return std::nullopt;
    const auto start = number(line.substr(0, dash), 16), end = number(line.substr(dash + 1, blank - dash - 1), 16);
    if (!start || !end || *start >= *end) return std::nullopt;
    return Mapping{.start = *start, .end = *end};
}

/// "KernelPageSize:     2048 kB"
std::optional<uint64_t> page_in(std::string_view line) {
    if (!line.starts_with(kPageField)) return std::nullopt;
    line.remove_prefix(kPageField.size());
    const size_t first = line.find_first_not_of(' ');
    if (first == std::string_view::npos) return std::nullopt;
    line.remove_prefix(first);
    const auto kilobytes = number(line.substr(0, line.find(' ')), 10);
    if (!kilobytes || *kilobytes == 0 || *kilobytes > (1 << 30) || (*kilobytes & (*kilobytes - 1)) != 0) return std::nullopt;
    return *kilobytes << 10;
}

/// Collects the smallest page of the mappings that a range touches, line by line.
class Finder {
public:
    Finder(uint64_t address, uint64_t length) : start_(address), end_(address + length) {}

    void line(std::string_view text) {
        if (const auto mapping = mapping_in(text)) inside_ = mapping->start < end_ && start_ < mapping->end;
        else if (const auto page = inside_ ? page_in(text) : std::nullopt) smallest_ = std::min(smallest_, *page);
    }
    uint64_t answer() const { return smallest_ == UINT64_MAX ? kSmallestPage : smallest_; }

private:
    uint64_t start_, end_;
    bool inside_ = false;
    uint64_t smallest_ = UINT64_MAX;
};

}  // namespace

uint64_t page_bytes_in(std::string_view smaps, uint64_t address, uint64_t length) {
    Finder finder(address, length);
    while (!smaps.empty()) {
        const size_t end = std::min(smaps.find('\n'), smaps.size());
        finder.line(smaps.substr(0, end));
        smaps.remove_prefix(std::min(end + 1, smaps.size()));
    }
    return finder.answer();
}

uint64_t page_bytes_of(uint64_t address, uint64_t length) {
    Finder finder(address, length);
    std::ifstream file("/proc/self/smaps");
    for (std::string line; std::getline(file, line);) finder.line(line);
    return finder.answer();
}

}  // namespace mooncake::fabric
