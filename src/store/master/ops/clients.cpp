// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/segment_ops.h"

namespace mooncake::store {

void end_client(Transaction& transaction, ClientNumber client, ClientEnd how, Time now) {
    const MasterState& state = transaction.state();
    while (!state.clients()[client].segments.empty())
        transaction.apply(
            SegmentRemoved{.segment = state.clients()[client].segments.back(), .may_return = how != ClientEnd::kGoodbye, .now = now});
    transaction.apply(ClientGone{.client = state.clients()[client].id, .how = how, .now = now});
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
    for (const SegmentId& id : report.segments) {
        const SegmentNumber number = state.segments().find(id);
        if (number == 0 || state.segments()[number].suspect_until > now) continue;
        // One client with a broken network must not make the whole pool look ill.
        const auto view = state.segments().view().segments;
        const auto suspects = std::count_if(view.begin(), view.end(),
                                            [&](const SegmentView& one) { return state.segments()[one.segment].suspect_until > now; });
        if (view.size() > 1 && static_cast<size_t>(suspects + 1) * 2 > view.size()) continue;
        const Segment& segment = state.segments()[number];
        const bool again = segment.suspect_for > Duration::zero() && now - segment.suspect_until <= 2 * segment.suspect_for;
        const Duration duration = again ? std::min(2 * segment.suspect_for, state.options().suspect_max) : state.options().suspect_min;
        transaction.apply(SegmentSuspected{.segment = number, .duration = duration, .now = now});
    }
    return StoreCode::kOk;
}

}  // namespace mooncake::store
