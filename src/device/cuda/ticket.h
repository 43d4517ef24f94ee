// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "device/cuda/abi.h"
#include "device/device.h"

namespace mooncake::cuda {

/// How another process of this host reaches an allocation. The numbers travel; who does not know one refuses the ticket.
enum class Way : uint32_t {
    kIpc = 1,         // a handle for the whole of what cudaMalloc gave
    kDescriptor = 2,  // a file for one chunk of memory that is mapped at reserved addresses
    kPool = 3,        // a file for a pool, and the place of an allocation in it
};

constexpr std::string_view to_string(Way way) noexcept {
    switch (way) {
        case Way::kIpc: return "cuda_ipc";
        case Way::kDescriptor: return "cuda_fd";
        case Way::kPool: return "cuda_pool";
    }
    return "cuda";
}

/// What a MemoryTicket holds.
struct Ticket {
    Way way = Way::kIpc;
    uint32_t unused = 0;
    uint64_t owner = 0;  // tells its process from all others
    uint64_t base = 0, length = 0;
    abi::Uuid uuid;
    union {
        abi::IpcHandle handle;  // kIpc
        abi::PoolPointer pointer;
        struct {
            uint64_t reservation, reserved;  // the addresses at its owner's around the chunk
        } chunk;
    };
    uint64_t allocation = 0;  // not kIpc: tells it from another at the same address
    uint64_t pool = 0;        // tells the pools of its owner apart

    Ticket() noexcept : handle{} {}
    explicit Ticket(const MemoryTicket& bytes) noexcept : Ticket() { std::memcpy(static_cast<void*>(this), bytes.data(), bytes.size()); }
    MemoryTicket bytes() const noexcept {
        MemoryTicket all;
        std::memcpy(all.data(), this, all.size());
        return all;
    }
};
static_assert(sizeof(Ticket) == sizeof(MemoryTicket) && std::is_trivially_copyable_v<Ticket>);

}  // namespace mooncake::cuda
