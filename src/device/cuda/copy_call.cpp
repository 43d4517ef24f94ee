// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/copy_call.h"

#include <algorithm>

#include "device/cuda/copy_lane.h"

namespace mooncake::cuda {

namespace {

constexpr uint64_t kPageableBytes =
    2 << 20;  // so far around a pageable address nobody asks again in a call: pinned memory there is staged, too

uint64_t address_of(const void* pointer) noexcept { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

Result<const Pointer*> CopyCall::find(uint64_t address, uint64_t length, MemoryKind kind) {
    Known& known = kind == MemoryKind::kCuda ? of_devices_ : of_host_;
    if (known.last == known.by_end.end() || !known.last->second.holds(address, 1)) known.last = known.by_end.upper_bound(address);
    if (known.last == known.by_end.end() || !known.last->second.holds(address, 1)) {
        MC_ASSIGN_OR_RETURN(Pointer pointer, ask(means_.driver, address));
        if (pointer.place == Place::kDevice) MC_RETURN_IF_ERROR(means_.admit(pointer));
        if (pointer.place != Place::kDevice && !pointer.holds(address, 1)) {
            if (pointer.place == Place::kPinned) pointer.place = Place::kPageable;  // CUDA does not say how far it reaches
            pointer.start = address;
            pointer.length = std::max<uint64_t>(1, std::min(kPageableBytes - address % kPageableBytes, UINT64_MAX - address));
        }
        known.last = known.by_end.insert_or_assign(pointer.start + pointer.length, pointer).first;
    }
    const Pointer& pointer = known.last->second;
    if (kind == MemoryKind::kCuda && pointer.place == Place::kUnknown)
        return fail(Code::kUnavailable, "CUDA does not say what lies at {:#x}: a GPU has failed", address);
    if (kind == MemoryKind::kCuda && pointer.place != Place::kDevice)
        return fail(Code::kNotRegistered, "no GPU has memory at {:#x}: it was freed while it was registered", address);
    if (pointer.place != Place::kDevice || pointer.holds(address, length)) return &pointer;
    // Several mappings of one reservation. All of them are looked at; the GPU copies across their borders.
    const Pointer first = pointer;
    for (uint64_t at = first.start + first.length; at - address < length;) {
        MC_ASSIGN_OR_RETURN(const Pointer* const next, find(at, 1, kind));
        if (next->place != Place::kDevice || next->device != first.device || next->reservation != first.reservation)
            return fail(Code::kNotRegistered, "the GPU's memory at {:#x} ends at {:#x}", address, at);
        at = next->start + next->length;
    }
    return &known.by_end.find(first.start + first.length)->second;
}

Result<CopyCall::Piece> CopyCall::classify(const CopyPart& part) {
    Piece piece{.to = address_of(part.to), .from = address_of(part.from), .length = part.length};
    if (piece.length - 1 > UINT64_MAX - piece.to || piece.length - 1 > UINT64_MAX - piece.from)
        return fail(Code::kInvalidArgument, "a part of {} bytes wraps around", part.length);
    MC_ASSIGN_OR_RETURN(const Pointer* found, find(piece.to, piece.length, to_));
    const Pointer to = *found;
    MC_ASSIGN_OR_RETURN(found, find(piece.from, piece.length, from_));
    const Pointer& from = *found;
    const bool to_device = to.place == Place::kDevice, from_device = from.place == Place::kDevice;
    if (!to_device && !from_device) return fail(Code::kInvalidArgument, "no GPU has memory at {:#x} or {:#x}", piece.to, piece.from);
    piece.device = from_device ? from.device : to.device;
    piece.batched = !to.managed && !from.managed;
    piece.inside = to_device && from_device && to.device == from.device;
    piece.to_memory = to.reservation;
    piece.from_memory = from.reservation;
    if (to_device && from_device) return piece;
    piece.direction = to_device ? Direction::kToDevice : Direction::kToHost;
    const Pointer& host = to_device ? from : to;
    const uint64_t there = to_device ? piece.from : piece.to;
    piece.staged = host.place != Place::kPinned || !host.holds(there, 1);
    if (piece.staged) {
        means_.pins.want(there, piece.length, piece.device);
        return piece;
    }
    piece.length = std::min(piece.length, host.length - (there - host.start));
    (to_device ? piece.from_offset : piece.to_offset) = host.device_offset;
    return piece;
}

Result<bool> CopyCall::run_alike(std::span<const CopyPart> parts) {
    if (parts.front().length == 0) return false;
    MC_ASSIGN_OR_RETURN(const Piece first, classify(parts.front()));
    if (first.staged || !first.batched || (!first.inside && first.direction == Direction::kWithin)) return false;
    MC_ASSIGN_OR_RETURN(const Pointer* found, find(first.to, 1, to_));
    const Pointer to = *found;
    MC_ASSIGN_OR_RETURN(found, find(first.from, 1, from_));
    const Pointer from = *found;
    uint64_t bytes = 0, to_end = 0, from_end = 0;
    size_t neighbours = 0;
    for (const CopyPart& part : parts) {
        const uint64_t there = address_of(part.to), here = address_of(part.from);
        if (part.length == 0 || !to.holds(there, part.length) || !from.holds(here, part.length)) return false;
        if (there == to_end && here == from_end) ++neighbours;
        to_end = there + part.length;
        from_end = here + part.length;
        bytes += part.length;
    }
    if (neighbours > parts.size() / 4 || !CopyLane::worth_a_kernel(parts.size(), bytes)) return false;  // joined they are fewer
    Lanes& lanes = means_.lanes(first.device);
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(means_.driver, first.device));
    if (!lanes.kernel().ready(scope)) return false;
    MC_ASSIGN_OR_RETURN(const abi::Stream stream, enter_lane(lanes, scope, first));
    CopyLane lane(means_.driver, lanes, scope, first.direction, first.inside ? CopyLane::kInside : CopyLane::kAcross, stream);
    MC_RETURN_IF_ERROR(lane.end(lane.add_pieces(parts, first.to_offset, first.from_offset)));
    return true;
}

Result<abi::Stream> CopyCall::enter_lane(Lanes& lanes, const Scope& scope, const Piece& first) {
    const bool reads = first.direction != Direction::kToDevice;
    if (caller_sync_ && reads && std::find(synced_.begin(), synced_.end(), first.device) == synced_.end()) {
        MC_RETURN_IF_ERROR(lanes.wait_for_default_stream(scope));
        synced_.push_back(first.device);
    }
    return lanes.stream(scope, first.direction);
}

Result<> CopyCall::run(std::span<const CopyPart> parts) {
    if (caller_sync_) caller_sync_ = !std::all_of(parts.begin(), parts.end(), [](const CopyPart& part) { return part.ordered; });
    constexpr size_t kMany = 16;
    if (parts.size() >= kMany) {
        MC_ASSIGN_OR_RETURN(const bool done, run_alike(parts));
        if (done) return {};
    }
    std::vector<Piece> pieces;
    pieces.reserve(parts.size());
    bool one_lane = true;
    for (CopyPart part : parts)
        while (part.length > 0) {
            MC_ASSIGN_OR_RETURN(const Piece piece, classify(part));
            if (!pieces.empty()) one_lane = one_lane && piece.same_lane(pieces.front());
            pieces.push_back(piece);
            part = {.to = part.to + piece.length, .from = part.from + piece.length, .length = part.length - piece.length};
        }
    const auto lane_of = [](const Piece& piece) {
        return ((piece.device * 4 + static_cast<int>(piece.direction)) * 2 + (piece.staged ? 1 : 0)) * 2 + (piece.inside ? 1 : 0);
    };
    if (!one_lane) std::stable_sort(pieces.begin(), pieces.end(), [&](const Piece& a, const Piece& b) { return lane_of(a) < lane_of(b); });
    for (size_t from = 0; from < pieces.size();) {
        size_t to = from + 1;
        while (to < pieces.size() && pieces[to].same_lane(pieces[from])) ++to;
        MC_RETURN_IF_ERROR(run_lane(std::span(pieces).subspan(from, to - from)));
        from = to;
    }
    return {};
}

Result<> CopyCall::run_lane(std::span<const Piece> pieces) {
    const Piece& first = pieces.front();
    Lanes& lanes = means_.lanes(first.device);
    MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(means_.driver, first.device));
    MC_ASSIGN_OR_RETURN(const abi::Stream stream, enter_lane(lanes, scope, first));
    CopyLane lane(means_.driver, lanes, scope, first.direction, first.inside ? CopyLane::kInside : CopyLane::kAcross, stream);
    if (first.staged) {
        StagedCopy staged(means_.driver, lane, lanes, scope, first.direction);
        MC_RETURN_IF_ERROR(staged.begin());
        Result<> done;
        for (const Piece& piece : pieces)
            if (done = staged.add(piece.to, piece.from, piece.length, piece.batched); !done) break;
        if (done) done = staged.flush();
        return staged.end(std::move(done));
    }
    Result<> done;
    for (const Piece& piece : pieces)
        if (done = lane.add({.to = piece.to,
                             .from = piece.from,
                             .length = piece.length,
                             .to_offset = piece.to_offset,
                             .from_offset = piece.from_offset,
                             .to_memory = piece.to_memory,
                             .from_memory = piece.from_memory,
                             .batched = piece.batched,
                             .by_kernel = piece.batched && (piece.inside || piece.direction != Direction::kWithin)});
            !done)
            break;
    return lane.end(std::move(done));
}

}  // namespace mooncake::cuda
