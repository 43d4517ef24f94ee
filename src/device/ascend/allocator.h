// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "device/ascend/library.h"

// Host memory that NPUs reach: pinned by the runtime, or made of physical pages that other hosts can be given ("fabric").
namespace mooncake::ascend {

/// Memory that gives itself back in the way it was made, whatever has changed since. Not thread-safe.
class HostAllocation {
public:
    struct What {
        std::byte* address = nullptr;
        uint64_t length = 0;      // as it is, which may be less than was wished for
        uint64_t page_bytes = 0;  // 0: nobody knows
        int numa_node = -1;       // -1: anywhere
        int device = -1;          // whose context it was made in
    };
    HostAllocation(const What& what, std::function<void()> release) : what_(what), release_(std::move(release)) {}
    ~HostAllocation() { release_(); }
    HostAllocation(const HostAllocation&) = delete;
    HostAllocation& operator=(const HostAllocation&) = delete;

    const What& what() const noexcept { return what_; }

private:
    const What what_;
    const std::function<void()> release_;
};

/// One way to get pages: which, and whether only on the device's own NUMA node.
struct PageAttempt {
    uint32_t attribute = abi::kPages2M;
    uint64_t page_bytes = 0;
    bool near = false;
};
/// From the best to the last.
inline constexpr PageAttempt kPageLadder[] = {
    {abi::kPages1G, uint64_t{1} << 30, true}, {abi::kPages1G, uint64_t{1} << 30, false}, {abi::kPages2M, uint64_t{2} << 20, false}};

/// The node with fabric memory that is near a device: four of them share one, and only every second node has any.
constexpr int near_node(int physical) noexcept { return physical / 4 * 2; }

/// For plain memory of a pool.
Result<std::unique_ptr<HostAllocation>> allocate_pinned(std::shared_ptr<const Library> library, int device, uint64_t length);
/// Fabric memory: by the vendor's own allocator where there is one (and then by no other), else by the ladder. kInvalidArgument: not whole pages of 2 MiB; kNotSupported:
/// the library has neither; kNoSpace, with each attempt and its answer.
Result<std::unique_ptr<HostAllocation>> allocate_fabric(std::shared_ptr<const Library> library, int device, uint64_t length,
                                                        std::span<const PageAttempt> ladder = kPageLadder);

/// The sizes to try for a wish, from all of it to half of it, in whole GiB.
std::vector<uint64_t> best_effort_lengths(uint64_t wish);

}  // namespace mooncake::ascend
