// SPDX-License-Identifier: Apache-2.0
// What a peer does on a rail, with the rail's lock held: posts what waits, and takes back what ended.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "transport/cross_memory.h"
#include "transport/fabric/fabric_peer.h"

namespace mooncake::fabric {

namespace {

constexpr uint64_t kProbeBytes = 8;
constexpr Duration kFullRetry = 10ms;

/// Between memory of ours that nobody registered, and perhaps nobody mapped, and a rail's own.
Result<> copy_unregistered(Direction direction, const Piece& piece, std::byte* bounce) {
    const CrossPiece copied{.local = bounce, .remote = reinterpret_cast<uint64_t>(piece.local), .length = piece.length};
    // A write of the piece reads its memory.
    const Direction way = direction == Direction::kWrite ? Direction::kRead : Direction::kWrite;
    const CrossResult result = cross_copy(::getpid(), way, std::span(&copied, 1));
    if (result.fault == CrossResult::Fault::kNone) return {};
    return fail(Code::kNotRegistered, "local memory at {:#x}+{} is not mapped", copied.remote, piece.length);
}

}  // namespace

// ---- choosing

uint64_t FabricPeer::length_for(const Rail& rail, uint64_t left, uint64_t room) const noexcept {
    uint64_t most = rail.offer().operation_bytes_max != 0 ? rail.offer().operation_bytes_max : std::numeric_limits<uint64_t>::max();
    if (shared_.profile.operation_bytes_max != 0) most = std::min(most, shared_.profile.operation_bytes_max);
    return fragment_length(left, room, {.operation_bytes_max = most, .stripe_bytes = shared_.profile.stripe_bytes});
}

Rail::Share FabricPeer::share_of(const Rail& rail) const noexcept {
    return {.operations = flights_on_[rail.index()].load(std::memory_order_relaxed),
            .bytes = bytes_on_[rail.index()].load(std::memory_order_relaxed)};
}

FabricPeer::Choice FabricPeer::choose(Rail& rail, uint64_t address, Direction direction, Choosing& choosing) {
    choosing.chunk = keys_.find(address, direction);
    if (choosing.chunk == nullptr) return Choice::kUnknown;
    const uint32_t count = remotes_.count();
    for (uint32_t k = 0; k < count; ++k) {
        const uint32_t remote = (rail.index() + k) % count;
        Path& path = paths_.at(rail.index(), remote);
        if (!path.compatible || !choosing.chunk->key(remote)) continue;
        if (path.suspended != Time{} || !is_announced(rail)) return Choice::kLater;
        if (!path.health.usable()) continue;
        if (!paths_.open(rail, remote)) {
            if (!rail.is_full()) continue;
            rail.wake_by(shared_.time.now() + kFullRetry);
            return Choice::kLater;
        }
        if (path.route->retry_at > shared_.time.now()) {
            rail.wake_by(path.route->retry_at);
            return Choice::kLater;
        }
        choosing.path = &path;
        return Choice::kFound;
    }
    return Choice::kRefused;
}

/// Whether the target knows the address that this rail writes from, where it must. If not it is told.
bool FabricPeer::is_announced(const Rail& rail) {
    if (!shared_.profile.announces || announced_[rail.index()] == rail.initiating_epoch()) return true;
    wishes_.announce();
    ask();
    return false;
}

uint64_t FabricPeer::all_rails() const noexcept {
    return shared_.rails.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << shared_.rails.size()) - 1;
}

/// This rail cannot carry it. True: neither can any other.
bool FabricPeer::refuse(Rail& rail, uint64_t& refused) {
    refused |= uint64_t{1} << rail.index();
    for (Rail* const other : shared_.rails) {
        if ((refused >> other->index() & 1) != 0) continue;
        other->announce(*this);
        other->ring();
    }
    return refused == all_rails();
}

// ---- posting

