// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/fabric/api.h"
#include "transport/fabric/fabric_metrics.h"
#include "transport/fabric/flight.h"
#include "transport/fabric/profile.h"
#include "transport/fabric/time_source.h"
#include "transport/fabric/wire.h"

namespace mooncake::fabric {

class Rail;
class RailThread;

/// Who posts on rails: a peer. Everything is called with the rail's lock held.
class RailClient {
public:
    /// The flight is over; goes back with Rail::release().
    virtual void on_finished(Rail& rail, Flight& flight, const Finished& finished, Endings& endings) = 0;
    /// Posts what it has for this rail, while has_room(). False: nothing more now; it will announce itself again.
    virtual bool pull(Rail& rail, Endings& endings) = 0;
    /// Now and then while something is under way. True: some of its flights are hopeless, the endpoint has to go.
    virtual bool on_tick(Rail& rail, Time now, Endings& endings) = 0;

protected:
    ~RailClient() = default;
};

/// One NIC: a domain, its completion queue, a serving endpoint whose name peers know, and an initiating endpoint for our operations.
///
/// Whoever holds the lock owns it all, for one step at a time: the rail's thread, or a caller inside submit() or wait() that found it
/// free. The rule that keeps work from being forgotten: who announced a client then tries to drive the rail, and who drove it looks,
/// after unlocking, whether somebody was announced meanwhile. Clients outlive their flights and detach before they go.
class Rail {
public:
    struct Settings {
        uint32_t index = 0;
        ProviderProfile profile;
        uint32_t operations_max = 0;     // 0: as many as the NIC takes
        uint64_t window_bytes = 0;       // in flight
        uint64_t run_bytes = 0;          // of which of one client
        int32_t numa_node = -1;          // -1: not known
        RailMetrics* metrics = nullptr;  // null: nothing is counted; outlives the rail
        const TimeSource* time = &TimeSource::real();
    };
    static Result<std::unique_ptr<Rail>> open(FabricApi& api, const Offer& offer, const Settings& settings);
    /// No client is left.
    ~Rail();
    Rail(const Rail&) = delete;
    Rail& operator=(const Rail&) = delete;

    uint32_t index() const noexcept { return settings_.index; }
    const Offer& offer() const noexcept { return offer_; }
    const ProviderProfile& profile() const noexcept { return settings_.profile; }
    uint32_t credits_max() const noexcept { return credits_max_; }
    RailMetrics* metrics() const noexcept { return settings_.metrics; }  // null: nothing is counted
    void set_thread(RailThread* thread) noexcept { thread_ = thread; }

    // ---- for anybody

    /// The client has something for us. Follow with drive() or ring().
    void announce(RailClient& client);
    /// Does what there is to do, unless somebody else is at it. True: something happened.
    bool drive(Endings& endings);
    /// Wakes the rail's thread.
    void ring() noexcept;
    /// When the rail wants to be driven next if nothing happens before.
    Time wake_at() const noexcept { return Time(Duration(wake_at_.load(std::memory_order_acquire))); }
    bool announced() const noexcept { return announced_any_.load(std::memory_order_seq_cst); }
    /// A waiting caller drives the rail for a while: then its thread keeps out of the way.
    void begin_driving() noexcept { drivers_.fetch_add(1, std::memory_order_acq_rel); }
    /// `back_soon`: it will probably drive again in a moment.
    void end_driving(bool back_soon) noexcept;
    bool is_being_driven() const noexcept { return drivers_.load(std::memory_order_acquire) > 0; }
    /// Or will be in a moment.
    bool is_driven(Time now) const noexcept;
    int wait_fd() const noexcept { return wait_fd_; }
    /// Whether its thread may sleep on wait_fd().
    enum class Sleep : uint8_t { kMay, kNotNow, kTaken };  // kTaken: somebody else is at work
    Sleep may_sleep();
    /// Its descriptor is readable although there is nothing: puts that right.
    void calm_wait_fd();
    /// Completions were read since then.
    bool signalled() const noexcept { return signalled_.load(std::memory_order_relaxed); }

