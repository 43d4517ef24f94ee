// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

// Where memory is: location strings are "cpu:<NUMA node>", "cuda:<n>", "npu:<n>", "*" (not known), or
// "segments:<page bytes>:<n0>,<n1>,..." (equal parts on these nodes). Strings given by the user are taken as they are.
namespace mooncake {

/// The NUMA node that holds the page at `address`. Never touches it. kNotFound: not mapped, or nobody touched the page yet.
/// kNotSupported: the system refuses to say (containers often forbid the call).
Result<int> numa_node_of(const void* address);

/// "cpu:N" when most of the touched pages of a range are on node N, judged by a few spread over it; "*" otherwise.
std::string detect_location(const void* address, uint64_t length);

/// A buffer whose equal parts lie on different nodes.
struct SegmentedLocation {
    uint64_t page_bytes = 0;
    std::vector<int> nodes;

    /// kInvalidArgument if the text is not of the form above.
    static Result<SegmentedLocation> parse(std::string_view text);
    /// The node of the byte at `offset` of a buffer of `length` bytes. Parts are whole pages; the last one takes the rest.
    int node_at(uint64_t offset, uint64_t length) const noexcept;
};

// What stands behind the functions above, with the system as an argument.
namespace detail {
/// Fills in the node of each page, or a negative errno for one that is not there. Returns 0, or the errno of a refusal.
using AskNodes = std::function<int(std::span<void*> pages, std::span<int> nodes)>;

Result<int> numa_node_of(const void* address, const AskNodes& ask);
/// `only_node`: of a machine that has but one, -1 otherwise; the answer where the system does not tell.
std::string detect_location(const void* address, uint64_t length, const AskNodes& ask, int only_node);
/// The node of most entries, -1 if none has more than half. Negative entries (pages nobody touched) do not count.
int majority_node(const std::vector<int>& nodes);
}  // namespace detail

}  // namespace mooncake
