// SPDX-License-Identifier: Apache-2.0
#include "topology/memory_location.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <span>

#include "base/pages.h"
#include "topology/sysfs.h"

namespace mooncake {

namespace {

constexpr size_t kSamples = 16;

/// Moves nothing: without target nodes the call only asks.
int ask_kernel(std::span<void*> pages, std::span<int> nodes) noexcept {
    return ::syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) == 0 ? 0 : errno;
}

Result<> query_pages(const detail::AskNodes& ask, std::span<void*> pages, std::span<int> nodes) {
    const int error = ask(pages, nodes);
    if (error == 0) return {};
    if (error == EPERM || error == ENOSYS) return fail_errno(Code::kNotSupported, error, "the system does not tell the nodes of pages");
    return fail_errno(Code::kInternal, error, "cannot ask for the nodes of {} pages", pages.size());
}

/// The only node of this machine, -1 if it has several.
int only_node() {
    static const int node = [] {
        const auto nodes = sysfs::parse_cpu_list(sysfs::read_line("/sys/devices/system/node/online"));
        if (nodes.empty()) return 0;
        return nodes.size() == 1 ? nodes.front() : -1;
    }();
    return node;
}

}  // namespace

int detail::majority_node(const std::vector<int>& nodes) {
    std::map<int, size_t> counts;
    size_t known = 0;
    for (const int node : nodes) {
        if (node < 0) continue;
        ++known;
        ++counts[node];
    }
    for (const auto& [node, count] : counts)
        if (count * 2 > known) return node;
    return -1;
}

std::string detect_location(const void* address, uint64_t length) {
    return detail::detect_location(address, length, ask_kernel, only_node());
}

std::string detail::detect_location(const void* address, uint64_t length, const AskNodes& ask, int only_node) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    if (length == 0 || begin + length < begin) return "*";
    const uintptr_t first = begin & ~(page_bytes() - 1);
    const uint64_t page_count = (begin + length - 1 - first) / page_bytes() + 1;
    const size_t samples = std::min<uint64_t>(kSamples, page_count);
    std::array<void*, kSamples> pages;
    std::vector<int> nodes(samples, -ENOENT);
    for (size_t i = 0; i < samples; ++i) {
        // From the first page to the last; the product fits, since a page count has at most 52 bits.
        const uint64_t index = samples == 1 ? 0 : i * (page_count - 1) / (samples - 1);
        pages[i] = reinterpret_cast<void*>(first + index * page_bytes());
    }
    const int node = query_pages(ask, {pages.data(), samples}, nodes) ? majority_node(nodes) : only_node;
    return node < 0 ? "*" : format_text("cpu:{}", node);
}

}  // namespace mooncake
