// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "device/cuda/driver.h"

namespace mooncake::cuda {

/// A kernel that copies many small pieces at once, where the driver's own calls take a microsecond for each. It is text, which the driver
/// compiles when it is first needed; where it cannot, others copy. Thread-safe; callers are inside a Scope of the device.
class CopyKernel {
public:
    /// As the kernel reads it. Both ends are addresses that the GPU itself reaches: its own memory, or pinned memory.
    struct Piece {
        uint64_t from = 0;
        uint64_t to = 0;
        uint64_t length = 0;
    };
    static constexpr size_t kPiecesMax = 8192;  // of one launch
    static constexpr uint64_t kListBytes = kPiecesMax * sizeof(Piece);
    static constexpr uint64_t kPieceBytes = 16 << 10;  // what one warp copies at a time, if there are not too many
    static constexpr uint32_t kThreads = 512;
    // So many fill a bus, and so many the most of what one GPU can do by itself; the others are left to its owner.
    static constexpr uint32_t kBlocksAcross = 16, kBlocksInside = 32;

    explicit CopyKernel(Driver& driver, int device) : driver_(driver), device_(device) {}
    CopyKernel(const CopyKernel&) = delete;
    CopyKernel& operator=(const CopyKernel&) = delete;

    /// False: it cannot be had on this GPU, and why has been logged. Compiles it when first asked.
    bool ready(const Scope& scope);
    /// Puts it on a stream. The list is pinned memory and stays as it is until the GPU is done. False: not this time, and nothing was begun.
    Result<bool> launch(const Scope& scope, abi::Stream stream, std::span<const Piece> list, uint32_t blocks_max);
    void give_back(const Scope& scope);

    static const char* text() noexcept;
    static constexpr const char* kName = "mc_copy_pieces";

private:
    enum class State : uint8_t { kUntried, kReady, kUnusable };

    State load(const Scope& scope) MC_REQUIRES(mutex_);

    Driver& driver_;
    const int device_;
    std::atomic<State> state_{State::kUntried};
    Mutex mutex_;
    abi::Module module_ MC_GUARDED_BY(mutex_) = nullptr;
    std::atomic<abi::Function> function_{nullptr};
};

}  // namespace mooncake::cuda
