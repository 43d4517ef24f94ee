// SPDX-License-Identifier: Apache-2.0
#include "store/service/remove_in_parts.h"

#include "store/master/ops/removal.h"

namespace mooncake::store {

uint64_t remove_in_parts(LockedMaster& master, std::optional<std::string_view> tenant,
                         const std::function<bool(std::string_view key)>& matches, bool force) {
    Removal removal = master.run([&](Transaction& transaction, Time now) { return Removal(transaction, tenant, matches, force, now); });
    while (!removal.done()) {
        const auto keys = removal.choose(master.look([&](const MasterState& state, Time) { return removal.look(state); }));
        if (keys.empty()) continue;
        master.run([&](Transaction& transaction, Time now) {
            removal.remove(transaction, keys, now);
            return true;
        });
        master.give_way();
    }
    return removal.removed();
}

}  // namespace mooncake::store
