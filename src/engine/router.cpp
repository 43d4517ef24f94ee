// SPDX-License-Identifier: Apache-2.0
#include "engine/router.h"

#include <algorithm>
#include <new>

#include "base/log.h"
#include "engine/transports.h"

namespace mooncake {

namespace {

constexpr Duration kLinkPatience = 10s;  // nothing holds a link for long when the engine is closed

}  // namespace

Result<std::unique_ptr<Router>> Router::create(const TransportContext& context, metrics::Registry& metrics, Service& service) {
    MC_ASSIGN_OR_RETURN(auto transports, make_transports(context));
    if (transports.empty()) return fail(Code::kNotSupported, "none of the allowed transports is available");
    return with(std::move(transports), context, metrics, service);
}

std::unique_ptr<Router> Router::with(std::vector<std::unique_ptr<Transport>> transports, const TransportContext& context,
                                     metrics::Registry& metrics, Service& service) {
    auto router = std::unique_ptr<Router>(new Router(context, service));
    for (auto& transport : transports) router->add(std::move(transport), metrics);
    return router;
}

void Router::add(std::unique_ptr<Transport> transport, metrics::Registry& metrics) {
    const std::string name(transport->capabilities().name);
    Path path{.transport = std::move(transport), .metrics = {}};
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        const metrics::Labels labels = {{"path", name}, {"direction", direction == Direction::kRead ? "read" : "write"}};
        path.metrics.of(direction) = {
            .bytes = &metrics.counter("mooncake_transfer_bytes_total", "Bytes moved by transfers that this process started.", labels),
            .transfers = &metrics.counter("mooncake_transfers_total", "Transfers (calls or batches) that succeeded.", labels),
            .failures = &metrics.counter("mooncake_transfer_failures_total", "Attempts that failed, retried ones included.", labels),
            .latency_ns = &metrics.histogram("mooncake_transfer_latency_seconds", "From submission to completion.", labels, 1e9),
        };
    }
    paths_.push_back(std::move(path));
    std::sort(paths_.begin(), paths_.end(),
              [](const Path& a, const Path& b) { return a.transport->capabilities().rank < b.transport->capabilities().rank; });
}

std::map<std::string, std::string> Router::endpoints() const {
    std::map<std::string, std::string> endpoints;
    for (const Path& path : paths_) endpoints.emplace(path.transport->capabilities().name, path.transport->endpoint());
    return endpoints;
}

std::vector<Transport*> Router::transports() const {
    std::vector<Transport*> transports;
    for (const Path& path : paths_) transports.push_back(path.transport.get());
    return transports;
}

bool Router::warms_up() const noexcept {
    return std::any_of(paths_.begin(), paths_.end(), [](const Path& path) { return path.transport->capabilities().warms_up; });
}

bool Router::maps_peers() const noexcept {
    return std::any_of(paths_.begin(), paths_.end(), [](const Path& path) {
        const Capabilities& can = path.transport->capabilities();
        return can.maps_memory && can.reach != Reach::kSameProcess;
    });
}

std::vector<MetricsLog::Source> Router::metrics_sources() {
    std::vector<MetricsLog::Source> sources;
    for (Path& path : paths_) sources.push_back({.path = std::string(path.transport->capabilities().name), .metrics = &path.metrics});
    return sources;
}

bool Router::reaches(const TransportContext& context, const Capabilities& capabilities, const SegmentDescriptor& descriptor) {
    switch (capabilities.reach) {
        case Reach::kSameProcess: return descriptor.incarnation == context.incarnation;
        case Reach::kSameHost: return !descriptor.boot_id.empty() && descriptor.boot_id == boot_id();
        case Reach::kNetwork: return true;
    }
    return false;
}

void Router::let_go(const std::shared_ptr<Ended>& ended, Link* link) {
    Lock lock(ended->mutex);
    if (ended->service == nullptr) return;  // leaks, since its transport is gone
    ended->links.push_back(link);           // there is room for all that live
    bool posted = false;
    try {
        posted = ended->service->post([ended] {
            while (ended->destroy()) continue;
        });
    } catch (const std::bad_alloc&) {}
    if (!posted) ended->changed.notify_all();  // the next one does it, or our destructor
}