void FabricPeer::fill(Rail& rail, Flight& flight, Operation& operation, const Choosing& choosing, void* descriptor) {
    Route& route = *choosing.path->route;
    const Piece& piece = flight.piece;
    flight.client = this;
    flight.route = &route;
    flight.generation = choosing.path->health.generation();
    flight.began = shared_.time.now();
    route.begin(flight.began);
    ++in_flight_;
    flights_on_[rail.index()].fetch_add(1, std::memory_order_relaxed);
    bytes_on_[rail.index()].fetch_add(piece.length, std::memory_order_relaxed);
    alone_ = piece.run != nullptr && goes_alone(piece);
    const bool virtual_addresses = remotes_[route.remote].virtual_addresses;
    operation = {.direction = piece.direction,
                 .local = flight.bounce != nullptr ? flight.bounce : piece.local,
                 .length = piece.length,
                 .local_descriptor = descriptor,
                 .peer = route.address,
                 .remote = virtual_addresses ? piece.remote : piece.remote - choosing.chunk->address,
                 .key = *choosing.chunk->key(route.remote)};
}

FabricPeer::Next FabricPeer::prepare_waiting(Rail& rail, Flight& flight, Operation& operation, Endings& endings) {
    Next later = Next::kNothing;
    const auto alone = [this](const Waiting& one) { return goes_alone(one.piece); };
    bool some_alone = std::any_of(waiting_.begin(), waiting_.end(), alone);
    if (some_alone && in_flight_ > 0) return Next::kLater;
    for (auto next = waiting_.begin(); next != waiting_.end();) {
        const auto waiting = next++;
        const auto give_up = [&](const Error& error) MC_REQUIRES(mutex_) {
            endings.hold(endings_);
            queue_.fail(waiting->piece, error, endings);
            next = waiting_.erase(waiting);
            if (!some_alone) return;
            // It may have been the one that the others had to wait for.
            some_alone = std::any_of(waiting_.begin(), waiting_.end(), alone);
            next = waiting_.begin();
        };
        if (some_alone && !goes_alone(waiting->piece)) continue;
        const uint64_t bit = uint64_t{1} << rail.index();
        const bool others = (waiting->avoided | waiting->refused) != all_rails();
        if (waiting->blocked || (waiting->refused & bit) != 0 || (others && (waiting->avoided & bit) != 0)) continue;
        Choosing choosing;
        Choice choice = choose(rail, waiting->piece.remote, waiting->piece.direction, choosing);
        void* descriptor = nullptr;
        if (choice == Choice::kFound && waiting->piece.length > choosing.chunk->address + choosing.chunk->length - waiting->piece.remote)
            choice = Choice::kUnknown;  // the target cut its memory anew
        if (choice == Choice::kFound && waiting->piece.registered && rail.offer().local_keys) {
            const auto local = shared_.memory.find_local(reinterpret_cast<uint64_t>(waiting->piece.local), rail.index());
            descriptor = local.descriptor;
            if (local.room < waiting->piece.length) choice = Choice::kRefused;
        }
        if (choice == Choice::kUnknown) {
            const WantedKeys wanted{waiting->piece.remote, waiting->piece.length, waiting->piece.direction};
            if (keys_.covered(wanted) == wanted.length) {
                give_up(Error(Code::kStale, "the target's memory was registered anew, in other parts"));
                continue;
            }
            waiting->blocked = true;
            wishes_.keys(wanted);
            ask();
            continue;
        }
        if (choice == Choice::kRefused && refuse(rail, waiting->refused)) {
            give_up(error(Code::kUnavailable, "no rail reaches {}", descriptor_.name));
            continue;
        }
        if (choice == Choice::kLater) later = Next::kLater;
        if (choice != Choice::kFound) continue;
        if (!rail.has_room(waiting->piece.length, share_of(rail))) return Next::kLater;
        if (!waiting->piece.registered) {
            flight.bounce = rail.take_bounce();
            if (flight.bounce == nullptr) return Next::kLater;
            descriptor = rail.bounce_descriptor();
        }
        flight.piece = waiting->piece;
        waiting_.erase(waiting);
        fill(rail, flight, operation, choosing, descriptor);
        return Next::kReady;
    }
    return some_alone ? Next::kLater : later;
}

