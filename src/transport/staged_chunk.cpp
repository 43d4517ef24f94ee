// SPDX-License-Identifier: Apache-2.0
#include "transport/staged_chunk.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error_copy.h"
#include "transport/staged_peer.h"

namespace mooncake {

namespace {

/// As the network sees slots: host memory that is there.
const MemoryRegion& region_of_slots() {
    static const MemoryRegion region{.remote_accessible = false};
    return region;
}

/// This thread gives a chunk of this core to the network. Who is told meanwhile of the end of another chunk might end the peer, and would have to wait
/// for this thread.
thread_local const StagedCore* submitting_to = nullptr;
/// This thread waits for this chunk and does the network's work meanwhile.
thread_local const StagedChunk* waited_here = nullptr;

}  // namespace

// ---- the core

void StagedCore::push(Direction direction, std::span<const Slice> slices) {
    entries_.push_back({.direction = direction, .slices = slices});
    staged.fetch_add(1, std::memory_order_relaxed);
}

void StagedCore::fail(const std::vector<Lost>& lost, const Error& reason) noexcept {
    for (const Lost& one : lost) one.completion->fail(copy_error(reason), one.operations);
}

void StagedCore::fail_entries(const Error& reason) noexcept {
    for (;;) {
        Completion* completion = nullptr;
        {
            Lock lock(mutex);
            if (entries_.empty()) return;
            Entry& entry = entries_.front();
            completion = entry.slices.front().completion;
            entry.slices = entry.slices.subspan(1);
            entry.offset = 0;
            if (entry.slices.empty()) {
                entries_.pop_front();
                staged.fetch_sub(1, std::memory_order_relaxed);
            }
        }
        completion->fail(copy_error(reason));
    }
}

void StagedCore::take_part(Entry& entry, StagedChunk& chunk) {
    const Slice& first = entry.slices.front();
    const uint64_t left = first.length - entry.offset;
    Slice part = first;
    part.local += entry.offset;
    part.remote += entry.offset;
    part.length = std::min(StagingSlots::kBytes, left);
    part.whole = &first;
    chunk.slices.push_back(part);
    chunk.bytes = part.length;
    chunk.operations = 1;
    if (part.length < left) {
        first.completion->add(1);  // the part is an operation of its own; the slice still stands for the rest
        entry.offset += part.length;
    } else {
        entry.slices = entry.slices.subspan(1);
        entry.offset = 0;
    }
}

void StagedCore::take_whole_slices(Entry& entry, StagedChunk& chunk) {
    size_t taken = 0;
    for (; taken < entry.slices.size() && taken < StagedPeer::kPiecesMax; ++taken) {
        const Slice& slice = entry.slices[taken];
        if (slice.completion != chunk.outer || slice.region->kind != chunk.kind || slice.length > StagingSlots::kBytes - chunk.bytes) break;
        chunk.slices.push_back(slice);
        chunk.bytes += slice.length;
    }
    chunk.operations = static_cast<uint32_t>(taken);
    entry.slices = entry.slices.subspan(taken);
}

std::shared_ptr<StagedChunk> StagedCore::cut() {
    auto chunk = std::make_shared<StagedChunk>(*this);
    // Its turn is over with this: a short submission does not wait for the end of a long one.
    if (entries_.size() > 1) {
        entries_.push_back(entries_.front());
        entries_.pop_front();
    }
    chunks.push_back(chunk);
    staged.fetch_add(1, std::memory_order_relaxed);
    try {
        fill(entries_.back(), *chunk);
    } catch (const std::exception&) {
        chunks.pop_back();
        staged.fetch_sub(1, std::memory_order_relaxed);
        throw;
    }
    if (entries_.back().slices.empty()) {
        entries_.pop_back();
        staged.fetch_sub(1, std::memory_order_relaxed);
    }
    return chunk;
}

void StagedCore::fill(Entry& entry, StagedChunk& chunk) {
    const Slice& first = entry.slices.front();
    chunk.direction = entry.direction;
    chunk.outer = first.completion;
    chunk.kind = first.region->kind;
    chunk.slots_wanted = 1;
    if (entry.offset > 0 || first.length > StagingSlots::kBytes) take_part(entry, chunk);
    else take_whole_slices(entry, chunk);
}

bool StagedCore::cut_all(Fresh& fresh) noexcept {
    try {
        if (std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.slices.front().completion->failed(); }))
            drop([](const Slice& slice) { return slice.completion->failed(); }, fresh.lost);
        if (!entries_.empty() && chunks.size() < StagedPeer::kChunksMax && !closed)
            fresh.chunks.reserve(StagedPeer::kChunksMax - chunks.size());  // one that is cut is begun
        while (!entries_.empty() && chunks.size() < StagedPeer::kChunksMax && !closed) fresh.chunks.push_back(cut());
    } catch (const std::exception&) {
        // What was cut goes on, and whoever ends next tries again.
        return !chunks.empty();
    }
    return true;
}

