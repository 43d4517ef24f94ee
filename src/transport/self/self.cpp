// SPDX-License-Identifier: Apache-2.0
#include "transport/self/self.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "transport/copy_peer.h"
#include "transport/cross_memory.h"

namespace mooncake {

namespace {

constexpr Capabilities kCapabilities{.name = "self", .reach = Reach::kSameProcess, .rank = 0, .maps_memory = true};

uint64_t address_of(const std::byte* pointer) noexcept { return reinterpret_cast<uint64_t>(pointer); }

bool overlapping(const Slice& slice) noexcept {
    const uint64_t local = address_of(slice.local);
    return local < slice.remote ? slice.remote - local < slice.length : local - slice.remote < slice.length;
}

/// Our own memory. Every piece is checked and copied within one section of the access table; no section is opened inside another.
class SelfPeer final : public CopyPeer {
public:
    SelfPeer(CopyPool& pool, AccessTable& access) : CopyPeer(pool), access_(access) {}
    ~SelfPeer() override { stop(); }

private:
    void copy(const CopyChunk& chunk, CopyFailures& failures) override;
    /// Overlapping source and destination are copied as by memmove: in one order, by one thread.
    bool divisible(Direction, const Slice& slice) const noexcept override { return !overlapping(slice); }

    Result<> copy_overlapping(Direction direction, const Slice& slice);
    Result<> copy_checked(const CopyChunk& chunk, const Slice& slice);
    Result<> check(Direction direction, const Slice& slice) const;

    AccessTable& access_;
};

Error unmapped(const Slice& slice, const CrossResult& result) {
    if (result.fault == CrossResult::Fault::kSystem)
        return Error(Code::kNotSupported, "the system does not let us check unregistered memory: register it", result.error);
    return error(Code::kNotRegistered, "{} memory at {:#x} is not mapped",
                 result.fault == CrossResult::Fault::kLocal ? "local" : "registered",
                 result.fault == CrossResult::Fault::kLocal ? address_of(slice.local) : slice.remote);
}

/// Copies one piece of a slice that does not overlap itself.
Result<> copy_piece(Direction direction, const Slice& slice, uint64_t offset, uint64_t length) {
    std::byte* const local = slice.local + offset;
    auto* const remote = reinterpret_cast<std::byte*>(slice.remote + offset);
    if (may_touch_local(direction, slice)) {
        if (direction == Direction::kRead) slice.copy(local, remote, length);
        else slice.copy(remote, local, length);
        return {};
    }
    const CrossPiece piece{.local = local, .remote = slice.remote + offset, .length = length};
    const CrossResult result = cross_copy(::getpid(), direction, std::span(&piece, 1));
    if (result.fault != CrossResult::Fault::kNone) return Unexpected(unmapped(slice, result));
    return {};
}

/// As copy_piece(), for source and destination that overlap within the piece.
Result<> move_piece(Direction direction, const Slice& slice, uint64_t offset, std::span<std::byte> bounce) {
    std::byte* const local = slice.local + offset;
    auto* const remote = reinterpret_cast<std::byte*>(slice.remote + offset);
    std::byte* const from = direction == Direction::kRead ? remote : local;
    std::byte* const to = direction == Direction::kRead ? local : remote;
    if (may_touch_local(direction, slice)) {
        std::memmove(to, from, bounce.size());
        return {};
    }
    const auto by_kernel = [&](Direction way, std::byte* there) -> Result<> {
        const CrossPiece piece{.local = bounce.data(), .remote = address_of(there), .length = bounce.size()};
        CrossResult result = cross_copy(::getpid(), way, std::span(&piece, 1));
        if (result.fault == CrossResult::Fault::kNone) return {};
        if (result.fault != CrossResult::Fault::kSystem) result.fault = there == local ? CrossResult::Fault::kLocal : CrossResult::Fault::kRemote;
        return Unexpected(unmapped(slice, result));
    };
    MC_RETURN_IF_ERROR(by_kernel(Direction::kRead, from));
    return by_kernel(Direction::kWrite, to);
}

Result<> SelfPeer::check(Direction direction, const Slice& slice) const {
    const AddressRange range{slice.remote, slice.length};
    const Access access = direction == Direction::kRead ? Access::kRead : Access::kWrite;
    if (!of_host(slice)) return Unexpected(device_memory(slice));
    if (access_.covers(range, access)) return {};
    return Unexpected(Error(access_.refusal_code(range), access_.refusal(range, access)));
}

Result<> SelfPeer::copy_overlapping(Direction direction, const Slice& slice) {
    if (address_of(slice.local) == slice.remote) {
        const auto section = access_.section();
        return check(direction, slice);
    }
    constexpr uint64_t kStep = 64 << 10;
    // The end that the other one would overwrite goes first.
    const bool forward = (direction == Direction::kRead) == (address_of(slice.local) < slice.remote);
    std::vector<std::byte> bounce(std::min(kStep, slice.length));
    for (uint64_t done = 0; done < slice.length;) {
        const uint64_t length = std::min(kStep, slice.length - done);
        const uint64_t offset = forward ? done : slice.length - done - length;
        const auto section = access_.section();
        MC_RETURN_IF_ERROR(check(direction, slice));
        MC_RETURN_IF_ERROR(move_piece(direction, slice, offset, std::span(bounce).first(length)));
        done += length;
    }
    return {};
}

Result<> SelfPeer::copy_checked(const CopyChunk& chunk, const Slice& slice) {
    // Also a part asks for its whole slice, so that of a slice that is refused nothing at all is copied.
    MC_RETURN_IF_ERROR(check(chunk.direction, slice));
    return copy_piece(chunk.direction, slice, chunk.offset, chunk.part() ? chunk.length : slice.length);
}

void SelfPeer::copy(const CopyChunk& chunk, CopyFailures& failures) {
    const auto note = [&failures](size_t i, Result<> done) {
        if (!done) failures.emplace_back(i, std::move(done).error());
    };
    for (size_t i = 0; i < chunk.slices.size();) {
        if (overlapping(chunk.slices[i])) {
            // It may be long, so it opens one section after the other by itself.
            note(i, copy_overlapping(chunk.direction, chunk.slices[i]));
            ++i;
            continue;
        }
        const auto section = access_.section();
        for (; i < chunk.slices.size() && !overlapping(chunk.slices[i]); ++i) note(i, copy_checked(chunk, chunk.slices[i]));
    }
}

class SelfTransport final : public Transport {
public:
    explicit SelfTransport(const TransportContext& context) : incarnation_(context.incarnation), access_(context.access) {}

    const Capabilities& capabilities() const noexcept override { return kCapabilities; }
    std::string endpoint() const override { return {}; }
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion&) override { return nullptr; }
    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline) override {
        if (descriptor.incarnation != incarnation_) return fail(Code::kNotSupported, "{} is not this process", descriptor.name);
        return std::make_unique<SelfPeer>(pool_, access_);
    }

private:
    const Incarnation incarnation_;
    AccessTable& access_;
    CopyPool pool_{"mc-copy"};
};

}  // namespace

Result<std::unique_ptr<Transport>> make_self_transport(const TransportContext& context) { return std::make_unique<SelfTransport>(context); }

}  // namespace mooncake