FabricPeer::Next FabricPeer::prepare_batch(Rail& rail, Flight& flight, Operation& operation, Endings& endings) {
    Next later = Next::kNothing;
    auto& batches = queue_.batches();
    for (auto next = batches.begin(); next != batches.end();) {
        const auto batch = next++;
        // Goes on with the slice after it, if there is one.
        const auto refuse_head = [&](Error error) MC_REQUIRES(mutex_) {
            endings.hold(endings_);
            if (queue_.refuse(batch, std::move(error), endings)) next = batch;
        };
        if (batch->blocked || (batch->refused >> rail.index() & 1) != 0) continue;
        const Slice& slice = batch->head();
        const uint64_t address = slice.remote + batch->offset;
        // Of a slice that is refused nothing at all is copied, so all of it must be known first.
        const bool known = batch->offset > 0 || keys_.covered(wanted_by(*batch)) == slice.length;
        Choosing choosing;
        Choice choice = known ? choose(rail, address, batch->direction, choosing) : Choice::kUnknown;
        if (choice == Choice::kUnknown && keys_.lacks(wanted_by(*batch), batch->answered)) {
            refuse_head(not_registered(wanted_by(*batch)));
            continue;
        }
        if (choice == Choice::kUnknown) {
            batch->blocked = true;
            wishes_.keys({.address = address, .length = slice.length - batch->offset, .direction = batch->direction});
            ask();
            continue;
        }
        uint64_t room = 0;
        void* descriptor = nullptr;
        if (choice == Choice::kFound) {
            room = choosing.chunk->address + choosing.chunk->length - address;
            if (!batch->registered()) {
                room = std::min(room, Rail::kBounceBytes);
            } else if (rail.offer().local_keys) {
                const auto local = shared_.memory.find_local(reinterpret_cast<uint64_t>(slice.local) + batch->offset, rail.index());
                descriptor = local.descriptor;
                room = std::min(room, local.room);
                if (room == 0) choice = Choice::kRefused;
            }
        }
        const bool device = slice.region != nullptr && slice.region->kind != MemoryKind::kHost;
        if (choice == Choice::kFound && device && !rail.offer().device_memory) choice = Choice::kRefused;
        if (choice == Choice::kRefused && refuse(rail, batch->refused)) {
            const bool not_carried = device || choosing.chunk->rails == 0;
            refuse_head(not_carried ? error(Code::kNotSupported, "no NIC carries memory of this device to or from {}", descriptor_.name)
                                    : error(Code::kUnavailable, "no rail reaches {}", descriptor_.name));
            continue;
        }
        if (choice == Choice::kLater) later = Next::kLater;
        if (choice != Choice::kFound) continue;
        const uint64_t length = length_for(rail, slice.length - batch->offset, room);
        if (!rail.has_room(length, share_of(rail))) return Next::kLater;
        if (!batch->registered()) {
            flight.bounce = rail.take_bounce();
            if (flight.bounce == nullptr) return Next::kLater;
            descriptor = rail.bounce_descriptor();
        }
        flight.piece = queue_.begin(batch, length);
        fill(rail, flight, operation, choosing, descriptor);
        return Next::kReady;
    }
    return later;
}

FabricPeer::Next FabricPeer::prepare_probe(Rail& rail, Flight& flight, Operation& operation) {
    const Time now = shared_.time.now();
    for (uint32_t remote = 0; remote < remotes_.count(); ++remote) {
        Path& path = paths_.at(rail.index(), remote);
        if (path.health.usable() || !path.compatible || path.suspended != Time{} || !is_announced(rail)) continue;
        const ChunkRecord* const chunk = keys_.probe(remote);
        if (chunk == nullptr || !path.health.begin_probe(now) || !paths_.open(rail, remote)) continue;
        if (begin_probe(rail, path, *chunk, flight, operation)) return Next::kReady;
    }
    return Next::kNothing;
}

bool FabricPeer::begin_probe(Rail& rail, Path& path, const ChunkRecord& chunk, Flight& flight, Operation& operation) {
    flight.bounce = rail.take_bounce();
    if (flight.bounce == nullptr) return false;
    flight.piece = {.direction = Direction::kRead, .remote = chunk.address, .length = std::min(chunk.length, kProbeBytes)};
    fill(rail, flight, operation, {.chunk = &chunk, .path = &path}, rail.bounce_descriptor());
    return true;
}

