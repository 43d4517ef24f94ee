// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "device/device.h"

namespace mooncake {

/// Memory of ours that peers may address. Plain data; the engine's registry owns the real ones and hands out pointers that
/// stay valid while the memory is registered.
struct MemoryRegion {
    std::byte* address = nullptr;
    uint64_t length = 0;
    MemoryKind kind = MemoryKind::kHost;
    int device = 0;                 // GPU or NPU number; the NUMA node (or -1) of host memory
    std::string location;           // "cpu:0", "cuda:1", "*"
    bool remote_accessible = true;  // peers may read it
    bool writable = true;           // and write it
    int shared_fd = -1;             // memfd behind it, when we allocated it; peers may map it
    uint64_t shared_offset = 0;     // where the region starts in shared_fd
};

/// What a transport did to make a region reachable; undone by revoke() and destruction.
class Registration {
public:
    virtual ~Registration() = default;
    /// Forbids the region and waits until no access of any peer touches it any more. After an error (kBusy at the deadline)
    /// the region stays forbidden, but some access may still run: the memory must not be reused; call again.
    virtual Result<> revoke(Deadline deadline) = 0;
};

}  // namespace mooncake
