// SPDX-License-Identifier: Apache-2.0
#include "store/member/master_link.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/log.h"
#include "net/address.h"
#include "rpc/rpc.h"
#include "store/member/batch_limits.h"
#include "store/protocol/joined_replies.h"
#include "store/protocol/messages.h"

namespace mooncake::store {

namespace {

using rpc::Method;

constexpr Duration kAcknowledgeTimeout = 5s;
// What a master tells a node about its memory is safe in the kernel's buffer: nobody waits until the node has read it, so one wake-up serves for
// all that comes within this time. Where events must be acknowledged somebody waits, and they rarely come alone.
constexpr Duration kStreamLinger = 2ms, kStreamHurry = 100ms;
// A lost network must not keep the next try waiting: the handshake of a dial that was begun too early repeats ever more slowly. One packet
// of a call's dial may be lost.
constexpr Duration kLivenessConnectTimeout = 1s, kCallsConnectTimeout = 2s;

/// The part of an address behind its scheme, where it has none that we do not speak.
Result<std::string> plain_address(const std::string& address) {
    if (const size_t scheme = address.find("://"); scheme != std::string::npos)
        return fail(Code::kNotSupported, "master address {}: finding the master through {} is not supported, give its host:port", address,
                    address.substr(0, scheme));
    const auto target = net::HostPort::parse(address);
    if (!target) return Unexpected(Error(target.error()).with_context(format_text("master address '{}'", address)));
    if (target->port == 0) return fail(Code::kInvalidArgument, "master address '{}': a port is needed", address);
    return address;
}

class MasterLink final : public MasterApi {
public:
    explicit MasterLink(const MasterLinkOptions& options)
        : address_(plain_address(options.address)), calls_(client(options, std::min(options.connect_timeout, kCallsConnectTimeout))),
          liveness_(client(options, std::min(options.connect_timeout, kLivenessConnectTimeout))),
          stream_(client(options, std::min(options.connect_timeout, kLivenessConnectTimeout))) {}
    ~MasterLink() override {
        stop_calls();
        stop_liveness();
    }

    Result<PutStartReply> put_start(const PutStartRequest& request, bool replace, Deadline deadline,
                                    const std::function<void()>& meanwhile) override;
    Result<CodesReply> put_end(const PutEndRequest& request, Deadline deadline) override {
        return in_parts(request, &PutEndRequest::items, [&](const PutEndRequest& part) {
            return codes(Method::kStorePutEnd, encode_put_end_request(part), part.items.size(), deadline);
        });
    }
    Result<CodesReply> put_revoke(const PutRevokeRequest& request, Deadline deadline) override {
        return in_parts(request, &PutRevokeRequest::items, [&](const PutRevokeRequest& part) {
            return codes(Method::kStorePutRevoke, encode_put_revoke_request(part), part.items.size(), deadline);
        });
    }
    Result<GetReply> get_replicas(const KeysRequest& request, Deadline deadline) override {
        uint64_t epoch = 0;  // segments are numbered by each life of a master anew
        return in_parts(request, &KeysRequest::keys, [&](const KeysRequest& part) -> Result<GetReply> {
            auto reply = ask(*calls_, Method::kStoreGetReplicas, encode_keys_request(part), decode_get_reply, deadline);
            if (reply && epoch != 0 && reply->epoch != epoch) return fail(Code::kUnavailable, "the master was replaced meanwhile");
            if (reply) epoch = reply->epoch;
            return of_length(std::move(reply), &GetReply::items, part.keys.size());
        });
    }
    Result<ExistReply> exist(const KeysRequest& request, Deadline deadline) override {
        return in_parts(request, &KeysRequest::keys, [&](const KeysRequest& part) {
            auto reply = ask(*calls_, Method::kStoreExist, encode_keys_request(part), decode_exist_reply, deadline);
            return of_length(std::move(reply), &ExistReply::results, part.keys.size());
        });
    }
    Result<CodesReply> remove(const RemoveRequest& request, Deadline deadline) override {
        return in_parts(request, &RemoveRequest::keys, [&](const RemoveRequest& part) {
            return codes(Method::kStoreRemove, encode_remove_request(part), part.keys.size(), deadline);
        });
    }
    Result<int64_t> remove_matching(std::string_view tenant, std::string_view pattern, bool force, Deadline deadline) override {
        return ask(*calls_, Method::kStoreRemoveMatching, encode_remove_matching_request(tenant, pattern, force),
                   decode_remove_matching_reply, deadline);
    }
    Result<CodesReply> replica_clear(const ReplicaClearRequest& request, Deadline deadline) override {
        if (!is_expressible(request)) return CodesReply{std::vector<StoreCode>(request.keys.size(), StoreCode::kInvalidParams)};
        return in_parts(request, &ReplicaClearRequest::keys, [&](const ReplicaClearRequest& part) {
            return codes(Method::kStoreReplicaClear, encode_replica_clear_request(part), part.keys.size(), deadline);
        });
    }

