// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/gate.h"
#include "base/thread_pool.h"
#include "rpc/rpc.h"
#include "store/protocol/messages.h"
#include "store/service/contain.h"
#include "store/service/event_hub.h"
#include "store/service/job_runner.h"
#include "store/service/locked_master.h"
#include "store/service/master_metrics.h"
#include "store/service/started_requests.h"

namespace mooncake::store {

/// The same handler, but one that throws does not end the process: its caller is told kInternal, by the answer that it drops.
template <typename Handler>
rpc::Handler contained(const char* name, Handler handler) {
    return [name, handler = std::move(handler)](std::span<const std::byte> body, std::unique_ptr<rpc::Responder> answer) {
        contain(name, [&] { handler(body, std::move(answer)); });
    };
}

/// What clients can call over RPC: one function each, run on an I/O thread. Messages are read and made outside the master's lock; long batches
/// take it several times, so that others get their turn. Borrows everything; must outlive the server it is attached to. Thread-safe.
class MasterCalls {
public:
    struct Parts {
        LockedMaster& master;
        EventHub& hub;
        JobRunner& jobs;
        MasterMetrics& metrics;
        ThreadPool& worker;
        ThreadPool& adopter;
    };
    /// `epoch` names this life of the master.
    MasterCalls(Parts parts, uint64_t epoch) : parts_(parts), epoch_(epoch) {}

    /// Adds the handlers; before server.start().
    void attach(rpc::Server& server);
    /// Refuses calls from now on and waits for those that run: the event streams end with all that writers were told.
    void stop() { gate_.close(); }

private:
    using Answer = std::unique_ptr<rpc::Responder>;

    void attach_objects(rpc::Server& server);
    void attach_segments(rpc::Server& server);
    void attach_tasks(rpc::Server& server);
    void attach_tiers(rpc::Server& server);

    // master_calls_objects.cpp
    void exist(const ReceivedKeys& received, Answer answer);
    void get_replicas(const ReceivedKeys& received, Answer answer);
    void put_start(const ReceivedPutStart& received, Answer answer);
    void put_end(const ReceivedPutEnd& received, Answer answer);
    void put_revoke(const ReceivedPutRevoke& received, Answer answer);
    void remove(const ReceivedRemove& received, Answer answer);
    void remove_matching(const ReceivedRemoveMatching& received, Answer answer);
    void replica_clear(const ReceivedReplicaClear& received, Answer answer);
    // master_calls_segments.cpp
    void mount(const MountRequest& request, Answer answer);
    /// Now, or where patterns must be tried for it on a thread of its own.
    void take_report(std::span<const std::byte> body, Answer answer);
    void remount(const ReceivedRemount& received, Answer answer);
    void unmount(const UnmountRequest& request, Answer answer);
    void heartbeat(const ClientId& client, Answer answer);
    void goodbye(const ClientId& client, Answer answer);
    void report_failures(const ReceivedFailureReport& received, Answer answer);
    void segments(Answer answer);
    void follow(const ClientId& client, Answer answer);
    void acknowledge(const Acknowledgement& acknowledgement, Answer answer);
    // master_calls_tasks.cpp
    void create_task(const ReceivedTask& received, Answer answer);
    void query_task(const TaskId& task, Answer answer);
    void end_task(const TaskEnd& end, Answer answer);
    void finish_task(const TaskEnd& end, Answer answer);
    // master_calls_tiers.cpp
    void end_copies(const ReceivedCopiesEnd& received, Answer answer);
    void finish_copies(const ClientId& client, std::span<const CopyEnd> ends, uint64_t window_bytes, Answer answer);
    void replicas_gone(const ReceivedReplicasGone& received, Answer answer);
    /// Whose connection ended is dead as soon as its successor asks.
    void note_lost(Transaction& transaction, Time now) const;
    /// Ends in parts whoever has to go before this client can come back, or mount this.
    void make_way(const ClientId& client, const SegmentSpec* segment, Incarnation life = {});
    /// Sends as much of the first report as the client takes for now.
    void report(const ClientId& client);

    /// Decodes and calls; what does not decode is answered with the error.
    template <typename Received>
    rpc::Handler handler(const char* name, Result<Received> (*decode)(std::span<const std::byte>),
                         void (MasterCalls::*call)(const Received&, Answer)) {
        return contained(name, [this, decode, call](std::span<const std::byte> body, Answer answer) {
            const Gate::Pass pass = gate_.enter();
            if (!pass) return answer->fail(Error(Code::kUnavailable, "the master is being stopped", ESHUTDOWN));
            const Result<Received> received = decode(body);
            if (!received) return answer->fail(received.error());
            (this->*call)(*received, std::move(answer));
        });
    }
    /// Before anything that makes the state grow: throws where the last memory is in use, which is for what is under way, and what makes it shrink.
    static void require_memory();
    /// Runs an operation on the state; something may be left to do for the jobs.
    template <typename Operation>
    auto run(Operation&& operation) {
        auto result = parts_.master.run(std::forward<Operation>(operation));
        parts_.jobs.touch();
        return result;
    }
    /// As run(), and adds to `caused` what the followers must hear of before the operation is answered.
    template <typename Operation>
    auto run_noting(EventHub::Caused& caused, Operation&& operation) {
        return run([&](Transaction& transaction, Time now) {
            const EventHub::Position before = parts_.hub.position();
            auto reply = operation(transaction, now);
            caused.add(before, parts_.hub.position());
            return reply;
        });
    }
    /// Adds what an answer about these items relies on, when nodes have not been told all of it yet.
    template <typename Item>
    void rely_on(EventHub::Caused& caused, std::string_view tenant, std::span<const Item> items) const;
    /// Answers when they have.
    void answer_when_told(const EventHub::Caused& caused, Answer answer, rpc::Bytes body);

    const Parts parts_;
    const uint64_t epoch_;
    Gate gate_;
    StartedRequests starting_;
};

}  // namespace mooncake::store
