// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/gate.h"
#include "base/thread_annotations.h"
#include "transport/control.h"
#include "transport/fabric/control_pool.h"
#include "transport/fabric/control_wishes.h"
#include "transport/fabric/doubts.h"
#include "transport/fabric/fabric_memory.h"
#include "transport/fabric/held_operations.h"
#include "transport/fabric/nics.h"
#include "transport/fabric/peer_paths.h"
#include "transport/fabric/queue.h"
#include "transport/fabric/rail.h"
#include "transport/fabric/remote_keys.h"
#include "transport/fabric/remote_rails.h"
#include "transport/fabric/split.h"
#include "transport/fabric/time_source.h"
#include "transport/fabric/trouble.h"

namespace mooncake::fabric {

/// What all peers of one transport share. Outlives them.
struct FabricShared {
    Incarnation incarnation;
    ProviderProfile profile;
    FabricOptions options;
    std::vector<Rail*> rails;
    RailOrder order;
    FabricMemory& memory;
    ControlPlane& control;
    DoubtTable& doubts;
    Tasks& pool;
    const TimeSource& time = TimeSource::real();
};

/// The connection to one incarnation of one remote segment: a queue of slices that our rails pull from, what we know of the target's rails
/// and keys, and what has to be asked there. Behind the Peer that the engine has: tasks on the control plane may outlive that for a moment.
///
/// Locks: a rail's, then the peer's. A piece that failed is *held* until the control plane said what became of the endpoint it went to:
/// closed meanwhile (then it just goes again), or still there; then a write, which might yet land, is fenced first (ADR 0030).
class FabricPeer final : public RailClient, public std::enable_shared_from_this<FabricPeer> {
public:
    /// `blob` is what stands in the descriptor. Asks the target who it is. kUnavailable, kStale, kNotSupported.
    static Result<std::shared_ptr<FabricPeer>> connect(FabricShared& shared, const SegmentDescriptor& descriptor, const EndpointBlob& blob,
                                                       Deadline deadline);
    ~FabricPeer();

    // As Peer.
    void submit(Direction direction, std::span<const Slice> slices, Submit how);
    bool wait(Completion& completion, Deadline deadline);
    Stopped cancel(Completion& completion, const Error& reason, Deadline deadline);
    void close(const Error& reason);
    bool usable() const noexcept { return !broken_.load(std::memory_order_acquire); }
    /// Reads a few bytes from each of the target's rails that one of ours prefers and has not spoken to yet.
    Result<> warm_up(Deadline deadline);

    /// Where an earlier connection to the target had no path left: whether there is one again. kUnavailable.
    Result<> reach(Deadline deadline);

    /// Ends everything and leaves the rails. Once.
    void leave();
    /// Now and then, from the transport: asks an idle target whether it is still there.
    void sweep(Time now);
    /// Adds its paths to `counts`.
    void count_paths(PathCounts& counts);

private:
    /// A piece that goes (again) before anything else.
    struct Waiting {
        Piece piece;
        uint64_t avoided = 0;  // rails (bits) on which it failed: others go first
        uint64_t refused = 0;  // rails that cannot carry it
        bool blocked = false;  // waits for keys
    };
    enum class Next : uint8_t { kReady, kLater, kNothing };  // kLater: come again without being announced
    enum class Choice : uint8_t { kFound, kLater, kRefused, kUnknown };
    struct Choosing {
        const ChunkRecord* chunk = nullptr;
        Path* path = nullptr;
    };

    FabricPeer(FabricShared& shared, SegmentDescriptor descriptor, const EndpointBlob& blob);

    // ---- rails (peer_rails.cpp); the rail's lock is held
    void on_finished(Rail& rail, Flight& flight, const Finished& finished, Endings& endings) MC_REQUIRES(rail.mutex()) override;
    bool pull(Rail& rail, Endings& endings) MC_REQUIRES(rail.mutex()) override;
    bool on_tick(Rail& rail, Time now, Endings& endings) MC_REQUIRES(rail.mutex()) override;
    Next prepare(Rail& rail, Flight& flight, Operation& operation, Endings& endings) MC_REQUIRES(mutex_, rail.mutex());
    Next prepare_waiting(Rail& rail, Flight& flight, Operation& operation, Endings& endings) MC_REQUIRES(mutex_, rail.mutex());
    Next prepare_batch(Rail& rail, Flight& flight, Operation& operation, Endings& endings) MC_REQUIRES(mutex_, rail.mutex());
    Next prepare_probe(Rail& rail, Flight& flight, Operation& operation) MC_REQUIRES(mutex_, rail.mutex());
    Next prepare_warm_up(Rail& rail, Flight& flight, Operation& operation) MC_REQUIRES(mutex_, rail.mutex());
    bool begin_probe(Rail& rail, Path& path, const ChunkRecord& chunk, Flight& flight, Operation& operation)
        MC_REQUIRES(mutex_, rail.mutex());
    Choice choose(Rail& rail, uint64_t address, Direction direction, Choosing& choosing) MC_REQUIRES(mutex_, rail.mutex());
    bool is_announced(const Rail& rail) MC_REQUIRES(mutex_);
    void fill(Rail& rail, Flight& flight, Operation& operation, const Choosing& choosing, void* descriptor)
        MC_REQUIRES(mutex_, rail.mutex());
    Result<bool> take_off(Rail& rail, Flight& flight, Operation& operation) MC_REQUIRES(rail.mutex());
    void land(Rail& rail, Flight& flight) MC_REQUIRES(mutex_, rail.mutex());
    bool again(Rail& rail, Flight& flight, Endings& endings) MC_REQUIRES(mutex_, rail.mutex());
    void failed(const Flight& flight, const Finished& finished, bool posted, Endings& endings) MC_REQUIRES(mutex_);
    bool refuse(Rail& rail, uint64_t& refused) MC_REQUIRES(mutex_, rail.mutex());
    uint64_t all_rails() const noexcept;
    /// Goes when nothing else is under way: where one bad operation takes all others of its connection with it, it must not do so again.
    bool goes_alone(const Piece& piece) const noexcept { return piece.attempts > 0 && piece.attempts + 1 >= shared_.options.attempts; }
    void call_rails() MC_REQUIRES(mutex_);
    Rail::Share share_of(const Rail& rail) const noexcept;
    uint64_t length_for(const Rail& rail, uint64_t left, uint64_t room) const noexcept;

