// SPDX-License-Identifier: Apache-2.0
#include "transport/self/self.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "transport/copy_device.h"
#include "transport/copy_peer.h"
#include "transport/cross_memory.h"

namespace mooncake {

namespace {

/// Whatever two kinds of memory somebody in this process copies between.
KindPairs pairs_of(const Devices& devices) {
    KindPairs pairs;
    for (size_t local = 0; local < kMemoryKinds; ++local)
        for (size_t remote = 0; remote < kMemoryKinds; ++remote) {
            const KindPair pair{static_cast<MemoryKind>(local), static_cast<MemoryKind>(remote)};
            if (devices.between(pair.local, pair.remote) != nullptr) pairs.add(pair);
        }
    return pairs;
}

uint64_t address_of(const std::byte* pointer) noexcept { return reinterpret_cast<uint64_t>(pointer); }

bool overlapping(const Slice& slice) noexcept {
    const uint64_t local = address_of(slice.local);
    return local < slice.remote ? slice.remote - local < slice.length : local - slice.remote < slice.length;
}

/// Our own memory. Every piece is checked and copied within one section of the access table; no section is opened inside another.
class SelfPeer final : public CopyPeer {
public:
    SelfPeer(CopyPool& pool, AccessTable& access, const Devices& devices) : CopyPeer(pool), access_(access), devices_(devices) {}
    ~SelfPeer() override { stop(); }

private:
    void copy(const CopyChunk& chunk, CopyFailures& failures) override;
    /// Overlapping source and destination are copied as by memmove: in one order, by one thread.
    bool divisible(Direction, const Slice& slice) const noexcept override { return !overlapping(slice); }
    MemoryKind remote_kind(Direction direction, const Slice& slice) const noexcept override {
        const Access access = direction == Direction::kRead ? Access::kRead : Access::kWrite;
        return access_.kind_of({slice.remote, slice.length}, access).value_or(MemoryKind::kHost);
    }

    Result<> copy_overlapping(Direction direction, const Slice& slice);
    Result<> copy_checked(const CopyChunk& chunk, size_t index, DeviceCopies& by_device);
    Result<> copy_unregistered(Direction direction, const Slice& slice, MemoryKind remote, AddressRange part);
    Result<> move_piece(Direction direction, const Slice& slice, MemoryKind remote, uint64_t offset, std::span<std::byte> bounce);
    /// Between our bounce buffer and memory that may be a device's, or not there at all.
    Result<> copy_bounce(Direction direction, std::span<std::byte> bounce, MemoryKind kind, uint64_t there, bool ordered);
    /// The kind of the memory that is named as remote, if the transfer is allowed and can be carried.
    Result<MemoryKind> check(Direction direction, const Slice& slice) const;

