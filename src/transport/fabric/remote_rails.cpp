// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/remote_rails.h"

namespace mooncake::fabric {

bool RemoteRails::renew(const RailState& state) {
    RailRecord& there = rails_[state.rail];
    if (state.epoch <= there.epoch) return false;
    there.epoch = state.epoch;
    there.name = state.name;
    return true;
}

bool RemoteRails::is_closed(uint32_t rail, uint64_t epoch, Time since) const {
    if (replaced(rail, epoch)) return true;
    switch (profile_.fence) {
        case Fence::kNeeded: return false;
        case Fence::kGrace: return time_.now() - since >= profile_.fence_grace;
        case Fence::kNone: return true;
    }
    return false;
}

}  // namespace mooncake::fabric
