// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/error.h"
#include "device/cuda/driver.h"
#include "device/cuda/lane.h"

namespace mooncake::cuda {

/// Copies of one call on one stream, between memories that the GPU reaches: gathered, and put on the stream in units of at most 16 MiB, of
/// which two are under way at once. Not thread-safe.
class CopyLane {
public:
    static constexpr uint64_t kUnitBytes = 16 << 20;
    static constexpr size_t kUnitCopies = 1024;

    struct Copy {
        uint64_t to = 0;
        uint64_t from = 0;
        uint64_t length = 0;
        int64_t to_offset = 0, from_offset = 0;  // of pinned memory, for calls of several copies
        bool batched = true;
    };

    CopyLane(Driver& driver, Lanes& lanes, const Scope& scope, abi::Stream stream)
        : driver_(driver), lanes_(lanes), scope_(scope), stream_(stream) {}
    ~CopyLane();
    CopyLane(const CopyLane&) = delete;
    CopyLane& operator=(const CopyLane&) = delete;

    Result<> add(const Copy& copy);
    /// Puts what is gathered on the stream, and gives the event behind it, which the caller waits for and puts back.
    Result<abi::Event> mark();
    /// Waits until nothing is under way any more, whatever happened before; `done` is passed on if that worked.
    Result<> end(Result<> done);

private:
    /// Puts what is gathered on the stream; at most one other unit is under way when it returns.
    Result<> flush();
    Result<> issue();
    Result<bool> issue_batch();
    Result<> wait_oldest();

    Driver& driver_;
    Lanes& lanes_;
    const Scope& scope_;
    const abi::Stream stream_;
    std::vector<Copy> gathered_;
    uint64_t gathered_bytes_ = 0;
    std::deque<abi::Event> under_way_;
    bool unmarked_ = false;  // something is on the stream with no event behind it
};

/// Copies between memory of a GPU and pageable memory of the host, by way of a pair of pinned buffers: while the GPU has one the CPU has the
/// other. Not thread-safe.
class StagedCopy {
public:
    StagedCopy(Driver& driver, CopyLane& lane, Lanes& lanes, const Scope& scope, Direction direction)
        : driver_(driver), lane_(lane), lanes_(lanes), scope_(scope), to_host_(direction == Direction::kToHost) {}

    Result<> begin();
    Result<> add(uint64_t to, uint64_t from, uint64_t length, bool batched);
    Result<> flush();
    /// Must be called after begin(): as CopyLane::end().
    Result<> end(Result<> done);

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
        abi::Event event = nullptr;  // under way
    };

    /// Hands the slot that is being filled to the GPU and takes the other one.
    Result<> turn();
    /// Waits for the GPU's work on a slot and, towards the host, copies its bytes out.
    Result<> finish(Slot& slot);

    Driver& driver_;
    CopyLane& lane_;
    Lanes& lanes_;
    const Scope& scope_;
    const bool to_host_;
    Lanes::Pair pair_;
    std::array<Slot, 2> slots_;
    size_t now_ = 0;  // the slot that is being filled
};

}  // namespace mooncake::cuda
