// SPDX-License-Identifier: Apache-2.0
#include "transport/staged_peer.h"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>

#include "base/error_copy.h"
#include "transport/staged_chunk.h"

namespace mooncake {

namespace {

bool of_host(const Slice& slice) noexcept { return slice.region == nullptr || slice.region->kind == MemoryKind::kHost; }

}  // namespace

StagedPeer::StagedPeer(std::unique_ptr<Peer> host, Staging& staging)
    : host_(std::move(host)), core_(std::make_shared<StagedCore>(*host_, staging)) {}

StagedPeer::~StagedPeer() {
    {
        Lock lock(core_->mutex);
        if (core_->idle()) return;  // what is left is the host peer's to end
    }
    try {
        close(Error(Code::kCancelled, "given up"));
    } catch (const std::exception&) {  // it has no memory for its last word: the peer's own end says it, or whoever connects next
    }
}

void StagedPeer::submit(Direction direction, std::span<const Slice> slices, Submit how) {
    while (!slices.empty()) {
        const bool host = of_host(slices.front());
        size_t end = 1;
        while (end < slices.size() && of_host(slices[end]) == host) ++end;
        const auto some = slices.first(end);
        slices = slices.subspan(end);
        if (host) {
            submit_or_fail(*host_, direction, some, how);
            continue;
        }
        try {
            stage(direction, some, how);
        } catch (const std::bad_alloc&) {
            fail_slices(some, out_of_memory());  // none of these was taken; others may have been
        }
    }
}

void StagedPeer::stage(Direction direction, std::span<const Slice> slices, Submit how) {
    StagedCore::Fresh fresh;
    std::optional<Error> closed;
    bool goes_on = true;
    {
        Lock lock(core_->mutex);
        if (core_->closed) closed = copy_error(*core_->closed);
        if (!closed) {
            core_->push(direction, slices);  // from here on they are the core's
            goes_on = core_->cut_all(fresh);
        }
    }
    if (closed) return fail_slices(slices, *closed);
    StagedCore::fail(fresh.lost, another_piece_failed());
    if (!goes_on) core_->fail_entries(out_of_memory());
    for (const auto& chunk : fresh.chunks) {
        // Who waits for little has done it sooner than others are woken.
        if (how == Submit::kWait && fresh.chunks.size() == 1) {
            chunk->slots = core_->staging.try_take(1);
            if (!chunk->slots.empty()) {
                chunk->slots_wanted = 0;
                chunk->go_on(how);
                continue;
            }
        }
        core_->post(chunk);
    }
}

bool StagedPeer::wait(Completion& completion, Deadline deadline) {
    if (core_->staged.load(std::memory_order_relaxed) == 0) return host_->wait(completion, deadline);
    bool in_time = true;
    while (in_time && !completion.done()) {
        std::shared_ptr<StagedChunk> under_way;
        bool ours = false;
        {
            Lock lock(core_->mutex);
            ours = core_->has(completion, under_way);
            if (ours && !under_way && !completion.done()) {
                // Nobody tells a completion without moving on a chunk afterwards.
                if (deadline.is_never()) core_->changed.wait(core_->mutex);
                else in_time = core_->changed.wait_until(core_->mutex, deadline.at()) == std::cv_status::no_timeout;
            }
        }
        if (under_way) in_time = under_way->wait_on_network(deadline);
        else if (!ours) in_time = host_->wait(completion, deadline);
    }
    return completion.done();
}

void StagedPeer::withdraw(const Completion& whole, const Error& reason) {
    std::vector<StagedCore::Lost> lost;
    try {
        Lock lock(core_->mutex);
        core_->drop([&](const Slice& slice) { return slice.completion->is_part_of(whole); }, lost);
    } catch (const std::bad_alloc&) {  // it is left to cancel()
    }
    StagedCore::fail(lost, reason);
    host_->withdraw(whole, reason);
}

Stopped StagedPeer::cancel(Completion& completion, const Error& reason, Deadline deadline) {
    if (core_->staged.load(std::memory_order_relaxed) == 0) return host_->cancel(completion, reason, deadline);
    std::vector<StagedCore::Lost> lost;
    bool dropped = false;
    try {
        Lock lock(core_->mutex);
        core_->drop([&](const Slice& slice) { return slice.completion == &completion; }, lost);
        dropped = true;
    } catch (const std::bad_alloc&) {}
    // To leave some in the queue takes memory, to leave none does not: nobody else's is begun now, and may be submitted again.
    if (!dropped) core_->fail_entries(out_of_memory());
    StagedCore::fail(lost, reason);
    Stopped stopped = Stopped::kEverywhere;
    for (bool more = true; more;) {
        std::shared_ptr<StagedChunk> one;
        auto next = StagedCore::Next::kWait;
        {
            Lock lock(core_->mutex);
            one = core_->find(completion);
            more = one != nullptr;
            if (more) next = core_->stop(*one, reason);
            if (more && next == StagedCore::Next::kWait) core_->changed.wait(core_->mutex);
        }
        if (!more) break;
        if (next == StagedCore::Next::kFinish) one->finish(reason);
        if (next == StagedCore::Next::kNetwork && host_->cancel(one->network, reason, deadline) == Stopped::kRemoteInDoubt)
            stopped = Stopped::kRemoteInDoubt;
    }
    const Stopped host = host_->cancel(completion, reason, deadline);
    return stopped == Stopped::kEverywhere ? host : stopped;
}

void StagedPeer::close(const Error& reason) {
    {
        Lock lock(core_->mutex);
        if (!core_->closed) core_->closed = copy_error(reason);
    }
    core_->fail_entries(reason);
    std::exception_ptr threw;
    try {
        host_->close(reason);  // nothing moves any more, also if it throws
    } catch (const std::exception&) {
        threw = std::current_exception();
    }
    end_chunks(reason);
    if (threw) std::rethrow_exception(threw);
}

void StagedPeer::end_chunks(const Error& reason) noexcept {
    for (;;) {
        std::shared_ptr<StagedChunk> ended;
        {
            Lock lock(core_->mutex);
            bool waiting = false;
            for (const auto& chunk : core_->chunks) {
                if (chunk->told_here()) continue;  // by somebody below us on the stack
                waiting = true;
                if (core_->stop(*chunk, reason) != StagedCore::Next::kFinish) continue;
                ended = chunk;
                break;
            }
            if (!waiting) return;
            if (!ended) core_->changed.wait(core_->mutex);
        }
        if (ended) ended->finish(reason);
    }
}

}  // namespace mooncake