    Result<StoreCode> mount(const MountRequest& request, Deadline deadline) override {
        return ask(*liveness_, Method::kStoreMount, encode_mount_request(request), decode_code_reply, deadline);
    }
    Result<RemountReply> remount(const RemountRequest& request, Deadline deadline) override {
        auto reply = ask(*liveness_, Method::kStoreRemount, encode_remount_request(request), decode_remount_reply, deadline);
        return of_length(std::move(reply), &RemountReply::segments, request.segments.size());
    }
    Result<StoreCode> unmount(const UnmountRequest& request, Deadline deadline) override {
        return ask(*liveness_, Method::kStoreUnmount, encode_unmount_request(request), decode_code_reply, deadline);
    }
    Result<HeartbeatReply> heartbeat(const ClientId& client, Deadline deadline) override {
        return ask(*liveness_, Method::kStorePing, encode_client_request(client), decode_heartbeat_reply, deadline);
    }
    Result<StoreCode> goodbye(const ClientId& client, Deadline deadline) override {
        return ask(*liveness_, Method::kStoreGoodbye, encode_client_request(client), decode_code_reply, deadline);
    }
    Result<StoreCode> report_failures(const FailureReport& report, Deadline deadline) override {
        return ask(*liveness_, Method::kStoreReportFailures, encode_failure_report(report), decode_code_reply, deadline);
    }
    Result<SegmentsReply> segments(Deadline deadline) override {
        return ask(*calls_, Method::kStoreSegments, {}, decode_segments_reply, deadline);
    }

    Result<TaskReply> create_task(const TaskRequest& request, Deadline deadline) override {
        if (!is_expressible(request)) return TaskReply{.code = StoreCode::kInvalidParams};
        return ask(*calls_, Method::kStoreCreateTask, encode_task_request(request), decode_task_reply, deadline);
    }
    Result<TaskInfo> query_task(const TaskId& task, Deadline deadline) override {
        return ask(*calls_, Method::kStoreQueryTask, encode_task_query(task), decode_task_info, deadline);
    }
    Result<StoreCode> end_task(const TaskEnd& end, Deadline deadline) override {
        return ask(*calls_, Method::kStoreEndTask, encode_task_end(end), decode_code_reply, deadline);
    }
    Result<CodesReply> end_copies(const CopiesEnd& end, Deadline deadline) override {
        auto reply = ask(*calls_, Method::kStoreEndCopies, encode_copies_end(end), decode_codes_reply, deadline);
        return of_length(std::move(reply), &CodesReply::codes, end.items.size());
    }
    Result<StoreCode> replicas_gone(const ReplicasGone& gone, Deadline deadline) override {
        return ask(*calls_, Method::kStoreReplicasGone, encode_replicas_gone(gone), decode_code_reply, deadline);
    }

    uint64_t follow(const ClientId& client, EventStream stream) override;
    void unfollow(uint64_t stream) override {
        if (stream != 0) stream_->cancel(stream);
    }
    void acknowledge(const ClientId& client, uint64_t sequence) override {
        if (!address_) return;
        liveness_->call_async(*address_, Method::kStoreAcknowledge, encode_acknowledgement({.client = client, .sequence = sequence}),
                              Deadline::after(kAcknowledgeTimeout), [](const Result<rpc::Bytes>&) {});
    }

    void stop_calls() override { calls_->stop(); }
    void stop_liveness() override {
        liveness_->stop();
        stream_->stop();
    }

private:
    static std::unique_ptr<rpc::Client> client(const MasterLinkOptions& options, Duration connect_timeout) {
        return rpc::Client::create({.connect_timeout = connect_timeout, .hello = {.incarnation = options.incarnation}});
    }

    template <typename Decode>
    auto ask(rpc::Client& client, Method method, const rpc::Bytes& body, Decode decode, Deadline deadline,
             const std::function<void()>& meanwhile = nullptr) -> decltype(decode(std::span<const std::byte>())) {
        if (!address_) return Unexpected(address_.error());
        MC_ASSIGN_OR_RETURN(const rpc::Bytes reply, client.call(*address_, method, body, deadline, meanwhile));
        return decode(reply);
    }
    Result<PutStartReply> start_some(const PutStartRequest& request, bool replace, Deadline deadline,
                                     const std::function<void()>& meanwhile) {
        auto reply = ask(*calls_, Method::kStorePutStart, encode_put_start_request(request, replace), decode_put_start_reply, deadline,
                         meanwhile);
        return of_length(std::move(reply), &PutStartReply::items, request.items.size());
    }
    /// Asks for as many items at a time as a master takes.
    template <typename Request, typename Items, typename Ask>
    static auto in_parts(const Request& request, Items Request::*items, Ask&& ask) -> decltype(ask(request)) {
        size_t count = first_request(request.*items);
        if (count == (request.*items).size()) return ask(request);
        Request part = request;
        typename std::remove_reference_t<decltype(*ask(request))> joined;
        for (Items left = request.*items; !left.empty(); left = left.subspan(count)) {
            count = first_request(left);
            part.*items = left.first(count);
            auto reply = ask(part);
            if (!reply) return reply;
            append(joined, std::move(*reply));
        }
        return joined;
    }
    Result<CodesReply> codes(Method method, const rpc::Bytes& body, size_t count, Deadline deadline) {
        return of_length(ask(*calls_, method, body, decode_codes_reply, deadline), &CodesReply::codes, count);
    }
    /// Callers take the answer to question i from position i.
    template <typename Reply, typename Items>
    static Result<Reply> of_length(Result<Reply> reply, Items Reply::*items, size_t count) {
        if (reply && ((*reply).*items).size() != count)
            return fail(Code::kCorrupt, "the master gave {} answers to {} questions", ((*reply).*items).size(), count);
        return reply;
    }