bool Router::Ended::destroy() {
    std::unique_ptr<Link> link;
    {
        Lock lock(mutex);
        if (links.empty()) return false;
        link.reset(links.back());
        links.pop_back();
    }
    link.reset();
    Lock lock(mutex);
    --alive;
    changed.notify_all();
    return true;
}

bool Router::Ended::destroy_all(Deadline patience) {
    do {
        // Those that wait to be destroyed begin to say farewell before the first is waited for: one silent peer takes as long as many.
        close_all();
        Lock lock(mutex);
        while (links.empty() && alive > 0 && !patience.passed()) changed.wait_until(mutex, patience.at());
    } while (destroy());
    Lock lock(mutex);
    return alive == 0;
}

void Router::Ended::close_all() try {
    const Error reason(Code::kCancelled, "the engine is closed");
    Lock lock(mutex);
    for (Link* const link : links) link->peer->close(reason);
} catch (const std::bad_alloc&) {  // then each begins when its turn comes
}

void Router::shut_down(Deadline patience) {
    if (!ended_->destroy_all(patience)) return;
    for (const Path& path : paths_) path.transport->shut_down();
}

Router::~Router() {
    ended_->destroy_all(Deadline::after(kLinkPatience));
    Lock lock(ended_->mutex);
    ended_->service = nullptr;
}

bool Router::nearest(const Link& link, const Need& need) const {
    for (const Path& path : paths_) {
        if (path.transport.get() == link.transport) break;
        if (need.met_by(*path.transport) && !link.opened_for.met_by(*path.transport)) return false;
    }
    return true;
}

Result<> Router::check(const Need& need) const {
    for (const Path& path : paths_)
        if (need.met_by(*path.transport)) return {};
    return fail(Code::kNotSupported, "no allowed transport carries {} to {} memory", to_string(need.pair.local),
                to_string(need.pair.remote));
}

Result<std::shared_ptr<Link>> Router::connect(SegmentDescriptor descriptor, std::string rpc_address, const Need& need, Deadline deadline,
                                              const Transport* better_than) {
    Error last(Code::kNotSupported, need.pair.host() ? std::string("no allowed transport reaches it")
                                                     : format_text("no allowed transport that reaches it carries {} to {} memory",
                                                                   to_string(need.pair.local), to_string(need.pair.remote)));
    bool second_best = false;
    for (Path& path : paths_) {
        if (path.transport.get() == better_than) break;
        const Capabilities& capabilities = path.transport->capabilities();
        const std::string name(capabilities.name);
        if (!need.met_by(*path.transport)) continue;
        if (!descriptor.endpoints.contains(name) || !reaches(context_, capabilities, descriptor)) continue;
        auto peer = path.transport->connect(descriptor, deadline);
        if (peer) {
            auto link = std::make_unique<Link>();
            link->transport = path.transport.get();
            link->metrics = &path.metrics;
            link->peer = std::move(*peer);
            link->rpc_address = std::move(rpc_address);
            link->descriptor = std::move(descriptor);
            link->second_best = second_best;
            link->opened_for = need;
            {
                Lock lock(ended_->mutex);
                ended_->links.reserve(ended_->alive + 1);  // whoever lets go of it needs no memory
                ++ended_->alive;
            }
            return std::shared_ptr<Link>(link.release(), [ended = ended_](Link* unused) { let_go(ended, unused); });
        }
        last = std::move(peer).error().with_context(format_text("{}: connect", name));
        // A stale descriptor must be fetched anew; whatever else keeps one way from working, the next may still do: the peer has just
        // told us its descriptor.
        if (last.code() == Code::kStale || deadline.passed()) break;
        second_best |= last.code() != Code::kNotSupported && last.code() != Code::kRefused;
        if (&path != &paths_.back() && better_than == nullptr)
            MC_LOG_WARNING_EVERY(1min, "{} to {}; trying the next transport", last.to_string(), descriptor.name);
    }
    return Unexpected(std::move(last));
}

}  // namespace mooncake
