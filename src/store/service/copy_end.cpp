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

}  // namespace mooncake::store
