// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "device/device.h"

namespace mooncake {

/// Host memory: asks the kernel what is mapped, copies by CPU.
std::unique_ptr<Device> make_host_device();

// What stands behind it, for tests.
namespace detail {

/// The mapping that holds an address, or the next one above it.
struct HostMapping {
    uint64_t start = 0;
    uint64_t end = 0;
    bool readable = false;
    bool writable = false;
};

/// By /proc: exact, and touches nothing. kNotSupported: this kernel cannot be asked that way. kNotFound: nothing at or above the address.
Result<HostMapping> find_mapping(uint64_t address);
/// Walks the mappings of a range. Nothing: nothing is mapped where it begins.
Result<std::optional<MemoryInfo>> describe_by_mappings(uint64_t address, uint64_t length,
                                                       const std::function<Result<HostMapping>(uint64_t)>& find);
/// For kernels without that: exact about what is mapped; what may be read and written is judged by the first and the last page.
Result<std::optional<MemoryInfo>> describe_by_probing(uint64_t address, uint64_t length);

}  // namespace detail

}  // namespace mooncake
