// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ascend_options.h"
#include "base/thread_annotations.h"
#include "base/thread_pool.h"
#include "base/timer_queue.h"
#include "transport/ascend/ascend_memory.h"
#include "transport/ascend/poller.h"
#include "transport/ascend/route_state.h"
#include "transport/cross_memory.h"
#include "transport/transport.h"

namespace mooncake::ascend {

/// Registered host memory of ours, for local memory that nobody registered. One user at a time.
struct Bounce {
    static constexpr uint64_t kBytes = 1 << 20;
    Mutex mutex;
    std::byte* memory = nullptr;
};

/// What the routes of a transport share. Outlives them.
struct RouteShared {
    const AscendOptions& options;
    AscendMemory& memory;
    ControlPlane& control;
    ThreadPool& links;    // what may take long: connecting, asking the peer
    ThreadPool& workers;  // transfers
    TimerQueue& timers;
    Poller* poller = nullptr;  // null: synchronous
};

/// A slice, or what is left of it.
struct Item {
    /// Of a slice that was cut: it is done when all its pieces are.
    struct Whole {
        uint32_t pieces = 1;
        std::optional<Error> failure;
    };
    const Slice* slice = nullptr;
    Direction direction = Direction::kRead;
    uint64_t offset = 0, length = 0;
    std::shared_ptr<Whole> whole;  // null: not cut
    int tries = 0;

    uint64_t remote() const noexcept { return slice->remote + offset; }
    std::byte* local() const noexcept { return slice->local + offset; }
};

/// The way from one of our stations to one engine of a peer: a queue, a link, and what was learnt of the peer's memory. One piece of work at a time, so
/// that a peer never has more than one worker. Thread-safe; lives in a shared_ptr, which its tasks hold.
class Route : public std::enable_shared_from_this<Route> {
public:
    struct Target {
        const SegmentDescriptor descriptor;
        uint32_t engine = 0;
        std::string name;  // of that engine
    };
    static constexpr size_t kPartsMax = 4096;  // of one call
    static constexpr uint64_t kBytesMax = uint64_t{256} << 20;
    static constexpr int kTriesMax = 3;
    static constexpr std::string_view kTransport = "ascend";

    /// `elsewhere` is given items whose memory lies at another engine of the peer.
    Route(RouteShared& shared, Station& station, Bounce& bounce, Target target,
          std::function<void(uint32_t engine, std::vector<Item> items)> elsewhere);
    Route(const Route&) = delete;
    Route& operator=(const Route&) = delete;

    /// Makes the link on the calling thread, if it is not there.
    Result<> connect(Deadline deadline);
    void submit(std::vector<Item> items);
    /// When it returns nothing of it is in a call of the library any more. False: what had begun had to be aborted, and the peer has not said that it is over.
    bool cancel(const Completion& completion, const Error& reason);
    /// The same for everything, for good.
    void close(const Error& reason);
    bool usable() const;
    /// Looks whether there is something to do: a link that nobody uses.
    void sweep();

private:
    struct Flight {
        uint64_t epoch = 0;
        Direction direction = Direction::kRead;
        std::vector<Item> items;
        abi::Descriptions parts;
        uint64_t bytes = 0;
        bool bounced = false;
    };
    using Flights = std::list<std::shared_ptr<Flight>>;
    using Done = std::vector<std::pair<Item, std::optional<Error>>>;

    // Tasks. `working_` is true while one of them is posted or runs, but for asynchronous requests under way.
    void schedule() MC_REQUIRES(mutex_);
    void post(ThreadPool& pool, void (Route::*task)()) MC_REQUIRES(mutex_);
    void run_connect();
    void run_disconnect();
    void run_resolve();
    void run_transfer();
    void task_over();

    Result<ResolveAnswer> ask(const ResolveRequest& request, Duration timeout);
    Result<> make_link(Duration timeout);
    /// The next piece of work; null: the first needs to be resolved, or there is none.
    std::shared_ptr<Flight> take_flight() MC_REQUIRES(mutex_);
    bool add_parts(Flight& flight, const Item& item, uint64_t length) MC_REQUIRES(mutex_);
    abi::Status transfer_bounced(Flight& flight, std::optional<Error>& failure);
    void begin_request(const std::shared_ptr<Flight>& flight);
    void finish(const std::shared_ptr<Flight>& flight, abi::Status status, std::optional<Error> failure = std::nullopt);
    void rest(abi::Status status);
    void judge(Flight& flight, abi::Status status, Done& done) MC_REQUIRES(mutex_);
    void sort_out(const ResolveRequest& asked, const ResolveAnswer& answer, Done& done, std::map<uint32_t, std::vector<Item>>& elsewhere)
        MC_REQUIRES(mutex_);

    /// Whether all of it is known, and may be used so. The length of the known beginning.
    uint64_t known(uint64_t address, uint64_t length, bool write) const MC_REQUIRES(mutex_);
    Duration time_for(uint64_t bytes) const;
    /// Cuts the first `length` bytes off the front of the queue.
    Item take(uint64_t length) MC_REQUIRES(mutex_);
    /// Everything that waits.
    void drain_queue(const Error& error, Done& done) MC_REQUIRES(mutex_);
    void break_down(const Error& error, Done& done) MC_REQUIRES(mutex_);
    bool flying(const Completion* completion) const MC_REQUIRES(mutex_);
    bool wait_for_flights(const Completion* completion);
    void complete(Done& done);
    static void tell(Done& done);

    RouteShared& shared_;
    Station& station_;
    Bounce& bounce_;
    const Target target_;
    const std::function<void(uint32_t, std::vector<Item>)> elsewhere_;
    const uint64_t id_;

    mutable Mutex mutex_;
    std::condition_variable_any changed_;
    RouteState state_ MC_GUARDED_BY(mutex_);
    std::deque<Item> queue_ MC_GUARDED_BY(mutex_);
    Flights flights_ MC_GUARDED_BY(mutex_);
    bool working_ MC_GUARDED_BY(mutex_) = false;
    std::optional<Error> ended_ MC_GUARDED_BY(mutex_);  // closed, or broken
    std::map<const Completion*, const Error*> cancelling_ MC_GUARDED_BY(mutex_);
    uint32_t completing_ MC_GUARDED_BY(mutex_) = 0;                   // lists that are being told
    bool moving_ MC_GUARDED_BY(mutex_) = false;                       // items are between this route and another
    std::map<uint64_t, RegionRecord> regions_ MC_GUARDED_BY(mutex_);  // of the peer's engine, learnt over this link
    uint64_t their_version_ MC_GUARDED_BY(mutex_) = 0;                // the link reaches what was there in these
    uint64_t our_version_ MC_GUARDED_BY(mutex_) = 0;
    Duration pause_ MC_GUARDED_BY(mutex_) = 0s;  // the library has no room
    Time full_since_ MC_GUARDED_BY(mutex_){};
};

}  // namespace mooncake::ascend