FabricPeer::Next FabricPeer::prepare(Rail& rail, Flight& flight, Operation& operation, Endings& endings) {
    if (broken_.load(std::memory_order_relaxed)) return Next::kNothing;
    if (alone_) return Next::kLater;
    const Next warm_up = to_warm_ == 0 ? Next::kNothing : prepare_warm_up(rail, flight, operation);
    if (warm_up == Next::kReady || (queue_.empty() && waiting_.empty())) return warm_up;
    if (prepare_probe(rail, flight, operation) == Next::kReady) return Next::kReady;
    const Next waiting = prepare_waiting(rail, flight, operation, endings);
    const bool some_alone = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& one) { return goes_alone(one.piece); });
    if (waiting == Next::kReady || some_alone) return waiting;
    const Next batch = prepare_batch(rail, flight, operation, endings);
    if (batch != Next::kNothing) return batch;
    return waiting != Next::kNothing ? waiting : warm_up;
}

Result<bool> FabricPeer::take_off(Rail& rail, Flight& flight, Operation& operation) {
    if (flight.bounce != nullptr && operation.direction == Direction::kWrite)
        MC_RETURN_IF_ERROR(copy_unregistered(operation.direction, flight.piece, flight.bounce));
    return rail.post(flight, operation);
}

bool FabricPeer::pull(Rail& rail, Endings& endings) {
    for (;;) {
        Flight& flight = rail.take();
        Operation operation;
        Next next = Next::kNothing;
        {
            Lock lock(mutex_);
            next = prepare(rail, flight, operation, endings);
        }
        if (next != Next::kReady) {
            rail.release(flight);
            return next == Next::kLater;
        }
        const auto posted = take_off(rail, flight, operation);
        if (posted && *posted) continue;
        Lock lock(mutex_);
        land(rail, flight);
        bool later = true;
        if (posted) {
            later = again(rail, flight, endings);
        } else if (posted.error().code() == Code::kNotRegistered && flight.piece.run != nullptr) {
            endings.hold(endings_);
            queue_.fail(flight.piece, posted.error(), endings);
        } else {
            const int number = posted.error().system_errno();
            failed(flight, {.context = &flight, .error = number != 0 ? number : EIO}, false, endings);
        }
        rail.release(flight);
        if (posted) return later;
    }
}

/// Undoes fill().
void FabricPeer::land(Rail& rail, Flight& flight) {
    flight.route->end();
    --in_flight_;
    flights_on_[rail.index()].fetch_sub(1, std::memory_order_relaxed);
    bytes_on_[rail.index()].fetch_sub(flight.piece.length, std::memory_order_relaxed);
    if (flight.bounce != nullptr) rail.release_bounce(std::exchange(flight.bounce, nullptr));
    alone_ = false;
}

/// Something changed for what waits, on whatever rail.
void FabricPeer::call_rails() {
    for (Rail* const rail : shared_.rails) {
        rail->announce(*this);
        rail->ring();
    }
}

/// The provider said "again": no room, a connection being made, or nobody there. True: try again without being announced.
bool FabricPeer::again(Rail& rail, Flight& flight, Endings& endings) {
    Route& route = *flight.route;
    const Time now = shared_.time.now();
    Path& path = paths_.at(rail.index(), route.remote);
    if (flight.piece.run == nullptr) {
        if (path.health.usable()) to_warm_ |= uint64_t{1} << rail.index();
        else path.health.postpone_probe(now + Route::kBackoffMax);
    } else if (flight.piece.given_up()) {
        endings.hold(endings_);
        queue_.finish(flight.piece, endings);
    } else {
        waiting_.push_front({.piece = flight.piece});
    }
    if (rail.metrics() != nullptr) rail.metrics()->again[route.in_flight > 0 ? 0 : 1]->add();
    if (route.in_flight > 0) return true;  // no room: the next completion makes some
    const bool look = route.postpone(now);
    rail.wake_by(route.retry_at);
    if (look) {
        wishes_.look();
        ask();
    }
    if (now - route.connecting_since > shared_.profile.connect_timeout && path.health.stalled(flight.generation, now)) {
        route.connecting_since = Time{};
        path_lost(rail.index(), endings);
    }
    return true;
}

