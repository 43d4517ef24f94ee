// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

// Where memory is: location strings are "cpu:<NUMA node>", "cuda:<n>", "npu:<n>", "*" (not known), or
// "segments:<page bytes>:<n0>,<n1>,..." (equal parts on these nodes). Strings given by the user are taken as they are, and told to peers.
namespace mooncake {

/// "cpu:N" when most of the touched pages of a range are on node N, judged by a few spread over it; "*" otherwise.
std::string detect_location(const void* address, uint64_t length);

// What stands behind the function above, with the system as an argument.
namespace detail {
/// Fills in the node of each page, or a negative errno for one that is not there. Returns 0, or the errno of a refusal.
using AskNodes = std::function<int(std::span<void*> pages, std::span<int> nodes)>;

/// `only_node`: of a machine that has but one, -1 otherwise; the answer where the system does not tell.
std::string detect_location(const void* address, uint64_t length, const AskNodes& ask, int only_node);
/// The node of most entries, -1 if none has more than half. Negative entries (pages nobody touched) do not count.
int majority_node(const std::vector<int>& nodes);
}  // namespace detail

}  // namespace mooncake
