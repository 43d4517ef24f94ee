// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "engine/engine.h"
#include "engine/link.h"
#include "engine/router.h"

namespace mooncake {

/// How a segment's name becomes a descriptor: asks the directory for the address, then the peer itself. Thread-safe.
class DescriptorSource {
public:
    struct Found {
        SegmentDescriptor descriptor;
        std::string rpc_address;
    };

    virtual ~DescriptorSource() = default;
    virtual Result<Found> fetch(const std::string& name, uint32_t buffers_max, Deadline deadline) = 0;
};

struct SessionPolicy {
    Duration connect_timeout = 5s;
    bool cache_descriptors = true;  // false: ask the peer before every transfer whether it is still the same
};

/// One remote segment by name. Connects when first used, once for all callers that wait; remembers for a moment that it could
/// not; connects anew after the link broke. Thread-safe; lives as long as the engine.
class Session {
public:
    Session(std::string name, SegmentId id, DescriptorSource& source, Router& router, SessionPolicy policy)
        : name_(std::move(name)), id_(id), source_(source), router_(router), policy_(policy) {}

    const std::string& name() const noexcept { return name_; }
    SegmentId id() const noexcept { return id_; }

    /// The current link, or a new one. Waits for whoever is connecting already, at most until the deadline.
    Result<std::shared_ptr<Link>> link(Deadline deadline);
    /// Tells that a link failed with `error`: the next link() connects anew. kNotSupported and kRefused also bar its transport.
    void report_failure(const std::shared_ptr<Link>& link, const Error& error);
    /// Whether the peer behind a link still lives and is the one we connected to; forgets the link if not. Asks the peer.
    bool confirm(const std::shared_ptr<Link>& link, Deadline deadline);
    /// Forgets the link, so that the next use fetches the descriptor again. Transfers in flight finish on the old one.
    void refresh();
    /// Now and then: drops a link that broke while idle, which frees its sockets and mappings; with a refresh interval also asks
    /// the peer whether it is still the one we know.
    void sweep(Duration refresh_interval);
    /// When a link over a second-best transport is worth a try to improve; Time::max(): it is not.
    Time improvable_at();
    /// Tries the transports that are nearer than that of the link, if it is time. The next try comes after twice as long, up to a minute; a
    /// link that held for longer than that starts anew. Transfers in flight finish on the old link.
    void improve(Time now);
    /// Breaks the link for good. Who lets go of the result may have to wait a moment for the peer.
    std::shared_ptr<Link> close(const Error& reason);

private:
    /// Until there is a link that works, or none and nobody else is connecting. Hands out a link that broke.
    Result<> wait_for_turn(std::shared_ptr<Link>& broken, Deadline deadline) MC_REQUIRES(mutex_);
    bool still_the_same(const Link& link, Deadline deadline);
    void note_opened(const Link& link, Time now) MC_REQUIRES(mutex_);
    Result<std::shared_ptr<Link>> open(const std::set<std::string>& excluded, Deadline deadline);

    const std::string name_;
    const SegmentId id_;
    DescriptorSource& source_;
    Router& router_;
    const SessionPolicy policy_;

    Mutex mutex_;
    std::condition_variable_any changed_;
    std::shared_ptr<Link> link_ MC_GUARDED_BY(mutex_);
    std::set<std::string> excluded_ MC_GUARDED_BY(mutex_);  // transports that said they cannot serve this peer
    bool opening_ MC_GUARDED_BY(mutex_) = false;
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    Time failed_until_ MC_GUARDED_BY(mutex_){};  // negative cache
    Error last_error_ MC_GUARDED_BY(mutex_);
    Time checked_ MC_GUARDED_BY(mutex_) = Clock::now();  // when the peer last said who it is
    Time improve_at_ MC_GUARDED_BY(mutex_) = Time::max();
    Duration improve_pause_ MC_GUARDED_BY(mutex_){0};  // before the next try
    Time improved_ MC_GUARDED_BY(mutex_){};            // when a try last worked
};

/// All sessions of an engine, by name and by id. Thread-safe.
class SessionTable {
public:
    SessionTable(DescriptorSource& source, Router& router, SessionPolicy policy) : source_(source), router_(router), policy_(policy) {}

    /// Finds or makes; never connects. The first name asked for (our own) gets id 0.
    Result<Session*> get(const std::string& name);
    Result<Session*> get(SegmentId id) const;
    void for_each(const std::function<void(Session&)>& visit) const;

private:
    DescriptorSource& source_;
    Router& router_;
    const SessionPolicy policy_;
    mutable SharedMutex mutex_;
    std::map<std::string, Session*, std::less<>> by_name_ MC_GUARDED_BY(mutex_);
    std::vector<std::unique_ptr<Session>> sessions_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
