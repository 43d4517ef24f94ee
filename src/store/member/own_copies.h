// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "engine/engine.h"
#include "transport/copy_device.h"

namespace mooncake::store {

/// Copies between memory of a caller's device and host memory of this process that is read or written without a transfer: collected, so that scattered
/// pieces go together, and copied in steps. Not thread-safe.
class OwnCopies {
public:
    /// Of a device's work: a third of a millisecond. What it has copied is still in a cache when it is looked at.
    static constexpr uint64_t kStepBytes = 16 << 20;

    /// `may_go_on`: asked before each step; when it says no, nothing more is copied.
    OwnCopies(const Engine& engine, Direction direction, std::function<bool()> may_go_on = {})
        : direction_(direction), may_go_on_(std::move(may_go_on)), copies_(engine.devices(), failures_) {}

    /// A block whose local side is memory of this kind, not the host's, and whose remote side is here. `item`: whose it is, for the failures.
    void add(size_t item, const Block& block, MemoryKind kind) {
        if (block.copier != nullptr) block.copier->begin(block.local, block.length);
        for (uint64_t at = 0; at < block.length;) {
            const uint64_t length = std::min(block.length - at, kStepBytes - bytes_);
            auto* const here = reinterpret_cast<std::byte*>(block.remote + at);
            const DeviceCopies::Owner owner{.slice = item, .copier = block.copier, .local = block.local + at};
            if (direction_ == Direction::kRead)
                copies_.add(owner, kind, MemoryKind::kHost, {.to = block.local + at, .from = here, .length = length});
            else copies_.add(owner, MemoryKind::kHost, kind, {.to = here, .from = block.local + at, .length = length});
            bytes_ += length;
            at += length;
            if (bytes_ == kStepBytes) flush();
        }
    }
    void flush() {
        bytes_ = 0;
        if (may_go_on_ && !may_go_on_()) copies_.drop();
        else copies_.flush();
    }
    /// After flush().
    const CopyFailures& failures() const noexcept { return failures_; }

private:
    const Direction direction_;
    const std::function<bool()> may_go_on_;
    CopyFailures failures_;
    DeviceCopies copies_;
    uint64_t bytes_ = 0;
};

}  // namespace mooncake::store
