// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/device.h"
#include "transport/copy_peer.h"

namespace mooncake {

/// The pieces of a chunk that a device copies: collected, so that many small ones cost one call, then copied by flush(). Their memory, host
/// memory included, must be there until then. Not thread-safe.
class DeviceCopies {
public:
    DeviceCopies(const Devices& devices, CopyFailures& failures, std::span<const Slice> slices)
        : devices_(devices), failures_(failures), slices_(slices) {}
    DeviceCopies(const DeviceCopies&) = delete;
    DeviceCopies& operator=(const DeviceCopies&) = delete;

    /// `slice`: whose piece it is.
    void add(size_t slice, MemoryKind to, MemoryKind from, const CopyPart& part);
    void flush();

private:
    const Devices& devices_;
    CopyFailures& failures_;
    const std::span<const Slice> slices_;
    MemoryKind to_ = MemoryKind::kHost, from_ = MemoryKind::kHost;  // of all that are collected
    std::vector<CopyPart> parts_;
    std::vector<size_t> slice_of_;
};

}  // namespace mooncake
