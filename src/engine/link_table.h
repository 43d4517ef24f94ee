// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/quiescence.h"
#include "base/thread_annotations.h"
#include "engine/link.h"
#include "engine/router.h"

namespace mooncake {

/// The live links of an engine, by the incarnation they lead to: names that turn out to mean the same process share them, and asking
/// again who a name means costs no transfer its connection. Holds none of them alive. Thread-safe.
class LinkTable {
public:
    explicit LinkTable(Router& router) : router_(router) {}

    /// A link to this life that works and meets the need: the nearest that somebody has, or a new one. Connects once for all that wait. What
    /// the descriptor says of the peer's memory is known to all links of that life from then on.
    Result<std::shared_ptr<Link>> get(SegmentDescriptor descriptor, std::string rpc_address, const Need& need, Deadline deadline);
    /// kNotSupported: no transport of ours meets it.
    Result<> check(const Need& need) const { return router_.check(need); }
    /// Who uses a link without a count of its own is inside a Section of this: see Session::borrow().
    Quiescence& users() noexcept { return users_; }
    /// All that somebody still holds.
    std::vector<std::shared_ptr<Link>> all();
    /// One over a nearer transport than that of `current`.
    Result<std::shared_ptr<Link>> better(const Link& current, Deadline deadline);

private:
    struct Life {
        bool connecting = false;
        std::vector<std::weak_ptr<Link>> links;
        std::shared_ptr<PeerMemory> memory = std::make_shared<PeerMemory>();
    };
    using Lives = std::map<uint64_t, Life>;

    /// The nearest link of a life that is fit; `better_than`: and nearer than that.
    std::shared_ptr<Link> find(const Life& life, const Need& need, const Transport* better_than) const MC_REQUIRES(mutex_);
    Result<std::shared_ptr<Link>> find_or_connect(SegmentDescriptor descriptor, std::string rpc_address, const Need& need,
                                                  const Transport* better_than, Deadline deadline);
    /// Whoever waited for it goes on. Needs no memory.
    void connected_to(uint64_t incarnation) MC_REQUIRES(mutex_);
    void forget_ended() MC_REQUIRES(mutex_);

    Router& router_;
    Quiescence users_;
    Mutex mutex_;
    std::condition_variable_any changed_;
    Lives lives_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
