// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
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

/// What a test does with the device behind such memory.
class KindDevice {
public:
    virtual ~KindDevice() = default;
    virtual std::unique_ptr<KindMemory> allocate(uint64_t length) = 0;
    virtual uint64_t copies() const = 0;
    /// From now on it cannot copy.
    virtual void break_down() = 0;
    /// From now on copies begin and do not end, until resume().
    virtual void hold() = 0;
    virtual void resume() = 0;
    /// How many are held now.
    virtual unsigned held() const = 0;
};

/// Which device without hardware.
enum class KindSource : uint8_t {
    kFakeDevice,   // in place of ours
    kFakeLibcuda,  // ours, on the libcuda that the tests build
    kFakeChunks,   // likewise; its memory is mapped in chunks
};

/// Makes memory of the kinds a test wants: the host's, or that of a device without hardware, whose addresses trap who touches them.
class KindAllocator {
public:
    explicit KindAllocator(KindSource source = KindSource::kFakeDevice);
    ~KindAllocator();

    std::unique_ptr<KindMemory> allocate(MemoryKind kind, uint64_t length);
    /// For the transports.
    Devices& devices() noexcept { return *devices_; }
    KindDevice& device() noexcept { return *device_; }

private:
    std::unique_ptr<Devices> devices_;
    std::unique_ptr<KindDevice> device_;
};

}  // namespace mooncake::testing