// ---- what ended

void FabricPeer::on_finished(Rail& rail, Flight& flight, const Finished& finished, Endings& endings) {
    Result<> copied;
    if (finished.error == 0 && flight.bounce != nullptr && flight.piece.direction == Direction::kRead && flight.piece.run != nullptr)
        copied = copy_unregistered(flight.piece.direction, flight.piece, flight.bounce);
    {
        Lock lock(mutex_);
        const bool was_alone = alone_;
        land(rail, flight);
        Route& route = *flight.route;
        const Time now = shared_.time.now();
        route.progress = now;
        if (rail.metrics() != nullptr) rail.metrics()->took(flight.piece, now - flight.began, route.remote, finished.error == 0);
        endings.hold(endings_);
        if (finished.error == 0) {
            heard_ = now;
            route.connected();
            paths_.at(route.rail, route.remote).health.succeeded(flight.generation);
            if (flight.piece.run == nullptr) changed_.notify_all();
            if (flight.piece.run != nullptr) {
                if (copied) queue_.finish(flight.piece, endings);
                else queue_.fail(flight.piece, copied.error(), endings);
            }
        } else {
            failed(flight, finished, true, endings);
        }
        paths_.close_replaced(rail);
        if (in_flight_ == 0) changed_.notify_all();
        if (in_flight_ == 0 && (was_alone || !waiting_.empty())) call_rails();
    }
    rail.release(flight);
}

void FabricPeer::failed(const Flight& flight, const Finished& finished, bool posted, Endings& endings) {
    const Route& route = *flight.route;
    const Piece& piece = flight.piece;
    Path& path = paths_.at(route.rail, route.remote);
    const Time now = shared_.time.now();
    if (piece.run == nullptr) {
        path.health.failed(flight.generation, now);
        return;
    }
    const Trouble trouble = trouble_of(shared_.profile, finished.error, finished.provider_error);
    Error reason = error(code_of(trouble), "{}: {}", descriptor_.name,
                         describe_trouble(shared_.profile, finished.error, finished.provider_error));
    endings.hold(endings_);
    if (piece.given_up() || broken_.load(std::memory_order_relaxed) || trouble == Trouble::kMisuse) {
        if (posted && piece.direction == Direction::kWrite) held_.add_doubt(route.remote, route.epoch);
        queue_.fail(piece, reason, endings);
        return;
    }
    if (remotes_.replaced(route.remote, route.epoch)) {
        // That endpoint is closed, as we know already.
        waiting_.push_back({.piece = piece});
        shared_.rails[route.rail]->announce(*this);
        return;
    }
    path.suspended = now;
    Held held{.piece = piece,
              .rail = route.rail,
              .remote = route.remote,
              .epoch = route.epoch,
              .generation = flight.generation,
              .since = now,
              .posted = posted,
              .doubtful = posted && piece.direction == Direction::kWrite,
              .stale = trouble == Trouble::kStale,
              .reason = std::move(reason)};
    held_.hold(std::move(held));
    wishes_.look();
    ask();
}

bool FabricPeer::on_tick(Rail& rail, Time now, Endings& endings) {
    Lock lock(mutex_);
    paths_.close_replaced(rail);
    paths_.forget_idle(rail, now);
    if (flights_on_[rail.index()].load(std::memory_order_relaxed) == 0) return false;
    const bool all = broken_.load(std::memory_order_relaxed) && now >= reclaim_at_;
    bool hopeless = false, down = false;
    rail.for_each_flight([&](Flight& flight) MC_NO_THREAD_ANALYSIS {
        if (flight.client != this || flight.hopeless) return;
        flight.hopeless = all || now - flight.route->progress > shared_.profile.stall_timeout;
        if (!flight.hopeless) return;
        hopeless = true;
        Path& path = paths_.at(flight.route->rail, flight.route->remote);
        down |= !all && path.health.stalled(flight.generation, now);
    });
    if (down) paths_.distrust(rail.index(), now);
    if (down) path_lost(rail.index(), endings);
    return hopeless;
}

}  // namespace mooncake::fabric