    AccessTable& access_;
    const Devices& devices_;
};

Error unchecked(int system_errno) {
    return Error(Code::kNotSupported, "the system does not let us check unregistered memory: register it", system_errno);
}

Error unmapped(const Slice& slice, const CrossResult& result) {
    if (result.fault == CrossResult::Fault::kSystem) return unchecked(result.error);
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

Result<MemoryKind> SelfPeer::check(Direction direction, const Slice& slice) const {
    const AddressRange range{slice.remote, slice.length};
    const Access access = direction == Direction::kRead ? Access::kRead : Access::kWrite;
    const auto remote = access_.kind_of(range, access);
    if (!remote) return Unexpected(Error(access_.refusal_code(range, access), access_.refusal(range, access)));
    const MemoryKind local = local_kind(slice);
    if (*remote == MemoryKind::kHost && local == MemoryKind::kHost) return *remote;
    if (devices_.between(local, *remote) == nullptr)
        return fail(Code::kNotSupported, "nothing here copies between {} and {} memory", to_string(local), to_string(*remote));
    if (direction == Direction::kRead && slice.region != nullptr && !slice.region->writable)
        return fail(Code::kNotRegistered, "local memory at {} is registered for reading only", static_cast<void*>(slice.local));
    return *remote;
}

Result<> SelfPeer::copy_bounce(Direction direction, std::span<std::byte> bounce, MemoryKind kind, uint64_t there, bool ordered) {
    if (kind != MemoryKind::kHost) {
        auto* const device = reinterpret_cast<std::byte*>(there);
        const bool read = direction == Direction::kRead;
        const CopyPart part{
            .to = read ? bounce.data() : device, .from = read ? device : bounce.data(), .length = bounce.size(), .ordered = ordered};
        return devices_.copy(read ? MemoryKind::kHost : kind, read ? kind : MemoryKind::kHost, std::span(&part, 1));
    }
    const CrossPiece piece{.local = bounce.data(), .remote = there, .length = bounce.size()};
    CrossResult result = cross_copy(::getpid(), direction, std::span(&piece, 1));
    if (result.fault == CrossResult::Fault::kNone) return {};
    if (result.fault == CrossResult::Fault::kSystem) return Unexpected(unchecked(result.error));
    return fail(Code::kNotRegistered, "memory at {:#x} is not mapped", there);
}

/// As copy_piece(), for source and destination that overlap within the piece, and for memory that only a device may touch on one side and
/// only the kernel on the other.
Result<> SelfPeer::move_piece(Direction direction, const Slice& slice, MemoryKind remote, uint64_t offset, std::span<std::byte> bounce) {
    const bool read = direction == Direction::kRead;
    const uint64_t here = address_of(slice.local) + offset, there = slice.remote + offset;
    if (remote == MemoryKind::kHost && may_touch_local(direction, slice)) {
        std::memmove(reinterpret_cast<void*>(read ? here : there), reinterpret_cast<const void*>(read ? there : here), bounce.size());
        return {};
    }
    const MemoryKind local = local_kind(slice);
    MC_RETURN_IF_ERROR(copy_bounce(Direction::kRead, bounce, read ? remote : local, read ? there : here, slice.ordered));
    return copy_bounce(Direction::kWrite, bounce, read ? local : remote, read ? here : there, slice.ordered);
}

Result<> SelfPeer::copy_overlapping(Direction direction, const Slice& slice) {
    if (address_of(slice.local) == slice.remote) {
        const auto section = access_.section();
        MC_RETURN_IF_ERROR(check(direction, slice));
        return {};
    }
    constexpr uint64_t kStep = 64 << 10;
    // The end that the other one would overwrite goes first.
    const bool forward = (direction == Direction::kRead) == (address_of(slice.local) < slice.remote);
    std::vector<std::byte> bounce(std::min(kStep, slice.length));
    for (uint64_t done = 0; done < slice.length;) {
        const uint64_t length = std::min(kStep, slice.length - done);
        const uint64_t offset = forward ? done : slice.length - done - length;
        const auto section = access_.section();
        MC_ASSIGN_OR_RETURN(const MemoryKind remote, check(direction, slice));
        MC_RETURN_IF_ERROR(move_piece(direction, slice, remote, offset, std::span(bounce).first(length)));
        done += length;
    }
    return {};
}

Result<> SelfPeer::copy_unregistered(Direction direction, const Slice& slice, MemoryKind remote, AddressRange part) {
    constexpr uint64_t kStep = 256 << 10;
    std::vector<std::byte> bounce(std::min(kStep, part.length));
    for (uint64_t done = 0; done < part.length; done += kStep) {
        const uint64_t length = std::min(kStep, part.length - done);
        MC_RETURN_IF_ERROR(move_piece(direction, slice, remote, part.address + done, std::span(bounce).first(length)));
    }
    return {};
}

Result<> SelfPeer::copy_checked(const CopyChunk& chunk, size_t index, DeviceCopies& by_device) {
    const Slice& slice = chunk.slices[index];
    const uint64_t offset = chunk.offset, length = chunk.part() ? chunk.length : slice.length;
    // Also a part asks for its whole slice, so that of a slice that is refused nothing at all is copied.
    MC_ASSIGN_OR_RETURN(const MemoryKind remote, check(chunk.direction, slice));
    const MemoryKind local = local_kind(slice);
    if (remote == MemoryKind::kHost && local == MemoryKind::kHost) return copy_piece(chunk.direction, slice, offset, length);
    if (slice.region == nullptr) return copy_unregistered(chunk.direction, slice, remote, {offset, length});
    auto* const there = reinterpret_cast<std::byte*>(slice.remote + offset);
    const DeviceCopies::Owner owner{.slice = index,
                                    .copier = local == MemoryKind::kHost ? nullptr : slice.copier,
                                    .local = slice.local + offset,
                                    .ordered = slice.ordered};
    if (chunk.direction == Direction::kRead)
        by_device.add(owner, local, remote, {.to = slice.local + offset, .from = there, .length = length});
    else by_device.add(owner, remote, local, {.to = there, .from = slice.local + offset, .length = length});
    return {};
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
        DeviceCopies by_device(devices_, failures);
        for (; i < chunk.slices.size() && !overlapping(chunk.slices[i]); ++i) note(i, copy_checked(chunk, i, by_device));
        by_device.flush();
    }
}

class SelfTransport final : public Transport {
public:
    explicit SelfTransport(const TransportContext& context)
        : incarnation_(context.incarnation), access_(context.access), devices_(*context.devices),
          capabilities_{.name = "self", .reach = Reach::kSameProcess, .rank = 0, .pairs = pairs_of(devices_), .maps_memory = true} {}

    const Capabilities& capabilities() const noexcept override { return capabilities_; }
    std::string endpoint() const override { return {}; }
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion&) override { return nullptr; }
    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline) override {
        if (descriptor.incarnation != incarnation_) return fail(Code::kNotSupported, "{} is not this process", descriptor.name);
        return std::make_unique<SelfPeer>(pool_, access_, devices_);
    }
    void shut_down() override { pool_.stop_threads(); }

private:
    const Incarnation incarnation_;
    AccessTable& access_;
    const Devices& devices_;
    const Capabilities capabilities_;
    CopyPool pool_{"mc-copy"};
};

}  // namespace

Result<std::unique_ptr<Transport>> make_self_transport(const TransportContext& context) { return std::make_unique<SelfTransport>(context); }

}  // namespace mooncake
