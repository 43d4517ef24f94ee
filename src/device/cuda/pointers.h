// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "device/cuda/driver.h"
#include "device/device.h"

// What CUDA says about addresses. Nothing here touches memory or makes a context.
namespace mooncake::cuda {

enum class Place : uint8_t {
    kUnknown,   // CUDA cannot be asked any more: a GPU has failed
    kPageable,  // CUDA does not know it: host memory, or none
    kPinned,    // host memory that a GPU reaches
    kDevice,    // memory of a GPU, or managed memory
};

/// One address, and the bytes around it of which the same can be said.
struct Pointer {
    Place place = Place::kPageable;
    bool managed = false;
    int device = -1;
    uint64_t start = 0;         // of device memory: of one mapping; of pinned memory: of its registration
    uint64_t length = 0;        // 0: nobody knows
    uint64_t reservation = 0;   // where the range of addresses begins that was reserved, or pinned, at once
    uint64_t allocation = 0;    // never given twice in a process
    int64_t device_offset = 0;  // pinned memory: what a GPU adds to its address

    bool holds(uint64_t address, uint64_t bytes) const noexcept {
        return address >= start && address - start < length && bytes <= length - (address - start);
    }
};

/// Asks about one address. Unknown memory is pageable, no error.
Result<Pointer> ask(Driver& driver, uint64_t address);

/// What is mapped in a range that is one memory, mapping by mapping; none: it is not a GPU's. Else as Device::describe().
Result<std::vector<Pointer>> mappings_of(Driver& driver, uint64_t address, uint64_t length);

}  // namespace mooncake::cuda