    /// The serving endpoint as it is now.
    RailState state() const;
    RailRecord record() const;
    /// The initiating endpoint as it is now, in the place of the serving one; `epoch` counts up when it is another.
    RailRecord initiating_record() const;
    uint64_t initiating_epoch() const noexcept { return initiating_epoch_.load(std::memory_order_acquire); }
    /// From now on there is an endpoint to initiate from, if one can be opened.
    void attach(RailClient& client);
    /// None of its flights is under way.
    void detach(RailClient& client);

    // ---- for who holds the lock

    Mutex& mutex() MC_THREAD_ATTRIBUTE(lock_returned(mutex_)) { return mutex_; }
    /// Returns once the serving endpoint of that epoch, and all before it, are closed. What is bound to it goes first: `unbind`, which
    /// is not called when there is nothing to close.
    Result<> close_epoch(uint64_t epoch, const std::function<void()>& unbind = {}) MC_REQUIRES(mutex_);
    /// Where it could not be opened again: tries to. True: it serves.
    bool serve_again() MC_REQUIRES(mutex_);
    /// Closes the serving endpoint for good. No registration is bound to it. The initiating one goes, too, while there is no client: targets keep a
    /// connection for it.
    void stop_serving() MC_REQUIRES(mutex_);
    /// What a client has under way here.
    struct Share {
        uint32_t operations = 0;
        uint64_t bytes = 0;
    };
    /// Whether it may have so much more. A client that has much must leave some: one whose target hangs would else take the rail from all others.
    bool has_room(uint64_t bytes, const Share& share) const noexcept MC_REQUIRES(mutex_);
    Flight& take() MC_REQUIRES(mutex_);
    void release(Flight& flight) MC_REQUIRES(mutex_);
    /// False: "again".
    Result<bool> post(Flight& flight, Operation operation) MC_REQUIRES(mutex_);
    /// Handles are counted: the same name gives the same one.
    Result<AddressHandle> insert_address(const std::vector<std::byte>& name) MC_REQUIRES(mutex_);
    /// Few more addresses will fit: what is idle should go, soon.
    bool is_crowded() const noexcept MC_REQUIRES(mutex_) {
        return addresses_.size() >= settings_.profile.addresses_max - settings_.profile.addresses_max / 10;
    }
    bool is_full() const noexcept MC_REQUIRES(mutex_) { return addresses_.size() >= settings_.profile.addresses_max; }
    void remove_address(AddressHandle address) MC_REQUIRES(mutex_);
    Result<std::unique_ptr<MemoryKey>> register_memory(Domain::KeyRequest request) MC_REQUIRES(mutex_);
    /// Where there are hopeless flights: a new initiating endpoint takes what comes; the old one is closed when its flights are over, but not later than after `drain`
    /// (at once when only hopeless ones are left). What is still on it then ends with ECANCELED.
    void recycle(Duration drain) MC_REQUIRES(mutex_);
    /// Calls `body(flight)` for everything under way.
    template <typename Body>
    void for_each_flight(Body&& body) MC_REQUIRES(mutex_) {
        for (Flight* flight = current_.flights.first(); flight != nullptr; flight = current_.flights.after(flight)) body(*flight);
        for (Initiating& old : retiring_)
            for (Flight* flight = old.flights.first(); flight != nullptr; flight = old.flights.after(flight)) body(*flight);
    }
    /// Comes back not later than then.
    void wake_by(Time time) MC_REQUIRES(mutex_) { wake_next_ = std::min(wake_next_, time); }
    /// Memory that a NIC may use, for local memory that is not registered. Null: none free now.
    std::byte* take_bounce() MC_REQUIRES(mutex_);
    void release_bounce(std::byte* bounce) MC_REQUIRES(mutex_) { bounces_.push_back(bounce); }
    void* bounce_descriptor() const noexcept MC_REQUIRES(mutex_) { return bounce_key_ ? bounce_key_->descriptor() : nullptr; }

    static constexpr uint32_t kShareMax = 3;  // times as much as it leaves for others
    static constexpr uint64_t kBounceBytes = 256 << 10;
    static constexpr size_t kBounces = 8;

private:
    struct Initiating {
        std::unique_ptr<Endpoint> endpoint;
        FlightList flights;
        Time close_at{};
    };

    Rail(const Offer& offer, const Settings& settings) : offer_(offer), settings_(settings) {}