    // ---- ahead of the first transfer (peer_warm_up.cpp)
    Path* first_path(const Rail& rail, uint32_t& remote) MC_REQUIRES(mutex_);
    uint64_t cold_rails() MC_REQUIRES(mutex_);

    // ---- the control plane (peer_control.cpp)
    void ask() MC_REQUIRES(mutex_);
    void fulfil_wishes();
    Result<> fulfil(const Wishes& wishes, Endings& endings);
    Result<> resolve(const WantedKeys& range, size_t rails, Endings& endings);
    /// An answer to what was asked at `asked`. True: some endpoint is another now, so that no key is known any more.
    bool apply(std::span<const RailState> states, Time asked, Endings& endings) MC_REQUIRES(mutex_);
    void settle_held(Time asked, Endings& endings) MC_REQUIRES(mutex_);
    void release_held(Endings& endings) MC_REQUIRES(mutex_);
    /// What waited for keys of the range goes on, or is refused, with all that the same answer says is not there.
    void settle_blocked(const WantedKeys& range, const RemoteKeys::Answered& answered, Endings& endings) MC_REQUIRES(mutex_);
    static WantedKeys wanted_by(const WorkQueue::Batch& batch);
    Error not_registered(const WantedKeys& range) const MC_REQUIRES(mutex_);
    Result<> greet(const EndpointBlob& blob, Deadline deadline);
    Result<> announce(size_t rails, Deadline deadline);

    // ---- the end (fabric_peer.cpp)
    void break_off(const Error& reason, Endings& endings) MC_REQUIRES(mutex_);
    /// A path from this rail of ours went down.
    void path_lost(uint32_t rail, Endings& endings) MC_REQUIRES(mutex_);
    void drop_waiting(const Completion* completion, Endings& endings) MC_REQUIRES(mutex_);
    class Driver;
    bool drive(Endings& endings);
    bool concerns(const Rail& rail) const noexcept;  // something of ours is on it, or waits for it
    Duration patience() const noexcept;
    void reclaim(const Completion* completion);
    void wait_for_flights();
    void wake_rails();

    FabricShared& shared_;
    const SegmentDescriptor descriptor_;
    std::atomic<bool> broken_{false};
    std::atomic<uint32_t> next_rail_{0};
    std::vector<std::atomic<uint32_t>> flights_on_;  // by rail
    std::vector<std::atomic<uint64_t>> bytes_on_;    // by rail
    Gate endings_;                                   // somebody is about to tell completions

    Mutex mutex_;
    std::condition_variable_any changed_;
    Error reason_ MC_GUARDED_BY(mutex_);
    bool left_ MC_GUARDED_BY(mutex_) = false;
    WorkQueue queue_ MC_GUARDED_BY(mutex_);
    std::deque<Waiting> waiting_ MC_GUARDED_BY(mutex_);
    RemoteRails remotes_ MC_GUARDED_BY(mutex_);
    HeldOperations held_ MC_GUARDED_BY(mutex_);
    PeerPaths paths_ MC_GUARDED_BY(mutex_);
    RemoteKeys keys_ MC_GUARDED_BY(mutex_);
    std::vector<uint64_t> announced_ MC_GUARDED_BY(mutex_);  // by our rail: epoch of the initiating endpoint that the target knows; 0: none
    Time announced_at_ MC_GUARDED_BY(mutex_){};
    bool alone_ MC_GUARDED_BY(mutex_) = false;    // what is under way wants nothing beside it
    uint64_t to_warm_ MC_GUARDED_BY(mutex_) = 0;  // our rails (bits) that owe a warm-up its read
    uint32_t in_flight_ MC_GUARDED_BY(mutex_) = 0;
    Time heard_ MC_GUARDED_BY(mutex_){};       // a sign of life
    Time reclaim_at_ MC_GUARDED_BY(mutex_){};  // when broken: then what still flies is hopeless
    ControlWishes wishes_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::fabric
