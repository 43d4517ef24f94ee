// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

size_t leave(Transaction& transaction, ClientNumber number, ClientEnd how, Time now, size_t most) {
    const MasterState& state = transaction.state();
    const Client& client = state.clients()[number];
    const ClientId id = client.id;
    if (!client.leaving) transaction.apply(ClientLeaves{.client = id, .how = how, .now = now});
    const ClientEnd began = *client.leaving;
    size_t work = 1;
    while (!client.segments.empty() && work < most) {
        const SegmentNumber segment = client.segments.back();
        work += 1 + state.segments()[segment].allocator.used_blocks();
        const bool may_return = began != ClientEnd::kGoodbye || state.segments().is_disk(segment);  // with the next life of its node
        transaction.apply(SegmentRemoved{.segment = segment, .may_return = may_return, .now = now});
    }
    if (!client.segments.empty()) return work;
    work += client.writes.size() + client.quarantined;
    transaction.apply(ClientGone{.client = id, .how = began, .now = now});
    return work;
}

void end_client(Transaction& transaction, ClientNumber client, ClientEnd how, Time now) { leave(transaction, client, how, now, SIZE_MAX); }

bool goodbye_some(Transaction& transaction, const ClientId& client, Time now, StoreCode& code) {
    const MasterState& state = transaction.state();
    const ClientNumber number = state.clients().find(client);
    const bool known = state.clients().alive(number);
    if (known) code = StoreCode::kOk;
    if (known || state.clients().leaving(number)) leave(transaction, number, ClientEnd::kGoodbye, now, kLeaveAtOnce);
    return !state.clients().leaving(state.clients().find(client));
}

HeartbeatReply heartbeat(Transaction& transaction, const ClientId& client, Time now) {
    const MasterState& state = transaction.state();
    const ClientNumber number = state.clients().find(client);
    HeartbeatReply reply{.status = HeartbeatStatus::kNeedRemount, .client_ttl = state.options().client_ttl};
    if (!state.clients().alive(number)) return reply;
    transaction.apply(ClientSeen{.client = client, .expires = now + state.options().client_ttl});
    if (state.clients()[number].attached) reply.status = HeartbeatStatus::kOk;
    return reply;
}

StoreCode goodbye(Transaction& transaction, const ClientId& client, Time now) {
    const ClientNumber number = transaction.state().clients().find(client);
    if (!transaction.state().clients().alive(number)) return StoreCode::kClientNotFound;
    end_client(transaction, number, ClientEnd::kGoodbye, now);
    return StoreCode::kOk;
}

StoreCode report_failures(Transaction& transaction, const FailureReport& report, Time now) {
    const MasterState& state = transaction.state();
    if (!state.clients().alive(state.clients().find(report.client))) return StoreCode::kClientNotFound;
    transaction.advance(now);
    const auto view = state.segments().view().segments;
    auto suspects = std::count_if(view.begin(), view.end(),
                                  [&](const SegmentView& one) { return state.segments()[one.segment].suspect_until > now; });
    for (const SegmentId& id : report.segments) {
        const SegmentNumber number = state.segments().find(id);
        if (number == 0 || state.segments()[number].suspect_until > now) continue;
        // One client with a broken network must not make the whole pool look ill.
        if (view.size() > 1 && static_cast<size_t>(suspects + 1) * 2 > view.size()) continue;
        if (state.segments()[number].view_position != UINT32_MAX) ++suspects;
        const Segment& segment = state.segments()[number];
        const bool again = segment.suspect_for > Duration::zero() && now - segment.suspect_until <= 2 * segment.suspect_for;
        const Duration duration = again ? std::min(2 * segment.suspect_for, state.options().suspect_max) : state.options().suspect_min;
        transaction.apply(SegmentSuspected{.segment = number, .duration = duration, .now = now});
    }
    return StoreCode::kOk;
}

}  // namespace mooncake::store