    bool step(Endings& endings) MC_REQUIRES(mutex_);
    size_t poll(Endings& endings) MC_REQUIRES(mutex_);
    void finish(Flight& flight, const Finished& finished, Endings& endings) MC_REQUIRES(mutex_);
    void pull(Endings& endings) MC_REQUIRES(mutex_);
    void tick(Time now, Endings& endings) MC_REQUIRES(mutex_);
    void retire(Time now, Endings& endings) MC_REQUIRES(mutex_);
    void close(Initiating& old, Endings& endings) MC_REQUIRES(mutex_);
    Result<> open_serving() MC_REQUIRES(mutex_);
    void serve_nobody() MC_REQUIRES(mutex_);
    void set_initiating(std::unique_ptr<Endpoint> endpoint) MC_REQUIRES(mutex_);
    bool is_idle_for_good() const noexcept MC_REQUIRES(mutex_) { return !serves_ && clients_.empty(); }
    void open_initiating() MC_REQUIRES(mutex_);
    /// Closes the initiating endpoint where nobody needs it.
    void rest() MC_REQUIRES(mutex_);

    const Offer offer_;
    const Settings settings_;
    uint32_t credits_max_ = 0;  // constant after open(), as are
    int wait_fd_ = -1;
    RailThread* thread_ = nullptr;

    Mutex mutex_;
    std::unique_ptr<Domain> domain_ MC_GUARDED_BY(mutex_);
    std::unique_ptr<Endpoint> serving_ MC_GUARDED_BY(mutex_);  // null: could not be opened again
    bool serves_ MC_GUARDED_BY(mutex_) = true;                 // false: for good
    Initiating current_ MC_GUARDED_BY(mutex_);                 // without an endpoint while none can be opened, or is needed
    std::list<Initiating> retiring_ MC_GUARDED_BY(mutex_);
    uint32_t aloft_ MC_GUARDED_BY(mutex_) = 0;  // on all endpoints
    uint64_t aloft_bytes_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<Finished> finished_ MC_GUARDED_BY(mutex_);
    std::vector<std::unique_ptr<Flight>> flights_ MC_GUARDED_BY(mutex_);  // all there are
    std::vector<Flight*> free_ MC_GUARDED_BY(mutex_);
    std::list<Flight*> orphans_ MC_GUARDED_BY(mutex_);
    std::vector<RailClient*> active_ MC_GUARDED_BY(mutex_);   // may have something to post
    std::vector<RailClient*> clients_ MC_GUARDED_BY(mutex_);  // all
    struct Address {
        AddressHandle handle = 0;
        uint32_t users = 0;
    };
    std::map<std::vector<std::byte>, Address> addresses_ MC_GUARDED_BY(mutex_);
    bool wanted_soon_ MC_GUARDED_BY(mutex_) = false;  // a client asked in the last step to be called before the next tick
    Time ticked_ MC_GUARDED_BY(mutex_){};
    Time reopen_at_ MC_GUARDED_BY(mutex_){};
    Time wake_next_ MC_GUARDED_BY(mutex_){};
    std::vector<std::byte> bounce_memory_ MC_GUARDED_BY(mutex_);
    std::unique_ptr<MemoryKey> bounce_key_ MC_GUARDED_BY(mutex_);
    std::vector<std::byte*> bounces_ MC_GUARDED_BY(mutex_);

    std::atomic<Duration::rep> wake_at_{0};
    std::atomic<bool> signalled_{false};
    std::atomic<int> drivers_{0};
    std::atomic<Duration::rep> driven_until_{0};
    std::atomic<bool> announced_any_{false};
    Mutex announced_mutex_;  // inside mutex_
    std::vector<RailClient*> announced_ MC_GUARDED_BY(announced_mutex_);

    mutable Mutex state_mutex_;  // inside mutex_
    uint64_t epoch_ MC_GUARDED_BY(state_mutex_) = 0;
    std::vector<std::byte> name_ MC_GUARDED_BY(state_mutex_);
    std::atomic<uint64_t> initiating_epoch_{0};  // written with state_mutex_
    std::vector<std::byte> initiating_name_ MC_GUARDED_BY(state_mutex_);
};

}  // namespace mooncake::fabric
