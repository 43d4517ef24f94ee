// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/memory_probe.h"
#include "engine/engine.h"
#include "store/member/write_fence.h"

namespace mooncake::store {

/// Copies a planned write piece by piece, each only while the right to write holds; what comes later is left out. For bytes that one of our own
/// threads copies into a segment: nobody at the other side could stop them. Must outlive the transfers of its blocks. Thread-safe.
class WriteGuard {
public:
    static constexpr uint64_t kPieceBytes = 1 << 20;

    explicit WriteGuard(const WriteFence::Pass& right) : right_(right) {}
    /// Whether something was left out: the write has failed.
    bool left_out() const noexcept { return left_out_.load(std::memory_order_acquire); }

    /// Lets the blocks be copied under guard, from now on.
    void watch(std::span<Block> blocks) {
        auto& copiers = copiers_.emplace_back(std::make_unique<Guarded[]>(blocks.size()));
        for (size_t i = 0; i < blocks.size(); ++i) {
            copiers[i].guard = this;
            copiers[i].by = blocks[i].copier;
            blocks[i].copier = &copiers[i];
        }
    }
    /// As if through such a block; host memory.
    void copy(std::byte* to, const std::byte* from, uint64_t length, Copier* by) noexcept {
        for (uint64_t at = 0; at < length && allows(); at += kPieceBytes) {
            const uint64_t now = std::min(length - at, kPieceBytes);
            if (by != nullptr) by->copy(to + at, from + at, now);
            else std::memcpy(to + at, from + at, now);
        }
    }
    /// The same, to memory that may be gone: false.
    bool copy_if_there(std::byte* to, const std::byte* from, uint64_t length, Copier* by) noexcept {
        for (uint64_t at = 0; at < length && allows(); at += kPieceBytes) {
            const uint64_t now = std::min(length - at, kPieceBytes);
            if (!mooncake::copy_if_there(to + at, from + at, now)) return false;
            if (by != nullptr) by->passed(from + at, from + at, now);
        }
        return true;
    }
    /// Asked before a piece that somebody else copies. False: it is left out.
    bool allows() noexcept {
        if (right_.holds()) return true;
        left_out_.store(true, std::memory_order_release);
        return false;
    }

private:
    struct Guarded final : Copier {
        void begin(const std::byte* local, uint64_t length) noexcept override {
            if (by != nullptr) by->begin(local, length);
        }
        void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override { guard->copy(to, from, length, by); }
        void passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept override {
            if (by != nullptr) by->passed(local, bytes, length);
        }
        WriteGuard* guard = nullptr;
        Copier* by = nullptr;  // or null
    };

    const WriteFence::Pass& right_;
    std::atomic<bool> left_out_{false};
    std::vector<std::unique_ptr<Guarded[]>> copiers_;
};

}  // namespace mooncake::store
