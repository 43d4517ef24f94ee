// SPDX-License-Identifier: Apache-2.0
#include "store/service/remounting.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "store/master/ops/segment_ops.h"
#include "store/service/event_hub.h"

namespace mooncake::store {

RemountReply remount_member(EventHub& hub, Transaction& transaction, const RemountRequest& request, Time now, const MatchedKeys& matched) {
    const ClientTable& clients = transaction.state().clients();
    std::vector<ClientId> withdrawn = hub.believe(request.client, request.heard, request.behind);
    std::erase(withdrawn, request.client);
    for (const ClientId& outdated : withdrawn) {
        const ClientNumber number = clients.find(outdated);
        if (!clients.alive(number) && !clients.leaving(number)) continue;
        if (clients[number].segments.empty()) continue;
        MC_LOG_WARNING("client {} did not hear everything from an earlier master: what it told us of that time is given up",
                       outdated.to_string());
        end_client(transaction, number, ClientEnd::kSilent, now);
    }
    // Also of those that are not here any more.
    if (!withdrawn.empty() && !transaction.state().tellers().empty())
        transaction.apply(ReportsWithdrawn{.clients = std::move(withdrawn), .now = now});
    // Who has never followed anybody has nothing that could be outdated.
    const bool holds = request.heard.life != 0 || std::any_of(request.segments.begin(), request.segments.end(),
                                                              [](const HeldSegment& held) { return !held.objects.empty(); });
    RemountReply reply = remount(transaction, request, now, holds && hub.distrusts(request.client), matched);
    hub.drop_strangers(transaction.state());
    if (!request.segments.empty()) return reply;
    UnheardEvents::Missed missed = hub.missed(request.client, request.heard_update, request.remembered_update);
    reply.missed = std::move(missed.updates);
    reply.missed_lost = missed.lost;
    return reply;
}

}  // namespace mooncake::store
