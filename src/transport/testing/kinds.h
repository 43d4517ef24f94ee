// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/testing/fake_device.h"
#include "transport/memory.h"

namespace mooncake::testing {

/// Memory of one kind for a test: it is filled and looked at without being touched by CPU where that is not allowed. Not thread-safe.
class KindMemory {
public:
    virtual ~KindMemory() = default;
    virtual MemoryRegion region() const = 0;
    virtual void write(std::span<const std::byte> from) = 0;
    virtual std::vector<std::byte> read() const = 0;

    std::byte* data() const { return region().address; }
    uint64_t address() const { return reinterpret_cast<uint64_t>(data()); }
};

/// Makes memory of the kinds a test wants: the host's, or that of a device without hardware, whose addresses trap who touches them.
class KindAllocator {
public:
    KindAllocator();

    std::unique_ptr<KindMemory> allocate(MemoryKind kind, uint64_t length);
    /// For the transports.
    Devices& devices() noexcept { return *devices_; }
    FakeDevice& device() noexcept { return *fake_; }

private:
    FakeDevice* fake_ = nullptr;  // belongs to devices_
    std::unique_ptr<Devices> devices_;
};

}  // namespace mooncake::testing
