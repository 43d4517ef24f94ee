// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "metrics/metrics.h"
#include "transport/transport.h"

namespace mooncake {

/// Counts the bytes of memory of devices that take one path: "cuda_ipc", "cuda_fd", "staged_tcp". Thread-safe; copies count together.
class DeviceBytes {
public:
    /// Counts nothing.
    DeviceBytes() = default;
    /// Null: nobody reads it.
    DeviceBytes(metrics::Registry* registry, std::string_view path) {
        if (registry == nullptr) return;
        for (const Direction direction : {Direction::kRead, Direction::kWrite})
            counters_[static_cast<size_t>(direction)] = &registry->counter(
                "mooncake_device_bytes_total", "Bytes of memory of devices copied here for a peer or from one, by path.",
                {{"path", std::string(path)}, {"direction", direction == Direction::kRead ? "read" : "write"}});
    }
    /// As the one who asked for it sees the direction.
    void add(Direction direction, uint64_t bytes) const noexcept {
        if (metrics::Counter* const counter = counters_[static_cast<size_t>(direction)]; counter != nullptr) counter->add(bytes);
    }

private:
    std::array<metrics::Counter*, 2> counters_{};
};

}  // namespace mooncake
