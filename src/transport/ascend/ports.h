// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace mooncake::ascend {

/// A port of this host that no other process of ours takes while this lives: a lock on a file. Not thread-safe.
class PortLease {
public:
    PortLease() = default;
    /// kBusy: another process has it, or something listens there.
    static Result<PortLease> take(const std::string& host, uint16_t port);
    uint16_t port() const noexcept { return port_; }

private:
    PortLease(UniqueFd file, uint16_t port) : file_(std::move(file)), port_(port) {}

    UniqueFd file_;
    uint16_t port_ = 0;
};

constexpr uint32_t kPortsPerDevice = 100;

/// The ports of a device in the order in which they are to be tried: all of its window, from `seed` on, those last that the system hands out by itself.
/// kInvalidArgument: the window is not in the range of ports.
Result<std::vector<uint16_t>> ports_to_try(uint16_t base, int physical, uint64_t seed);

}  // namespace mooncake::ascend
