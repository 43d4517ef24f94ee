// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "engine/link.h"
#include "engine/metrics_log.h"
#include "engine/service.h"
#include "metrics/metrics.h"
#include "transport/transport.h"

namespace mooncake {

/// The transports of one engine, and the choice of one for each peer: the nearest that reaches it. Thread-safe.
class Router {
public:
    /// Waits for links that a transport's thread still holds.
    ~Router();

    /// Makes the transports that the options allow. kInvalidArgument when MC_TRANSPORTS names an unknown one, kNotSupported when
    /// none of the allowed ones works here or a network device is required and absent.
    static Result<std::unique_ptr<Router>> create(const TransportContext& context, metrics::Registry& metrics, Service& service);

    /// With given transports instead of those of this build: for tests.
    static std::unique_ptr<Router> with(std::vector<std::unique_ptr<Transport>> transports, const TransportContext& context,
                                        metrics::Registry& metrics, Service& service);

    /// For the descriptor we publish.
    std::map<std::string, std::string> endpoints() const;
    std::vector<Transport*> transports() const;
    /// Whether one of them gains by warming up.
    bool warms_up() const noexcept;
    /// Whether one of them copies from and to mapped memory of other processes.
    bool maps_peers() const noexcept;
    /// Gives the transports' threads and descriptors back, for good: after they stopped serving, when all sessions are closed and nobody is in
    /// a call. Where a link is still held until then, they stay.
    void shut_down(Deadline patience);
    /// For the metrics log.
    std::vector<MetricsLog::Source> metrics_sources();

    /// Connects over the best transport both sides have that meets the need; falls back to the next best when one
    /// cannot (said now and then), not when the descriptor turns out to be stale. `better_than`: only those before this one, quietly.
    Result<std::shared_ptr<Link>> connect(SegmentDescriptor descriptor, std::string rpc_address, const Need& need, Deadline deadline,
                                          const Transport* better_than = nullptr);
    /// Whether a link is as near as one for this need can be: a nearer transport that meets the need was tried when the link was made.
    bool nearest(const Link& link, const Need& need) const;
    /// Whether one of them meets it, whatever it reaches. kNotSupported.
    Result<> check(const Need& need) const;

private:
    struct Path {
        std::unique_ptr<Transport> transport;
        PathMetrics metrics;
    };

    /// Links that nobody holds any more, on their way to the thread that ends them. Shared with that thread's tasks.
    struct Ended {
        explicit Ended(Service& s) : service(&s) {}
        Mutex mutex;
        std::condition_variable_any changed;
        Service* service MC_GUARDED_BY(mutex);  // null: the router is gone, and with it what a peer would need to end
        size_t alive MC_GUARDED_BY(mutex) = 0;  // links not yet destroyed
        std::vector<Link*> links MC_GUARDED_BY(mutex);

        void close_all();
        /// Destroys one that waits. False when there was none.
        bool destroy();
        /// Destroys all, also those that somebody lets go of until the deadline. True when none is left.
        bool destroy_all(Deadline patience);
    };

    Router(const TransportContext& context, Service& service) : context_(context), ended_(std::make_shared<Ended>(service)) {}
    void add(std::unique_ptr<Transport> transport, metrics::Registry& metrics);
    static bool reaches(const TransportContext& context, const Capabilities& capabilities, const SegmentDescriptor& descriptor);

    /// Where links end: their last holder may be one of the transport's own threads, which could not wait for itself. So it only hands
    /// the link over, and never has it again, however early the service comes.
    static void let_go(const std::shared_ptr<Ended>& ended, Link* link);

    std::vector<Path> paths_;  // by rank; constant after create()
    const TransportContext& context_;
    const std::shared_ptr<Ended> ended_;
};

}  // namespace mooncake
