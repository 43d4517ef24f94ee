// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/fabric_peer.h"

#include <algorithm>

#include "base/futex.h"
#include "base/log.h"

namespace mooncake::fabric {

namespace {

// Without any event for so long, a waiting caller leaves the work to the rails' threads: a moment, and what a piece takes on a fast network.
constexpr Duration kWaitSpin = 200us;
constexpr uint64_t kFastBytesPerUs = 1000;
constexpr Duration kDrain = 250ms;           // how long what is given up may end by itself
constexpr Duration kOthersDrain = 200ms;     // and what others have on the endpoint that then has to go
constexpr uint64_t kLeaveBytes = 256 << 10;  // what submit(kLeave) may post before it returns
constexpr Duration kDoubtTick = 50ms;
constexpr Duration kPingInterval = 1s;  // nothing was heard of the target
constexpr size_t kSlicesPerRail = 64;   // small ones are worth a further rail

}  // namespace

// ---- coming and going

FabricPeer::FabricPeer(FabricShared& shared, SegmentDescriptor descriptor, const EndpointBlob& blob)
    : shared_(shared), descriptor_(std::move(descriptor)), flights_on_(shared.rails.size()), bytes_on_(shared.rails.size()),
      remotes_(blob.rails, shared.profile, shared.time), held_(remotes_, shared.time, shared.doubts, descriptor_.incarnation),
      paths_(shared.rails, remotes_, shared.profile, shared.time) {
    Lock lock(mutex_);
    announced_.resize(shared_.rails.size());
    heard_ = shared_.time.now();
}

FabricPeer::~FabricPeer() {
    Lock lock(mutex_);
    MC_CHECK(in_flight_ == 0);
}

void FabricPeer::leave() {
    close(Error(Code::kCancelled, "the connection was closed"));
    {
        Lock lock(mutex_);
        left_ = true;  // from now on no task announces us
    }
    for (Rail* const rail : shared_.rails) {
        {
            Lock lock(rail->mutex());
            Lock inner(mutex_);
            paths_.close_all(*rail);
        }
        rail->detach(*this);
    }
    {
        Lock lock(mutex_);
        held_.bequeath();
    }
    endings_.close();
}

void FabricPeer::break_off(const Error& reason, Endings& endings) {
    if (broken_.load(std::memory_order_relaxed)) return;
    reason_ = reason;
    reclaim_at_ = shared_.time.now() + kDrain;
    broken_.store(true, std::memory_order_release);
    held_.bequeath();
    endings.hold(endings_);
    queue_.give_up(nullptr, reason, endings);
    drop_waiting(nullptr, endings);
    changed_.notify_all();
}

void FabricPeer::drop_waiting(const Completion* completion, Endings& endings) {
    const auto given_up = [&](const Piece& piece) { return completion == nullptr || piece.run->completion == completion; };
    endings.hold(endings_);
    std::erase_if(waiting_, [&](const Waiting& waiting) MC_REQUIRES(mutex_) {
        if (!given_up(waiting.piece)) return false;
        queue_.finish(waiting.piece, endings);
        return true;
    });
    held_.give_up(completion, [&](const Piece& piece) MC_REQUIRES(mutex_) { queue_.finish(piece, endings); });
}

void FabricPeer::path_lost(uint32_t rail, Endings& endings) {
    if (RailMetrics* const metrics = shared_.rails[rail]->metrics()) metrics->paths_lost->add();
    if (paths_.any_usable()) return;
    shared_.doubts.add_lost(descriptor_.incarnation);
    break_off(error(Code::kUnavailable, "no path to {} is left", descriptor_.name), endings);
}

// ---- working

void FabricPeer::submit(Direction direction, std::span<const Slice> slices, Submit how) {
    if (slices.empty()) return;
    uint64_t bytes = 0;
    for (size_t i = 0; i < std::min<size_t>(slices.size(), 1024); ++i) bytes += slices[i].length;
    const size_t count = slices.size();
    const Nearness& order = shared_.order.of(slices.front().region != nullptr ? slices.front().region->location : std::string_view());
    Error reason;
    {
        Lock lock(mutex_);
        if (!broken_.load(std::memory_order_relaxed)) {
            queue_.push(direction, slices);
            slices = {};  // from now on they may go at any time
        } else {
            reason = reason_;
        }
    }
    if (!slices.empty()) {
        // With the last one the caller may free them: nothing of them is looked at afterwards.
        for (size_t i = 0; i < count; ++i) slices[i].completion->fail(reason);
        return;
    }
    const size_t rails = shared_.rails.size();
    const size_t wanted = std::min(rails, 1 + bytes / (2 * shared_.profile.stripe_bytes) + count / kSlicesPerRail);
    const uint32_t first = next_rail_.fetch_add(1, std::memory_order_relaxed);
    const bool here = how == Submit::kWait || bytes <= kLeaveBytes;
    // Near rails first, in turn; the others help when there is enough for them.
    const auto rail_at = [&](size_t i) -> Rail& {
        const size_t near = order.near.size();
        return *shared_.rails[i < near ? order.near[(first + i) % near] : order.far[(first + i) % order.far.size()]];
    };
    for (size_t i = 0; i < wanted; ++i) rail_at(i).announce(*this);
    for (size_t i = here ? 1 : 0; i < wanted; ++i) rail_at(i).ring();
    if (!here) return;
    Endings endings;
    Rail& rail = rail_at(0);
    // Posting may take a while where the provider copies; and whoever waits goes on driving.
    if (how == Submit::kWait) rail.begin_driving();
    rail.drive(endings);
    if (how == Submit::kWait) rail.end_driving(true);
}

bool FabricPeer::drive(Endings& endings) {
    bool any = false;
    for (Rail* const rail : shared_.rails)
        if (concerns(*rail)) any |= rail->drive(endings);
    return any;
}

/// Drives the rails that have something of ours, in place of their threads, until the completion is done or nothing happens for a while.
class FabricPeer::Driver {
public:
    explicit Driver(FabricPeer& peer) : peer_(peer) {}

