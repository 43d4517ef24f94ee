// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/incarnation.h"
#include "base/time.h"
#include "rpc/rpc.h"
#include "store/protocol/events.h"
#include "store/protocol/objects.h"
#include "store/protocol/segments.h"
#include "store/protocol/tasks.h"
#include "store/protocol/tiers.h"

namespace mooncake::store {

/// What can be asked of a master. The real one sends RPCs; tests call the core directly. Errors are those of rpc::Client: nothing is known
/// about whether the master acted. All calls block and are thread-safe.
class MasterApi {
public:
    virtual ~MasterApi() = default;

    /// `meanwhile`: or null; work for which the answer is not needed, done here or not at all.
    virtual Result<PutStartReply> put_start(const PutStartRequest& request, bool replace, Deadline deadline,
                                            const std::function<void()>& meanwhile) = 0;
    Result<PutStartReply> put_start(const PutStartRequest& request, bool replace, Deadline deadline) {
        return put_start(request, replace, deadline, nullptr);
    }
    virtual Result<CodesReply> put_end(const PutEndRequest& request, Deadline deadline) = 0;
    virtual Result<CodesReply> put_revoke(const PutRevokeRequest& request, Deadline deadline) = 0;
    virtual Result<GetReply> get_replicas(const KeysRequest& request, Deadline deadline) = 0;
    virtual Result<ExistReply> exist(const KeysRequest& request, Deadline deadline) = 0;
    virtual Result<CodesReply> remove(const RemoveRequest& request, Deadline deadline) = 0;
    /// How many, or a negative StoreCode (kInvalidParams: not a regular expression). An empty pattern means all.
    virtual Result<int64_t> remove_matching(std::string_view tenant, std::string_view pattern, bool force, Deadline deadline) = 0;
    virtual Result<CodesReply> replica_clear(const ReplicaClearRequest& request, Deadline deadline) = 0;

    virtual Result<StoreCode> mount(const MountRequest& request, Deadline deadline) = 0;
    virtual Result<RemountReply> remount(const RemountRequest& request, Deadline deadline) = 0;
    virtual Result<StoreCode> unmount(const UnmountRequest& request, Deadline deadline) = 0;
    virtual Result<HeartbeatReply> heartbeat(const ClientId& client, Deadline deadline) = 0;
    virtual Result<StoreCode> goodbye(const ClientId& client, Deadline deadline) = 0;
    virtual Result<StoreCode> report_failures(const FailureReport& report, Deadline deadline) = 0;
    virtual Result<SegmentsReply> segments(Deadline deadline) = 0;

    virtual Result<TaskReply> create_task(const TaskRequest& request, Deadline deadline) = 0;
    virtual Result<TaskInfo> query_task(const TaskId& task, Deadline deadline) = 0;  // kNotFound
    virtual Result<StoreCode> end_task(const TaskEnd& end, Deadline deadline) = 0;
    virtual Result<CodesReply> end_copies(const CopiesEnd& end, Deadline deadline) = 0;
    virtual Result<StoreCode> replicas_gone(const ReplicasGone& gone, Deadline deadline) = 0;

    /// Follows the master's event stream until it breaks or unfollow(). `on_update` (of what lasts for the call) and then, once, `on_end` run on one I/O thread. A master that
    /// does not know the client ends it with kNotFound, before any update; one that gave the client up ends it without further events: the
    /// catalogue stays what it was.
    struct EventStream {
        std::function<void(const EventView&)> on_update;
        std::function<void(const Error& why)> on_end;
    };
    virtual uint64_t follow(const ClientId& client, EventStream stream) = 0;
    virtual void unfollow(uint64_t stream) = 0;
    virtual void acknowledge(const ClientId& client, uint64_t sequence) = 0;  // does not wait

    /// Ends the calls about objects and tasks that are under way (put_start() to replica_clear(), *_task()) with kCancelled, and refuses
    /// later ones, so that a client can close while its master is silent. Those about liveness and the event stream go on working. Idempotent.
    virtual void stop_calls() = 0;
    /// The same for all the others: nothing can be asked any more.
    virtual void stop_liveness() {}
};

/// Three connections, each with its own I/O thread: for calls about objects, for liveness, and for the event stream. So no load makes a living
/// client look dead; and as nothing is sent on the event stream's after the first request, a master that dies leaves nothing unread there, which
/// would make its kernel throw away the last events.
struct MasterLinkOptions {
    std::string address;  // host:port
    Incarnation incarnation;
    Duration connect_timeout = 5s;
};
/// Never fails; an address that cannot be used fails every call.
std::unique_ptr<MasterApi> connect_master(const MasterLinkOptions& options);

}  // namespace mooncake::store
