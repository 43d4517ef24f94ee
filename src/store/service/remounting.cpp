// SPDX-License-Identifier: Apache-2.0
#include "store/service/remounting.h"

#include "base/log.h"
#include "store/master/ops/segment_ops.h"
#include "store/service/event_hub.h"

namespace mooncake::store {

RemountReply remount_member(EventHub& hub, Transaction& transaction, const RemountRequest& request, Time now) {
    const ClientTable& clients = transaction.state().clients();
    for (const ClientId& behind : hub.believe(request.behind)) {
        const ClientNumber number = clients.find(behind);
        if (behind == request.client || !clients.alive(number) || clients[number].segments.empty()) continue;
        MC_LOG_WARNING("client {} did not hear everything from an earlier master: what it told us of that time is given up",
                       behind.to_string());
        end_client(transaction, number, ClientEnd::kSilent, now);
    }
    RemountReply reply = remount(transaction, request, now, hub.distrusts(request.client));
    hub.drop_strangers(transaction.state());
    return reply;
}

}  // namespace mooncake::store