    bool run(const Completion& completion, Deadline deadline) {
        Time quiet = Clock::now();
        SpinPause pause;
        Endings endings;
        while (!completion.done()) {
            const bool any = drive(endings);
            endings.fire();
            const Time now = Clock::now();
            if (any) quiet = now;
            else if (now - quiet > peer_.patience()) return completion.done();
            else pause();
            if (now >= deadline.at()) return completion.done();
        }
        return true;
    }
    /// Leaves them to their threads again. `done`: whoever waits will probably be back in a moment.
    void leave(bool done) noexcept {
        for (Rail* const rail : peer_.shared_.rails) {
            if ((driven_ >> rail->index() & 1) == 0) continue;
            rail->end_driving(done);
            if (!done) rail->ring();
        }
    }

private:
    bool drive(Endings& endings) {
        bool any = false;
        for (Rail* const rail : peer_.shared_.rails) {
            if (!peer_.concerns(*rail)) continue;
            const uint64_t bit = uint64_t{1} << rail->index();
            if ((driven_ & bit) == 0) rail->begin_driving();
            driven_ |= bit;
            any |= rail->drive(endings);
        }
        return any;
    }

    FabricPeer& peer_;
    uint64_t driven_ = 0;  // rails (bits)
};

bool FabricPeer::concerns(const Rail& rail) const noexcept {
    return flights_on_[rail.index()].load(std::memory_order_relaxed) > 0 || rail.announced();
}

Duration FabricPeer::patience() const noexcept {
    uint64_t aloft = 0;
    for (const auto& bytes : bytes_on_) aloft += bytes.load(std::memory_order_relaxed);
    const uint64_t piece = std::min(aloft, 2 * shared_.profile.stripe_bytes);
    return kWaitSpin + std::chrono::microseconds(piece / kFastBytesPerUs);
}

bool FabricPeer::wait(Completion& completion, Deadline deadline) {
    if (completion.done()) return true;
    Driver driver(*this);
    const bool done = driver.run(completion, deadline);
    driver.leave(done);
    return done || completion.wait(deadline, Duration::zero());
}

void FabricPeer::wake_rails() {
    Lock lock(mutex_);
    if (left_) return;
    for (Rail* const rail : shared_.rails) {
        rail->announce(*this);
        rail->ring();
    }
}

// ---- stopping

void FabricPeer::reclaim(const Completion* completion) {
    for (Rail* const rail : shared_.rails) {
        Lock lock(rail->mutex());
        bool any = false;
        rail->for_each_flight([&](Flight& flight) {
            if (flight.client != this) return;
            if (completion != nullptr && (flight.piece.run == nullptr || flight.piece.run->completion != completion)) return;
            flight.hopeless = any = true;
        });
        if (any) rail->recycle(kOthersDrain);
    }
}

void FabricPeer::wait_for_flights() MC_NO_THREAD_ANALYSIS {
    Deadline patience = Deadline::after(kDrain);
    for (;;) {
        Endings endings;
        const bool any = drive(endings);
        endings.fire();
        if (patience.passed()) {
            reclaim(nullptr);
            patience = Deadline::after(kDrain + kOthersDrain);
        }
        std::unique_lock lock(mutex_);
        if (in_flight_ == 0) return;
        if (!any) changed_.wait_for(lock, 1ms);
    }
}

void FabricPeer::close(const Error& reason) {
    {
        Endings endings;
        Lock lock(mutex_);
        break_off(reason, endings);
    }
    wait_for_flights();
}

Stopped FabricPeer::cancel(Completion& completion, const Error& reason, Deadline deadline) MC_NO_THREAD_ANALYSIS {
    {
        Endings endings;
        Lock lock(mutex_);
        endings.hold(endings_);
        queue_.give_up(&completion, reason, endings);
        drop_waiting(&completion, endings);
        if (!queue_.empty() || !waiting_.empty()) call_rails();  // others may have waited for it
    }
    // What is under way ends by itself on a healthy path. Otherwise its endpoint is closed.
    for (Duration patience = kDrain; !wait(completion, Deadline::after(patience)); patience = kDrain + kOthersDrain) reclaim(&completion);
    std::unique_lock lock(mutex_);
    if (shared_.profile.fence == Fence::kNeeded) wishes_.fence(held_.doubts());
    ask();
    // Who is silent is not waited for once more by everybody who comes.
    const Duration patience = deadline.left();
    for (;;) {
        held_.forget_closed();
        if (!held_.in_doubt()) return Stopped::kEverywhere;
        const bool no_answer = shared_.profile.fence == Fence::kNeeded && (!wishes_.asking() || wishes_.is_silent(Clock::now(), patience));
        if (no_answer || deadline.passed()) return Stopped::kRemoteInDoubt;
        changed_.wait_until(lock, deadline.earlier(Deadline::after(kDoubtTick)).at());
    }
}

void FabricPeer::count_paths(PathCounts& counts) {
    Lock lock(mutex_);
    if (left_ || broken_.load(std::memory_order_relaxed)) return;
    paths_.count(counts);
}

void FabricPeer::sweep(Time now) {
    Endings endings;
    Lock lock(mutex_);
    if (left_ || broken_.load(std::memory_order_relaxed)) return;
    release_held(endings);
    if (!waiting_.empty()) call_rails();
    // The target forgets addresses that nobody speaks of.
    if (shared_.profile.announces && now - announced_at_ > shared_.profile.idle_timeout / 4) wishes_.announce();
    if (now - heard_ >= kPingInterval) wishes_.look();
    ask();
}

}  // namespace mooncake::fabric
