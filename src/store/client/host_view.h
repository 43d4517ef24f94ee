// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "store/client/values.h"

namespace mooncake::store {

/// Shows the CPU bytes of any memory: those of a device through a buffer, which is made when first needed. Borrows the engine. Not thread-safe.
class HostView {
public:
    static constexpr uint64_t kBytesMax = 1 << 20;

    explicit HostView(const Engine& engine) : engine_(engine) {}

    /// [begin, end) of what the pieces hold together, no more than kBytesMax; good until the next call.
    Result<std::span<const std::byte>> look(std::span<const Piece> pieces, uint64_t begin, uint64_t end);

private:
    /// Brings to the buffer what is collected, all of one kind.
    Result<> fetch(MemoryKind kind);

    const Engine& engine_;
    std::unique_ptr<std::byte[]> buffer_;
    std::vector<CopyPart> parts_;
};

}  // namespace mooncake::store
