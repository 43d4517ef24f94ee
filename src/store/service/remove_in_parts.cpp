// SPDX-License-Identifier: Apache-2.0
#include "store/service/remove_in_parts.h"

#include <utility>

namespace mooncake::store {

Removal begin_removal(LockedMaster& master, Removal::Wish wish) {
    return master.run([&](Transaction& transaction, Time) { return Removal(transaction, std::move(wish)); });
}

std::optional<uint64_t> remove_in_parts(LockedMaster& master, Removal& removal, const std::function<bool()>& stopped) {
    master.run([&](Transaction& transaction, Time now) {
        removal.start(transaction, now);
        return true;
    });
    while (!removal.done()) {
        if (stopped()) return std::nullopt;
        const auto keys = removal.choose(master.look([&](const MasterState& state, Time) { return removal.look(state); }), stopped);
        if (keys.empty()) continue;
        master.run([&](Transaction& transaction, Time now) {
            removal.remove(transaction, keys, now);
            return true;
        });
        master.give_way();
    }
    if (stopped()) return std::nullopt;  // the last part may have been cut short
    return removal.removed();
}

}  // namespace mooncake::store
