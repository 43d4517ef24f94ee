// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "store/master/ops/tier_ops.h"
#include "store/service/copy_end.h"
#include "store/service/master_calls.h"

namespace mooncake::store {

namespace {

constexpr size_t kAtOnce = 1024;       // under one hold of the lock
constexpr size_t kOrdersAtOnce = 256;  // given to who has just ended some

/// Calls `part(some)` for all, with whoever waits for the lock let in between.
template <typename Item, typename Part>
void in_parts(const LockedMaster& master, std::span<const Item> items, Part&& part) {
    do {
        const std::span<const Item> some = items.first(std::min(items.size(), kAtOnce));
        items = items.subspan(some.size());
        part(some);
        if (!items.empty()) master.give_way();
    } while (!items.empty());
}

}  // namespace

void MasterCalls::attach_tiers(rpc::Server& server) {
    server.handle(rpc::Method::kStoreEndCopies, handler("end_copies", decode_copies_end, &MasterCalls::end_copies));
    server.handle(rpc::Method::kStoreReplicasGone, handler("replicas_gone", decode_replicas_gone, &MasterCalls::replicas_gone));
}

void MasterCalls::end_copies(const ReceivedCopiesEnd& received, Answer answer) {
    const CopiesEnd& request = received.request;
    EventHub::Caused caused;
    in_parts(parts_.master, request.items, [&](std::span<const CopyEnd> some) {
        run_noting(caused, [&](Transaction& transaction, Time) {
            tell_of_copies(parts_.hub, transaction.state(), CopiesEnd{.client = request.client, .items = some}, caused);
            return true;
        });
    });
    if (parts_.hub.told(caused)) return finish_copies(request.client, request.items, request.window_bytes, std::move(answer));
    auto then = [this, client = request.client, ends = received.items, window = request.window_bytes,
                 answer = std::make_shared<Answer>(std::move(answer))] {
        const auto finish = [this, client, ends, window, answer] {
            if (const Gate::Pass pass = gate_.enter()) finish_copies(client, ends, window, std::move(*answer));
        };
        // Not where removals by pattern take their time.
        if (auto posted = parts_.adopter.post(contained_task("end_copies", finish)); !posted) (*answer)->fail(posted.error());
    };
    parts_.jobs.wake_by(parts_.hub.call_when_told(caused, std::move(then), Clock::now()));
}

void MasterCalls::finish_copies(const ClientId& client, std::span<const CopyEnd> ends, uint64_t window_bytes, Answer answer) {
    CodesReply reply;
    reply.codes.reserve(ends.size());
    in_parts(parts_.master, ends, [&](std::span<const CopyEnd> some) {
        const CodesReply part = run([&](Transaction& transaction, Time now) {
            note_lost(transaction, now);
            CodesReply codes = store::end_copies(transaction, {.client = client, .items = some, .window_bytes = window_bytes}, now);
            order_tier_copies(transaction, transaction.state().clients().find(client), now, kOrdersAtOnce);
            return codes;
        });
        reply.codes.insert(reply.codes.end(), part.codes.begin(), part.codes.end());
    });
    answer->reply(encode_codes_reply(reply));
}

void MasterCalls::replicas_gone(const ReceivedReplicasGone& received, Answer answer) {
    StoreCode code = StoreCode::kOk;
    EventHub::Caused caused;
    in_parts(parts_.master, received.request.items, [&](std::span<const GoneReplica> some) {
        if (code != StoreCode::kOk) return;
        code = run_noting(caused, [&](Transaction& transaction, Time now) {
            const ReplicasGone part{.client = received.request.client, .segment = received.request.segment, .items = some};
            return store::replicas_gone(transaction, part, now);
        });
    });
    parts_.metrics.call(CountedCall::kEvictDiskReplica, code == StoreCode::kOk);
    answer_when_told(caused, std::move(answer), encode_code_reply(code));
}

}  // namespace mooncake::store
