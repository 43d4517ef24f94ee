// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "engine/engine.h"

namespace mooncake::bench {

/// Registered memory with every page touched, given back when destroyed. Must not outlive the engine. One thread.
class Buffer {
public:
    /// `managed`: from the engine, so that peers on the same host can map it; else the program's own memory.
    static Result<Buffer> create(Engine& engine, uint64_t bytes, bool managed);
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&&) = delete;
    ~Buffer();

    std::byte* data() const noexcept { return data_; }
    uint64_t size() const noexcept { return size_; }

private:
    Buffer(Engine& engine, std::byte* data, uint64_t size, bool managed) noexcept
        : engine_(&engine), data_(data), size_(size), managed_(managed) {}

    Engine* engine_;
    std::byte* data_;
    uint64_t size_;
    bool managed_;
};

}  // namespace mooncake::bench
