// SPDX-License-Identifier: Apache-2.0
// What a peer asks its target over the control plane, and what follows from the answers.
#include <algorithm>

#include "base/log.h"
#include "transport/fabric/fabric_peer.h"

namespace mooncake::fabric {

namespace {

constexpr Duration kCallTimeout = 1s;
constexpr int kRestartsMax = 16;  // of one question, because the target's endpoints changed meanwhile
constexpr std::string_view kTransportName = "fabric";

template <typename Answer>
Result<Answer> call(FabricShared& shared, const SegmentDescriptor& target, const Request& request, size_t rails, Deadline deadline,
                    Result<Answer> (*decode)(std::span<const std::byte>, size_t)) {
    MC_ASSIGN_OR_RETURN(const auto bytes, shared.control.call(target, std::string(kTransportName), encode_request(request), deadline));
    return decode(bytes, rails);
}

FenceRequest fence_of(const Doubts& doubts) {
    FenceRequest request;
    for (const auto& [rail, epoch] : doubts) request.rails.push_back({.rail = rail, .epoch = epoch});
    return request;
}

}  // namespace

/// The slice at the head of a batch.
WantedKeys FabricPeer::wanted_by(const WorkQueue::Batch& batch) {
    return {.address = batch.head().remote, .length = batch.head().length, .direction = batch.direction};
}

Error FabricPeer::not_registered(const WantedKeys& range) const {
    const bool readable = keys_.covered({range.address, range.length, Direction::kRead}) == range.length;
    return error(Code::kNotRegistered, "remote range {:#x}+{} is {} at the peer", range.address, range.length,
                 readable ? "registered for reading only" : "not registered");
}

// ---- connecting

Result<std::shared_ptr<FabricPeer>> FabricPeer::connect(FabricShared& shared, const SegmentDescriptor& descriptor, const EndpointBlob& blob,
                                                        Deadline deadline) {
    std::shared_ptr<FabricPeer> peer(new FabricPeer(shared, descriptor, blob));
    // First, since the target may have to know what we write from.
    for (Rail* const rail : shared.rails) rail->attach(*peer);
    if (auto greeted = peer->greet(blob, deadline); !greeted) {
        for (Rail* const rail : shared.rails) rail->detach(*peer);
        return Unexpected(std::move(greeted).error());
    }
    return peer;
}

Result<> FabricPeer::greet(const EndpointBlob& blob, Deadline deadline) {
    bool compatible = false;
    {
        Lock lock(mutex_);
        compatible = paths_.any_compatible();
    }
    if (!compatible) return fail(Code::kNotSupported, "no rail of {} speaks to one of ours", descriptor_.name);
    const Doubts doubts = shared_.doubts.take(descriptor_.incarnation);
    if (!doubts.empty()) {
        const Request request{.initiator = shared_.incarnation, .body = fence_of(doubts)};
        auto fenced = call(shared_, descriptor_, request, blob.rails.size(), deadline, decode_rails_answer);
        if (!fenced && fenced.error().code() == Code::kNotSupported && shared_.profile.fence == Fence::kGrace) {
            // The target cannot close its endpoints one by one. Ours are closed: what is on the wire now is the last of it.
            const Deadline grace = deadline.earlier(Deadline::after(shared_.profile.fence_grace));
            std::unique_lock lock(mutex_);
            while (!grace.passed()) changed_.wait_until(lock, grace.at());
        } else if (!fenced) {
            shared_.doubts.add(descriptor_.incarnation, doubts);
            return Unexpected(std::move(fenced).error().with_context("fence what an earlier connection left"));
        }
    }
    if (shared_.profile.announces) MC_RETURN_IF_ERROR(announce(blob.rails.size(), deadline));
    // Also tells who answers, and the keys, while they are few.
    const Time asked = shared_.time.now();
    const Request request{.initiator = shared_.incarnation, .body = ResolveRequest{.address = 0, .length = 1}};
    MC_ASSIGN_OR_RETURN(const auto answer, call(shared_, descriptor_, request, blob.rails.size(), deadline, decode_resolve_answer));
    Endings endings;
    Lock lock(mutex_);
    apply(answer.rails, asked, endings);
    keys_.add(answer, 0);
    return {};
}

Result<> FabricPeer::announce(size_t rails, Deadline deadline) {
    PingRequest ping;
    for (const Rail* const rail : shared_.rails) ping.rails.push_back(rail->initiating_record());
    const Request request{.initiator = shared_.incarnation, .body = ping};
    MC_RETURN_IF_ERROR(call(shared_, descriptor_, request, rails, deadline, decode_rails_answer));
    Lock lock(mutex_);
    for (size_t i = 0; i < ping.rails.size(); ++i) announced_[i] = ping.rails[i].epoch;
    announced_at_ = shared_.time.now();
    return {};
}

// ---- asking

void FabricPeer::ask() {
    if (!left_ && wishes_.begin(Clock::now())) shared_.pool.post([self = shared_from_this()] { self->fulfil_wishes(); });
}

void FabricPeer::fulfil_wishes() {
    for (bool answered = true; answered;) {
        Wishes wishes;
        {
            Lock lock(mutex_);
            if (broken_.load(std::memory_order_relaxed)) wishes_.drop_keys();
            if (left_) wishes_.stop();
            else wishes = wishes_.take(Clock::now());
            if (wishes.empty()) return changed_.notify_all();
        }
        {
            Endings endings;
            auto done = fulfil(wishes, endings);
            Lock lock(mutex_);
            answered = done || done.error().code() != Code::kTimedOut;
            if (!answered) {
                // Nothing is known, so nothing can be done but to ask again; whoever waits has a deadline.
                wishes_.again(wishes);
            } else if (!done) {
                const Code code = done.error().code() == Code::kStale ? Code::kStale : Code::kUnavailable;
                break_off(Error(code, format_text("{} is gone: {}", descriptor_.name, done.error().message())), endings);
            }
        }
        wake_rails();
    }
    // After the tasks of others: however many targets are silent, nobody waits for a thread for long.
    shared_.pool.post([self = shared_from_this()] { self->fulfil_wishes(); });
}

Result<> FabricPeer::fulfil(const Wishes& wishes, Endings& endings) {
    size_t rails = 0;
    {
        Lock lock(mutex_);
        rails = remotes_.count();
    }
    if (wishes.announce) MC_RETURN_IF_ERROR(announce(rails, Deadline::after(kCallTimeout)));
    const bool resolves = !wishes.ranges.empty();
    if (!wishes.fences.empty() || (wishes.look && !resolves)) {
        Request request{.initiator = shared_.incarnation, .body = PingRequest{}};
        if (!wishes.fences.empty()) request.body = fence_of(wishes.fences);
        const Time asked = shared_.time.now();
        MC_ASSIGN_OR_RETURN(const auto answer,
                            call(shared_, descriptor_, request, rails, Deadline::after(kCallTimeout), decode_rails_answer));
        Lock lock(mutex_);
        apply(answer.rails, asked, endings);
    }
    for (const WantedKeys& range : wishes.ranges) MC_RETURN_IF_ERROR(resolve(range, rails, endings));
    return {};
}

Result<> FabricPeer::resolve(const WantedKeys& range, size_t rails, Endings& endings) {
    uint64_t known = 0;
    {
        // An earlier answer may have brought it.
        Lock lock(mutex_);
        known = keys_.covered(range);
        if (known == range.length) {
            settle_blocked(range, {}, endings);
            return {};
        }
    }
    for (int restarts = 0; restarts < kRestartsMax;) {
        const Time asked = shared_.time.now();
        const Request request{.initiator = shared_.incarnation,
                              .body = ResolveRequest{.address = range.address + known, .length = range.length - known}};
        MC_ASSIGN_OR_RETURN(const auto answer,
                            call(shared_, descriptor_, request, rails, Deadline::after(kCallTimeout), decode_resolve_answer));
        Lock lock(mutex_);
        const bool changed = apply(answer.rails, asked, endings);
        const RemoteKeys::Answered answered = keys_.add(answer, range.address + known);
        const uint64_t now_known = keys_.covered(range);
        if (now_known < range.length && !answer.complete && (changed || now_known > known)) {
            // The answer had no room for all of it, or what we knew is worth nothing any more.
            restarts += changed ? 1 : 0;
            known = now_known;
            continue;
        }
        settle_blocked(range, answered, endings);
        return {};
    }
    return fail(Code::kUnavailable, "the endpoints of {} do not come to rest", descriptor_.name);
}

// ---- answers

bool FabricPeer::apply(std::span<const RailState> states, Time asked, Endings& endings) {
    heard_ = shared_.time.now();
    wishes_.answered();
    bool changed = false;
    for (const RailState& state : states) {
        if (!remotes_.renew(state)) continue;
        changed = true;
        paths_.renew(state.rail);
    }
    // Unregistering memory reopens the endpoints of those who know its keys: keys are as good as the endpoint they came with.
    if (changed) keys_.clear();
    paths_.answered(asked);
    for (Waiting& waiting : waiting_) waiting.refused = 0;
    for (WorkQueue::Batch& batch : queue_.batches()) batch.refused = 0;
    settle_held(asked, endings);
    held_.forget_closed();
    changed_.notify_all();
    return changed;
}

/// Judges what failed before `asked`, now that the target has answered.
void FabricPeer::settle_held(Time asked, Endings& endings) {
    const Time now = shared_.time.now();
    std::set<std::pair<uint32_t, uint32_t>> blamed;
    held_.settle(asked, [&](Held& held) MC_REQUIRES(mutex_) {
        // It was the way to the endpoint, or the operation itself; which, we know once it went alone.
        const bool was_alone = goes_alone(held.piece);
        if (held.posted) ++held.piece.attempts;
        Path& path = paths_.at(held.rail, held.remote);
        if (!was_alone && blamed.emplace(held.rail, held.remote).second && path.health.failed(held.generation, now))
            path_lost(held.rail, endings);
        if (broken_.load(std::memory_order_relaxed)) return false;  // then nothing is held any more
        held.given_up = held.piece.attempts >= shared_.options.attempts;
        // Providers do not all tell a bad key from a broken connection.
        if (held.stale || goes_alone(held.piece)) keys_.clear();
        if (held.doubtful && shared_.profile.fence == Fence::kNeeded) wishes_.fence(held.remote, held.epoch);
        return true;
    });
    release_held(endings);
}

/// What cannot land any more may go again, or be reported as failed.
void FabricPeer::release_held(Endings& endings) {
    held_.release([&](const Held& held) MC_REQUIRES(mutex_) {
        if (held.given_up) {
            endings.hold(endings_);
            queue_.fail(held.piece, held.reason, endings);
        } else {
            waiting_.push_back({.piece = held.piece, .avoided = uint64_t{1} << held.rail});
        }
    });
}

void FabricPeer::settle_blocked(const WantedKeys& range, const RemoteKeys::Answered& answered, Endings& endings) {
    endings.hold(endings_);
    const bool known = keys_.covered(range) == range.length;
    auto& batches = queue_.batches();
    for (auto next = batches.begin(); next != batches.end();) {
        const auto batch = next++;
        if (!batch->blocked || batch->direction != range.direction) continue;
        const Slice& slice = batch->head();
        if (slice.remote + batch->offset != range.address || slice.length - batch->offset != range.length) continue;
        batch->blocked = false;
        batch->answered = answered;
        bool left = known || queue_.refuse(batch, not_registered({slice.remote, slice.length, batch->direction}), endings);
        while (left && keys_.lacks(wanted_by(*batch), answered)) left = queue_.refuse(batch, not_registered(wanted_by(*batch)), endings);
    }
    for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
        const bool asked = waiting->blocked && waiting->piece.remote == range.address && waiting->piece.length == range.length &&
                           waiting->piece.direction == range.direction;
        if (asked) waiting->blocked = false;
        if (!asked || known) {
            ++waiting;
            continue;
        }
        queue_.fail(waiting->piece, not_registered(range), endings);
        waiting = waiting_.erase(waiting);
    }
}

}  // namespace mooncake::fabric
