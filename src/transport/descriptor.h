// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/incarnation.h"
#include "device/device.h"

namespace mooncake {

struct BufferRecord {
    uint64_t address = 0;
    uint64_t length = 0;
    std::string location;
};

/// Registered memory that is not the host's.
struct DeviceRange {
    uint64_t address = 0;
    uint64_t length = 0;
    MemoryKind kind = MemoryKind::kHost;
    int device = -1;

    uint64_t end() const noexcept { return address + length; }
    bool operator==(const DeviceRange&) const = default;
};

/// What a process tells others about the memory it lends: who it is, where its control port is, and one opaque endpoint per
/// transport. The transports check every access themselves, so buffers are only listed for people and tools that ask.
struct SegmentDescriptor {
    std::string name;  // "10.0.0.1:15123", or the name given in directory modes
    Incarnation incarnation;
    std::string host;  // where rpc_port and the transports' ports listen
    uint16_t rpc_port = 0;
    std::string boot_id;                           // equal on one host: the same-host transports may be tried
    std::map<std::string, std::string> endpoints;  // transport name -> its Transport::endpoint()
    std::vector<BufferRecord> buffers;             // may be empty: see above
    std::vector<DeviceRange> device_memory;        // by address, apart; initiators choose the transport by it
};

}  // namespace mooncake