void StagedCore::post(const std::shared_ptr<StagedChunk>& chunk) noexcept {
    auto posted = contained([&] { return staging.post(chunk); });
    if (!posted) {
        // Nor would it be done for the others: each of them would find that out in the end of the one before.
        fail_entries(posted.error());
        chunk->trouble = std::move(posted).error();
        return chunk->go_on(Submit::kLeave);
    }
    // Who stopped it before this did not find it there.
    std::optional<Error> ended;
    {
        Lock lock(mutex);
        if (chunk->stopped && stop(*chunk, *chunk->stopped) == Next::kFinish) ended = chunk->stopped;
    }
    if (ended) chunk->finish(*ended);
}

bool StagedCore::has(const Completion& completion, std::shared_ptr<StagedChunk>& under_way) const {
    bool found = false;
    for (const auto& chunk : chunks) {
        // Of one that is being told nobody knows whether its completion is still there. It is gone in a moment.
        found = found || chunk->state == StagedChunk::State::kOver || chunk->outer->is_part_of(completion);
        if (chunk->state != StagedChunk::State::kOnNetwork || chunk->network.done() || !chunk->outer->is_part_of(completion)) continue;
        under_way = chunk;
        return true;
    }
    for (const Entry& entry : entries_)
        found = found || entry.slices.front().completion->is_part_of(completion) || entry.slices.back().completion->is_part_of(completion);
    return found;
}

std::shared_ptr<StagedChunk> StagedCore::find(const Completion& completion) const {
    for (const auto& chunk : chunks)
        if (chunk->outer == &completion) return chunk;
    return nullptr;
}

StagedCore::Next StagedCore::stop(StagedChunk& chunk, const Error& reason) {
    using State = StagedChunk::State;
    if (chunk.state == State::kOnNetwork) return Next::kNetwork;
    if (!chunk.stopped) chunk.stopped = copy_error(reason);
    if (chunk.state != State::kPosted && chunk.state != State::kLanded) return Next::kWait;
    if (!chunk.left_to_waiter && !staging.withdraw(chunk)) return Next::kWait;
    chunk.state = State::kOver;
    return Next::kFinish;
}

// ---- a chunk

StagedChunk::StagedChunk(StagedCore& owner) : core(owner.shared_from_this()) {}

void StagedChunk::go_on(Submit how) noexcept {
    const std::shared_ptr<StagedChunk> alive = shared_from_this();
    bool landed = false;
    std::optional<Error> ended;
    {
        Lock lock(core->mutex);
        if (state != State::kPosted && state != State::kLanded) return;  // it was stopped
        landed = state == State::kLanded;
        state = State::kCopying;
        left_to_waiter = false;
        if (trouble) ended = copy_error(*trouble);
        else if (stopped) ended = copy_error(*stopped);
    }
    if (!ended && landed && network.failed()) ended = copy_error(network.result().error());
    if (!ended && landed == (direction == Direction::kRead))
        if (auto copied = copy(); !copied) ended = std::move(copied).error();
    {
        Lock lock(core->mutex);
        if (!ended && !landed && stopped) ended = copy_error(*stopped);
        if (ended || landed) state = State::kOver;
    }
    if (ended || landed) finish(ended);
    else send(how);
}

void StagedChunk::place_slices() {
    uint64_t offset = 0;
    places.reserve(slices.size());
    copiers.reserve(slices.size());
    for (Slice& slice : slices) {
        places.push_back(slice.local);
        slots.pieces(offset, slice.length, [&](std::byte* at, uint64_t) { slice.local = at; });
        slice.region = &region_of_slots();
        slice.completion = &network;
        copiers.push_back(std::exchange(slice.copier, nullptr));  // the network does not know where these bytes belong
        offset += slice.length;
    }
}

