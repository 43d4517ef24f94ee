// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "device/cuda/driver.h"
#include "device/cuda/lane.h"
#include "device/device.h"

namespace mooncake::cuda {

/// How much is put on a stream at once: as long as nobody waits for it in vain who wants to stop the rest.
struct UnitLimits {
    uint64_t bytes = 0;
    size_t copies = 0;
};

/// Copies of one call on one stream, between memories that the GPU reaches: gathered, and put on the stream in units, of which two are under way
/// at once. However it ends, also by an exception, nothing is under way any more, unless the GPU is lost. Not thread-safe.
class CopyLane {
public:
    /// Of copies across a bus, and of those that stay within one GPU.
    static constexpr UnitLimits kAcross{.bytes = 16 << 20, .copies = 4096};
    static constexpr UnitLimits kInside{.bytes = 256 << 20, .copies = 4096};

    struct Copy {
        uint64_t to = 0;
        uint64_t from = 0;
        uint64_t length = 0;
        int64_t to_offset = 0, from_offset = 0;   // of pinned memory, for calls of several copies
        uint64_t to_memory = 0, from_memory = 0;  // which allocation or registration: no copy reaches over its end
        bool batched = true;
        bool by_kernel = false;  // the GPU itself reaches both ends
    };

    CopyLane(Driver& driver, Lanes& lanes, const Scope& scope, Direction direction, const UnitLimits& limits, abi::Stream stream)
        : driver_(driver), lanes_(lanes), scope_(scope), direction_(direction), limits_(limits), stream_(stream) {}
    /// As end().
    ~CopyLane();
    CopyLane(const CopyLane&) = delete;
    CopyLane& operator=(const CopyLane&) = delete;

    /// What is on the stream up to a point.
    struct Unit {
        abi::Event event = nullptr;         // behind it; null: none
        CopyKernel::Piece* list = nullptr;  // what a kernel reads meanwhile
    };

    Result<> add(const Copy& copy);
    /// Copies by the kernel at once, without a look at how they might be joined. The GPU itself reaches both ends; the kernel is ready.
    Result<> add_pieces(std::span<const CopyPart> parts, int64_t to_offset, int64_t from_offset);
    static bool worth_a_kernel(size_t copies, uint64_t bytes) noexcept;
    /// Puts what is gathered on the stream, for the caller to wait for and release().
    Result<Unit> mark();
    /// It is over.
    void release(Unit& unit) noexcept;
    /// Waits until nothing is under way any more, whatever happened before; `done` is passed on if that worked.
    Result<> end(Result<> done) noexcept;

private:
    static constexpr size_t kUnitsMax = 4;  // two, and what is marked at the end after errors

    /// Before something is put on the stream: whatever happens then, it can be waited for.
    Result<> take_event();
    void push(const Unit& unit) noexcept;
    void pop() noexcept;
    /// Puts what is gathered on the stream; at most one other unit is under way when it returns.
    Result<> flush();
    Result<> issue();
    Result<bool> issue_kernel();
    /// Of the list.
    Result<bool> launch(size_t count);
    Result<> flush_list(size_t count);
    Result<bool> issue_batch();
    Result<> wait_oldest();

    Driver& driver_;
    Lanes& lanes_;
    const Scope& scope_;
    const Direction direction_;
    const UnitLimits limits_;
    const abi::Stream stream_;
    std::vector<Copy> gathered_;
    uint64_t gathered_bytes_ = 0;
    std::array<Unit, kUnitsMax> under_way_;  // the oldest first
    size_t units_ = 0;
    abi::Event event_ = nullptr;         // for what is put on the stream next
    CopyKernel::Piece* list_ = nullptr;  // of a kernel with no event behind it
    bool unmarked_ = false;              // something is on the stream with no event behind it
};

/// Copies between memory of a GPU and pageable memory of the host, by way of a ring of pinned buffers: while the CPU has one the GPU has
/// the others. Not thread-safe.
class StagedCopy {
public:
    StagedCopy(Driver& driver, CopyLane& lane, Lanes& lanes, const Scope& scope, Direction direction)
        : driver_(driver), lane_(lane), lanes_(lanes), scope_(scope), to_host_(direction == Direction::kToHost) {}
    /// As end().
    ~StagedCopy();
    StagedCopy(const StagedCopy&) = delete;
    StagedCopy& operator=(const StagedCopy&) = delete;

    Result<> begin();
    Result<> add(uint64_t to, uint64_t from, uint64_t length, bool batched);
    Result<> flush();
    /// As CopyLane::end().
    Result<> end(Result<> done) noexcept;

private:
    struct HostPart {
        std::byte* host = nullptr;
        uint64_t offset = 0;
        uint64_t length = 0;
    };
    struct Slot {
        std::byte* memory = nullptr;
        std::vector<HostPart> parts;  // to the host: what is copied out when the GPU has filled it
        uint64_t used = 0;
        CopyLane::Unit unit;  // under way
    };

    /// Hands the slot that is being filled to the GPU and takes the oldest one.
    Result<> turn();
    /// Waits for the GPU's work on a slot and, towards the host, copies its bytes out.
    Result<> finish(Slot& slot);

    Driver& driver_;
    CopyLane& lane_;
    Lanes& lanes_;
    const Scope& scope_;
    const bool to_host_;
    Lanes::Ring ring_;
    std::array<Slot, Lanes::kSlots> slots_;
    size_t now_ = 0;  // the slot that is being filled
};

}  // namespace mooncake::cuda
