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
    DeviceCopies(const Devices& devices, CopyFailures& failures) : devices_(devices), failures_(failures) {}
    DeviceCopies(const DeviceCopies&) = delete;
    DeviceCopies& operator=(const DeviceCopies&) = delete;

    /// Whose piece it is, and who wants to look at the host's side of it.
    struct Owner {
        size_t slice = 0;
        Copier* copier = nullptr;          // or null
        const std::byte* local = nullptr;  // of the two ends
        bool ordered = false;              // as its slice
    };
    void add(const Owner& owner, MemoryKind to, MemoryKind from, const CopyPart& part);
    void flush();
    /// Nothing that is collected is copied.
    void drop() noexcept {
        parts_.clear();
        owners_.clear();
    }

private:
    void show(size_t part) const noexcept;

    const Devices& devices_;
    CopyFailures& failures_;
    MemoryKind to_ = MemoryKind::kHost, from_ = MemoryKind::kHost;  // of all that are collected
    std::vector<CopyPart> parts_;
    std::vector<Owner> owners_;
};

}  // namespace mooncake
