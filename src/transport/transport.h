// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "base/completion.h"
#include "base/error.h"
#include "base/error_copy.h"
#include "base/incarnation.h"
#include "base/options.h"
#include "device/device.h"
#include "transport/access.h"
#include "transport/control.h"
#include "transport/descriptor.h"
#include "transport/memory.h"

namespace mooncake {

namespace metrics {
class Registry;
}

enum class Direction : uint8_t { kRead, kWrite };  // kRead: remote -> local

/// Lets the submitter look at bytes while they are in the cache: copies in place of memcpy() where a transport copies by itself, and is
/// shown them where it hands them to a network. Nobody sees what the kernel copies between processes, so the submitter must be able to
/// tell which bytes it has not seen. Who gives one vouches that the local memory is there.
///
/// Of local memory of a device it is shown the host's copy on the other side of the device's: the peer's memory where that is mapped, the buffer
/// that goes to the network. Not where a network reaches the device by itself.
class Copier {
public:
    virtual ~Copier() = default;
    /// An attempt at a part of the slice begins: what was copied of it before does not count.
    virtual void begin(const std::byte* local, uint64_t length) noexcept = 0;
    /// A part of the slice. From any thread, from several at once, for parts that do not overlap.
    virtual void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept = 0;
    /// A part of the slice, as it lies at `bytes`. In local memory (`bytes` is `local`): of a write at any time before its end, of a read once it is there.
    /// Elsewhere, since `local` is a device's: once the device has copied it. Threads as for copy().
    virtual void passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept = 0;
};

/// Bytes that a copier has not been shown yet.
struct Unseen {
    Copier* by = nullptr;
    const std::byte* local = nullptr;
    uint64_t length = 0;

    void show() const noexcept { by->passed(local, local, length); }
};

/// One contiguous piece to move. Counts as one operation of its completion.
struct Slice {
    std::byte* local = nullptr;
    uint64_t remote = 0;  // address in the peer's memory
    uint64_t length = 0;  // never 0
    Completion* completion = nullptr;
    const MemoryRegion* region = nullptr;  // our registration around `local`; null: unregistered, may not even be mapped
    Copier* copier = nullptr;              // or null: nobody wants to look
    const Slice* whole = nullptr;          // what it is a part of, by whose addresses the peer judges it; null: itself
    bool ordered = false;                  // all work that it depends on was waited for: no default stream has to be

    void copy(std::byte* to, const std::byte* from, uint64_t bytes) const noexcept {
        if (copier != nullptr) copier->copy(to, from, bytes);
        else std::memcpy(to, from, bytes);
    }
};

/// For a peer that cannot take slices it was given. With the last one their owner may free them.
inline void fail_slices(std::span<const Slice> slices, const Error& error) noexcept {
    for (size_t i = 0; i < slices.size(); ++i) slices[i].completion->fail(copy_error(error));
}

/// Before every submit() of slices that may have been submitted before.
inline void begin_attempt(std::span<const Slice> slices) noexcept {
    for (const Slice& slice : slices)
        if (slice.copier != nullptr) slice.copier->begin(slice.local, slice.length);
}

/// How the submitter goes on after submit().
enum class Submit : uint8_t {
    kWait,   // it calls wait() at once: the transport may work on its thread, in submit() or in wait()
    kLeave,  // it goes away: the transport's own threads must finish the work; submit() returns soon
};

enum class Stopped : uint8_t {
    kEverywhere,     // no byte of it moves any more, on either side
    kRemoteInDoubt,  // the peer could not be asked: it may still apply bytes it already has. Whoever connects to it next
                     // fences it first, so nothing sent later can be overtaken
};

/// One remote segment over one transport: a connection to one incarnation. Once it breaks it stays broken: everything
/// outstanding fails (kUnavailable, kStale) and the engine connects anew. Thread-safe.
class Peer {
public:
    /// Ends what is outstanding as cancel() does. No call may run in another thread.
    virtual ~Peer() = default;

    /// Takes the slices; never fails and never waits for room: problems reach the completions. `slices` and the memory they
    /// name must stay as they are until all their completions are done. Where it throws std::bad_alloc it has taken none of them: see
    /// submit_or_fail().
    virtual void submit(Direction direction, std::span<const Slice> slices, Submit how) = 0;

