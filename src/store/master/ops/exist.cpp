// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/object_ops.h"
#include "store/master/ops/reachable.h"

namespace mooncake::store {

ExistReply exist(Transaction& transaction, const KeysRequest& request, Time now) {
    const MasterState& state = transaction.state();
    ExistReply reply;
    reply.results.resize(request.keys.size());
    reply.soft_lease = state.soft_lease_time(now);
    SoftLeasesGranted granted{.until = now + reply.soft_lease};
    granted.objects.resize(request.keys.size());
    const TenantNumber tenant = state.tenant(request.tenant);
    if (tenant != 0) state.objects().find_many(tenant, request.keys, granted.objects);
    Reach reachable(state, request.unreachable);
    size_t present = 0;
    for (size_t i = 0; i < request.keys.size(); ++i) {
        const ObjectId id = granted.objects[i];
        const bool there = id != 0 && state.readable(state.objects()[id]) && reachable(id);
        reply.results[i] = there ? 1 : too_long(request.keys[i]) ? static_cast<int32_t>(StoreCode::kInvalidParams) : 0;
        granted.objects[present] = id;  // those granted move to the front
        present += there;
    }
    granted.objects.resize(present);
    if (present != 0) transaction.apply(std::move(granted));
    return reply;
}

}  // namespace mooncake::store