    const Result<std::string> address_;
    const std::unique_ptr<rpc::Client> calls_;
    const std::unique_ptr<rpc::Client> liveness_;
    const std::unique_ptr<rpc::Client> stream_;
};

Result<PutStartReply> MasterLink::put_start(const PutStartRequest& request, bool replace, Deadline deadline,
                                            const std::function<void()>& meanwhile) {
    PutStartReply joined;
    if (!is_expressible(request.config) || request.tenant.size() > kNameBytesMax) {
        joined.items.resize(request.items.size(), {.code = StoreCode::kInvalidParams});
        return joined;
    }
    if (first_request(request.items) == request.items.size()) return start_some(request, replace, deadline, meanwhile);
    joined.items.resize(request.items.size(), {.code = StoreCode::kInvalidParams});  // what is too much for any request
    const std::function<void()>* work = &meanwhile;
    for (const std::vector<uint32_t>& positions : plan_put_start(request.items)) {
        std::vector<PutItem> items;
        for (const uint32_t position : positions) items.push_back(request.items[position]);
        PutStartRequest part = request;
        part.items = items;
        MC_ASSIGN_OR_RETURN(const PutStartReply reply, start_some(part, replace, deadline, work == nullptr ? nullptr : *work));
        work = nullptr;
        if (joined.epoch != 0 && reply.epoch != joined.epoch) return fail(Code::kUnavailable, "the master was replaced meanwhile");
        joined.epoch = reply.epoch;
        joined.retry_after = std::max(joined.retry_after, reply.retry_after);
        joined.disk_wait = std::max(joined.disk_wait, reply.disk_wait);
        joined.release = reply.release;
        const auto replicas = static_cast<uint32_t>(joined.replicas.size());
        for (size_t i = 0; i < items.size(); ++i) {
            joined.items[positions[i]] = reply.items[i];
            joined.items[positions[i]].first_replica += replicas;
        }
        joined.replicas.insert(joined.replicas.end(), reply.replicas.begin(), reply.replicas.end());
    }
    return joined;
}

uint64_t MasterLink::follow(const ClientId& client, EventStream stream) {
    if (!address_) {
        stream.on_end(address_.error());
        return 0;
    }
    struct Follower {
        EventStream stream;
        std::atomic<bool> broken{false};  // an update made no sense
        std::atomic<uint64_t> call{0};    // not known yet when the first update comes
        Time hurry_until{};               // only the event stream's thread
    };
    const auto follower = std::make_shared<Follower>();
    follower->stream = std::move(stream);
    const uint64_t call = stream_->call_stream(
        *address_, Method::kStoreFollow, encode_client_request(client),
        [this, follower](std::span<const std::byte> part) {
            if (follower->broken) return;
            const auto update = decode_event_view(part);
            if (update) {
                follower->stream.on_update(*update);
                const Time now = Clock::now();
                if (update->acknowledge || update->reset || !update->orders.empty()) follower->hurry_until = now + kStreamHurry;
                if (now >= follower->hurry_until) stream_->linger(*address_, kStreamLinger);
                return;
            }
            MC_LOG_WARNING("the master's stream makes no sense: {}", update.error().to_string());
            follower->broken = true;
            unfollow(follower->call);
        },
        [follower](const Result<rpc::Bytes>& end) {
            if (follower->broken) follower->stream.on_end(Error(Code::kCorrupt, "an update of the master's stream made no sense"));
            else if (end) follower->stream.on_end(Error(Code::kCancelled, "the master ended the stream"));
            else follower->stream.on_end(end.error());
        });
    follower->call = call;
    if (follower->broken) unfollow(call);
    return call;
}

}  // namespace

std::unique_ptr<MasterApi> connect_master(const MasterLinkOptions& options) { return std::make_unique<MasterLink>(options); }

}  // namespace mooncake::store