    /// Waits for a completion whose slices went to this peer, letting the calling thread do the transport's work where that is
    /// faster than waking another thread. True when done; false at the deadline (nothing is cancelled).
    virtual bool wait(Completion& completion, Deadline deadline) { return completion.wait(deadline); }

    /// Lets the calling thread do a moment of the transport's work, for one that asks again and again whether something is done instead of
    /// waiting for it. Never blocks.
    virtual void poke() {}

    /// Ends what has not begun of all parts of `whole`, in one pass, for one who is about to cancel() them one by one. May leave any of
    /// it to those.
    virtual void withdraw(const Completion& /*whole*/, const Error& /*reason*/) {}

    /// Stops everything outstanding of one completion. When it returns, the completion is done and no byte of it is read from or
    /// written to local memory any more. Waits for the peer's word no longer than the deadline.
    virtual Stopped cancel(Completion& completion, const Error& reason, Deadline deadline) = 0;

    /// Breaks the connection at once, from any thread, while others submit and wait: everything outstanding fails with `reason`
    /// and nothing of it moves in local memory any more. Idempotent; later submits fail at once.
    virtual void close(const Error& reason) = 0;

    /// Does ahead of the first transfer what it would have to do otherwise: addresses, keys, connections. Returns when that is
    /// done, or the deadline passed. Calling it again costs little.
    virtual Result<> warm_up(Deadline /*deadline*/) { return {}; }

    /// False once broken or closed, also by the death of an idle peer (noticed by itself within a second or so, resources freed).
    virtual bool usable() const noexcept = 0;
};

/// Has the peer take the slices. Where there is no memory for that they fail, as by any other problem.
inline void submit_or_fail(Peer& peer, Direction direction, std::span<const Slice> slices, Submit how) noexcept {
    try {
        peer.submit(direction, slices, how);
    } catch (const std::bad_alloc&) {
        fail_slices(slices, out_of_memory());
    }
}

enum class Reach : uint8_t { kSameProcess, kSameHost, kNetwork };

/// What a transport can do, as data. The router prefers the lower rank among those that reach the peer.
struct Capabilities {
    std::string_view name;  // "self", "shm", "tcp"
    Reach reach = Reach::kNetwork;
    int rank = 0;
    KindPairs pairs = {};      // memory it can move; what it refuses all the same (kNotSupported) goes another way, too
    bool warms_up = false;     // a first transfer gains by Peer::warm_up()
    bool maps_memory = false;  // copies from and to memory of the peer that is mapped here
};

namespace net {
class Interrupt;
}

/// What every transport of one engine shares. Outlives them.
struct TransportContext {
    Incarnation incarnation;
    const EngineOptions& options;
    AccessTable& access;
    ControlPlane& control;
    metrics::Registry* metrics = nullptr;  // null: nobody reads them
    Devices* devices = &Devices::of_process();
    const net::Interrupt* closing = nullptr;  // ends connects under way, and later ones; null: nothing does
};

/// One way to move bytes. All vendor-specific code of it lives in its folder. Thread-safe. Peers and registrations must be
/// destroyed first.
class Transport {
public:
    virtual ~Transport() = default;

    virtual const Capabilities& capabilities() const noexcept = 0;
    /// What connect() on the other side needs; published in our descriptor under our name.
    virtual std::string endpoint() const = 0;
    /// Makes a region reachable for peers of this transport. Null: nothing to do (the AccessTable is all it needs).
    virtual Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion& region) = 0;
    /// Blocks until connected, the deadline or `closing`. kUnavailable, kStale (another incarnation answered), kRefused (permission,
    /// version), kNotSupported (this pair cannot use the transport).
    virtual Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline deadline) = 0;
    /// Ends the serving of peers for good: when it returned success, no access of any peer touches our memory any more. kBusy at the
    /// deadline: nothing begins any more, but some access may still run. The AccessTable is closed before. Our own peers and
    /// registrations go on existing. May be called again.
    virtual Result<> stop_serving(Deadline /*deadline*/) { return {}; }
    /// Gives threads and descriptors back, for good. After stop_serving() succeeded, when there is no peer of ours any more and nobody is in a
    /// call; registrations may still exist. What can only go with the transport itself stays. May be called again.
    virtual void shut_down() {}
};

}  // namespace mooncake