void StagedChunk::show() const noexcept {
    for (size_t i = 0; i < slices.size(); ++i)
        if (copiers[i] != nullptr) copiers[i]->passed(places[i], slices[i].local, slices[i].length);
}

Result<> StagedChunk::copy() noexcept {
    try {
        if (places.empty()) place_slices();
        const bool out = direction == Direction::kWrite;
        std::vector<CopyPart> parts(slices.size());
        for (size_t i = 0; i < slices.size(); ++i)
            parts[i] = {.to = out ? slices[i].local : places[i],
                        .from = out ? places[i] : slices[i].local,
                        .length = slices[i].length,
                        .ordered = slices[i].ordered};
        const Devices& devices = core->staging.devices();
        MC_RETURN_IF_ERROR(out ? devices.copy(MemoryKind::kHost, kind, parts) : devices.copy(kind, MemoryKind::kHost, parts));
        core->staging.copied().add(direction, bytes);
        show();
        return {};
    } catch (const std::exception&) {
        return Unexpected(out_of_memory());
    }
}

void StagedChunk::send(Submit how) noexcept {
    try {
        if (places.empty()) place_slices();
    } catch (const std::exception&) {
        {
            Lock lock(core->mutex);
            state = State::kOver;
        }
        return finish(out_of_memory());
    }
    network.add(static_cast<uint32_t>(slices.size()));
    const StagedCore* const before = std::exchange(submitting_to, core.get());
    submit_or_fail(core->host, direction, slices, how);
    submitting_to = before;
    {
        Lock lock(core->mutex);
        if (!network_done) {
            state = State::kOnNetwork;
            core->changed.notify_all();
            return;
        }
    }
    arrived(how == Submit::kWait);
}

void StagedChunk::on_done(Completion&) noexcept {
    const std::shared_ptr<StagedChunk> alive = shared_from_this();
    {
        Lock lock(core->mutex);
        network_done = true;
        if (state != State::kOnNetwork) return;  // who is about to submit it goes on
        state = State::kCopying;
    }
    arrived(false);
}

void StagedChunk::arrived(bool here) noexcept {
    const std::shared_ptr<StagedChunk> alive = shared_from_this();
    const bool copied = direction == Direction::kWrite || network.failed();  // the device has nothing to do
    const bool tell = copied && submitting_to != core.get(), brief = bytes <= StagedPeer::kShortBytes;
    bool waiter = false;
    {
        Lock lock(core->mutex);
        state = tell ? State::kOver : State::kLanded;
        waiter = !tell && !stopped && brief && waited_here == this;
        left_to_waiter = waiter;
    }
    if (tell) return finish(network.failed() ? std::optional(copy_error(network.result().error())) : std::nullopt);
    if (waiter) return;
    if (here && brief) return go_on(Submit::kLeave);
    core->post(alive);
}

bool StagedChunk::wait_on_network(Deadline deadline) {
    const StagedChunk* const before = std::exchange(waited_here, this);
    const bool in_time = core->host.wait(network, deadline);
    waited_here = before;
    bool mine = false;
    {
        Lock lock(core->mutex);
        mine = left_to_waiter;
    }
    if (mine) go_on(Submit::kLeave);
    return in_time;
}

void StagedChunk::finish(const std::optional<Error>& error) noexcept {
    const std::shared_ptr<StagedChunk> alive = shared_from_this();
    const std::shared_ptr<StagedCore> owner = core;
    {
        Lock lock(owner->mutex);
        teller = std::this_thread::get_id();
    }
    slots.release();
    if (error) outer->fail(copy_error(*error), operations);
    else outer->succeed(bytes, operations);
    // Its owner may have ended the peer.
    StagedCore::Fresh fresh;
    bool goes_on = true;
    {
        Lock lock(owner->mutex);
        owner->chunks.remove(alive);
        owner->staged.fetch_sub(1, std::memory_order_relaxed);
        goes_on = owner->closed || owner->cut_all(fresh);
        owner->changed.notify_all();
    }
    StagedCore::fail(fresh.lost, error ? *error : another_piece_failed());
    if (!goes_on) owner->fail_entries(out_of_memory());
    for (const auto& chunk : fresh.chunks) owner->post(chunk);
}

}  // namespace mooncake
