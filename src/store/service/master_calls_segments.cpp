// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "store/master/ops/segment_ops.h"
#include "store/service/master_calls.h"
#include "store/service/remounting.h"

namespace mooncake::store {

namespace {

constexpr size_t kObjectsAtOnce = 2048;  // adopted under one hold of the lock

void add(RemountReply::Segment& to, const RemountReply::Segment& from) {
    to.code = from.code;
    to.adopted += from.adopted;
    to.stale += from.stale;
    to.refused += from.refused;
}

void warn_of_namesake(const ClientId& client, std::string_view name) {
    MC_LOG_WARNING_EVERY(1s, "memory of client {} was refused: another client that is alive lends as '{}'; each needs a name of its own",
                         client.to_string(), name.substr(0, 256));
}

}  // namespace

void MasterCalls::note_lost(Transaction& transaction, Time now) const {
    for (const ClientId& client : parts_.hub.take_lost(transaction.state()))
        transaction.apply(ClientFollows{.client = client, .follows = false, .now = now});
}

void MasterCalls::require_memory() {
    if (MemoryReserve::whole()) return;
    MC_LOG_WARNING_EVERY(10s, "there is no memory for more: new values and segments are refused");
    throw std::bad_alloc();
}

void MasterCalls::attach(rpc::Server& server) {
    attach_objects(server);
    attach_segments(server);
    attach_tasks(server);
    attach_tiers(server);
}

void MasterCalls::attach_segments(rpc::Server& server) {
    server.handle(rpc::Method::kStoreMount, handler("mount", decode_mount_request, &MasterCalls::mount));
    server.handle(rpc::Method::kStoreRemount,
                  contained("remount", [this](std::span<const std::byte> body, Answer answer) { take_report(body, std::move(answer)); }));
    server.handle(rpc::Method::kStoreUnmount, handler("unmount", decode_unmount_request, &MasterCalls::unmount));
    server.handle(rpc::Method::kStorePing, handler("ping", decode_client_request, &MasterCalls::heartbeat));
    server.handle(rpc::Method::kStoreGoodbye, handler("goodbye", decode_client_request, &MasterCalls::goodbye));
    server.handle(rpc::Method::kStoreReportFailures, handler("report_failures", decode_failure_report, &MasterCalls::report_failures));
    server.handle(rpc::Method::kStoreSegments,
                  contained("segments", [this](std::span<const std::byte>, Answer answer) { segments(std::move(answer)); }));
    server.handle(rpc::Method::kStoreFollow, handler("follow", decode_client_request, &MasterCalls::follow));
    server.handle(rpc::Method::kStoreAcknowledge, handler("acknowledge", decode_acknowledgement, &MasterCalls::acknowledge));
    server.handle(rpc::Method::kProbe, [](std::span<const std::byte>, Answer answer) { answer->reply({}); });
}

void MasterCalls::make_way(const ClientId& client, const SegmentSpec* segment, Incarnation life) {
    const auto some = [&](Transaction& transaction, Time now) {
        note_lost(transaction, now);
        const bool made = store::make_way(transaction, client, segment, now, life);
        parts_.hub.drop_strangers(transaction.state());
        return made;
    };
    while (!run(some)) parts_.master.give_way();
}

void MasterCalls::mount(const MountRequest& request, Answer answer) {
    require_memory();
    make_way(request.client, &request.segment);
    const StoreCode code = run([&](Transaction& transaction, Time now) {
        note_lost(transaction, now);
        const StoreCode result = mount_segment(transaction, request, now);
        parts_.hub.drop_strangers(transaction.state());  // it may have taken the place of another
        return result;
    });
    if (code == StoreCode::kSegmentAlreadyExists) warn_of_namesake(request.client, request.segment.name);
    answer->reply(encode_code_reply(code));
    parts_.metrics.call(CountedCall::kMountSegment, code == StoreCode::kOk);
}

void MasterCalls::take_report(std::span<const std::byte> body, Answer answer) {
    const auto take = [this](std::span<const std::byte> bytes, Answer to) {
        const Gate::Pass pass = gate_.enter();
        if (!pass) return to->fail(Error(Code::kUnavailable, "the master is being stopped", ESHUTDOWN));
        const Result<ReceivedRemount> received = decode_remount_request(bytes);
        if (!received) return to->fail(received.error());
        remount(*received, std::move(to));
    };
    // All who share this I/O thread would wait for the patterns.
    if (!parts_.master.look([](const MasterState& state, Time) { return state.tombstones().has_patterns(); }))
        return take(body, std::move(answer));
    const auto shared = std::make_shared<Answer>(std::move(answer));
    auto later = [take, shared, copy = std::vector<std::byte>(body.begin(), body.end())] { take(copy, std::move(*shared)); };
    if (auto posted = parts_.adopter.post(contained_task("remount", std::move(later))); !posted) (*shared)->fail(posted.error());
}

void MasterCalls::remount(const ReceivedRemount& received, Answer answer) {
    RemountReply reply;
    reply.segments.resize(received.segments.size());
    const auto run_part = [&](std::span<const HeldSegment> segments) {
        require_memory();
        MatchedKeys matched;
        if (!segments.empty()) {
            const auto patterns = parts_.master.look([](const MasterState& state, Time) { return state.tombstones().patterns(); });
            matched = MatchedKeys(patterns, segments[0].objects);
        }
        return run([&](Transaction& transaction, Time now) {
            const RemountRequest request{.client = received.request.client,
                                         .epoch = received.request.epoch,
                                         .segments = segments,
                                         .behind = received.request.behind,
                                         .heard = received.request.heard,
                                         .heard_update = received.request.heard_update,
                                         .life = received.request.life,
                                         .remembered_update = received.request.remembered_update};
            note_lost(transaction, now);
            return remount_member(parts_.hub, transaction, request, now, matched);
        });
    };
    if (received.request.epoch != 0 && received.request.epoch != epoch_) {
        for (auto& segment : reply.segments) segment.code = StoreCode::kInvalidVersion;
    } else if (received.segments.empty()) {
        make_way(received.request.client, nullptr, received.request.life);
        reply = run_part({});  // makes the client known
    }
    for (size_t i = 0; i < received.segments.size() && reply.segments[i].code == StoreCode::kOk; ++i) {
        make_way(received.request.client, &received.segments[i].segment);
        HeldSegment part = received.segments[i];
        std::span<const HeldObject> objects = part.objects;
        do {
            part.objects = objects.first(std::min(objects.size(), kObjectsAtOnce));
            objects = objects.subspan(part.objects.size());
            part.more = received.segments[i].more || !objects.empty();
            add(reply.segments[i], run_part({&part, 1}).segments[0]);
            part.writes = {};
            part.quarantined = {};
            parts_.master.give_way();
        } while (!objects.empty() && reply.segments[i].code == StoreCode::kOk);
    }
    for (size_t i = 0; i < reply.segments.size(); ++i)
        if (reply.segments[i].code == StoreCode::kSegmentAlreadyExists)
            warn_of_namesake(received.request.client, received.segments[i].segment.name);
    answer->reply(encode_remount_reply(reply));
    parts_.metrics.remount(reply);
}

void MasterCalls::unmount(const UnmountRequest& request, Answer answer) {
    const StoreCode code = run([&](Transaction& transaction, Time now) { return unmount_segment(transaction, request, now); });
    answer->reply(encode_code_reply(code));
    parts_.metrics.call(CountedCall::kUnmountSegment, code == StoreCode::kOk);
}

void MasterCalls::heartbeat(const ClientId& client, Answer answer) {
    HeartbeatReply reply = run([&](Transaction& transaction, Time now) { return store::heartbeat(transaction, client, now); });
    reply.epoch = epoch_;
    answer->reply(encode_heartbeat_reply(reply));
    parts_.metrics.call(CountedCall::kPing, true);
}

void MasterCalls::goodbye(const ClientId& client, Answer answer) {
    StoreCode code = StoreCode::kClientNotFound;
    const auto some = [&](Transaction& transaction, Time now) {
        const bool gone = goodbye_some(transaction, client, now, code);
        parts_.hub.drop_strangers(transaction.state());
        return gone;
    };
    while (!run(some)) parts_.master.give_way();
    answer->reply(encode_code_reply(code));
}

void MasterCalls::report_failures(const ReceivedFailureReport& received, Answer answer) {
    const StoreCode code = run(
        [&](Transaction& transaction, Time now) { return store::report_failures(transaction, received.report, now); });
    answer->reply(encode_code_reply(code));
}

void MasterCalls::segments(Answer answer) {
    SegmentsReply reply = parts_.master.look([](const MasterState& state, Time) {
        SegmentsReply list;
        list.segments.reserve(state.segments().size());
        for (const SegmentNumber number : state.segments().numbers()) {
            const Segment& segment = state.segments()[number];
            list.segments.push_back({.number = number,
                                     .segment = segment.spec,
                                     .status = segment.status,
                                     .client = state.clients()[segment.client].id,
                                     .used_bytes = segment.allocator.used_bytes()});
        }
        return list;
    });
    reply.epoch = epoch_;
    answer->reply(encode_segments_reply(reply));
}

void MasterCalls::follow(const ClientId& client, Answer answer) {
    const bool known = run([&](Transaction& transaction, Time now) {
        const ClientTable& clients = transaction.state().clients();
        const ClientNumber number = clients.find(client);
        if (!clients.alive(number) || !clients[number].attached) return false;
        parts_.hub.follow(transaction.state(), number, std::move(answer));
        if (!clients[number].follows) transaction.apply(ClientFollows{.client = client, .follows = true, .now = now});
        return true;
    });
    if (!known) return answer->fail(error(Code::kNotFound, "client {} is unknown to this master", client.to_string()));
    report(client);
}

void MasterCalls::acknowledge(const Acknowledgement& acknowledgement, Answer answer) {
    answer->reply({});
    parts_.hub.acknowledge(acknowledgement.client, acknowledgement.sequence);
    report(acknowledgement.client);
    parts_.hub.flush();  // who has caught up may have missed something
}

void MasterCalls::report(const ClientId& client) {
    while (parts_.hub.wants_report(client)) {
        parts_.master.look([&](const MasterState& state, Time now) {
            parts_.hub.report(state, client, now);
            return true;
        });
        parts_.hub.flush();
    }
}

}  // namespace mooncake::store
