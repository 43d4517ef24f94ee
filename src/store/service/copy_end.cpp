// SPDX-License-Identifier: Apache-2.0
#include "store/service/copy_end.h"

namespace mooncake::store {

void tell_of_copies(EventHub& hub, const MasterState& state, const TaskEnd& end, EventHub::Caused& caused) {
    const TaskNumber number = end.code == StoreCode::kOk ? state.tasks().find(end.task) : 0;
    if (number == 0 || state.tasks()[number].client != end.client || state.tasks()[number].copy == 0) return;
    const Copy& copy = state.copy(state.tasks()[number].copy);
    const Object& object = state.objects()[copy.object];
    for (size_t i = 0; i < copy.targets.size(); ++i) {
        hub.range_filled(state, copy.targets[i].segment, object.generation, object.checksum);
        hub.doubt(state, copy.targets[i].segment, caused);
    }
}

void tell_of_copies(EventHub& hub, const MasterState& state, const CopiesEnd& ends, EventHub::Caused& caused) {
    SegmentNumber last = 0;
    for (const CopyEnd& end : ends.items) {
        const CopyId id = end.code == StoreCode::kOk ? state.find_tier_copy(end.task) : 0;
        if (id == 0 || state.clients()[state.copy(id).client].id != ends.client) continue;
        const Copy& copy = state.copy(id);
        const Object& object = state.objects()[copy.object];
        last = copy.targets[0].segment;
        hub.range_filled(state, last, object.generation, object.checksum);
    }
    if (last != 0) hub.doubt(state, last, caused);  // all are the node's own
}

}  // namespace mooncake::store
