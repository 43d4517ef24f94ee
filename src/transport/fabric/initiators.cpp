// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/initiators.h"

namespace mooncake::fabric {

Initiators::~Initiators() {
    Lock lock(mutex_);
    for (auto& [who, entry] : entries_) drop(entry);
}

void Initiators::drop(Entry& entry) {
    for (const auto& [rail, handle] : entry.handles) {
        Lock lock(rail->mutex());
        rail->remove_address(handle);
    }
    entry.handles.clear();
}

Result<> Initiators::tell(Incarnation who, std::span<const RailRecord> addresses, Time now) {
    Lock lock(mutex_);
    Entry fresh{.told = now, .handles = {}};
    Result<> result;
    for (Rail* const rail : rails_) {
        for (const RailRecord& there : addresses) {
            const Offer& here = rail->offer();
            if (there.name.empty() || there.provider != here.provider || there.protocol != here.protocol ||
                there.address_format != here.address_format)
                continue;
            Lock rail_lock(rail->mutex());
            if (const auto handle = rail->insert_address(there.name)) fresh.handles.emplace_back(rail, *handle);
            else result = Unexpected(Error(handle.error()));
        }
    }
    // Handles are counted, so that what is in both stays.
    Entry& entry = entries_[who.value];
    drop(entry);
    entry = std::move(fresh);
    return result;
}

void Initiators::sweep(Time now) {
    Lock lock(mutex_);
    for (auto next = entries_.begin(); next != entries_.end();) {
        const auto entry = next++;
        if (now - entry->second.told < idle_timeout_) continue;
        drop(entry->second);
        entries_.erase(entry);
    }
}

size_t Initiators::count() const {
    Lock lock(mutex_);
    return entries_.size();
}

}  // namespace mooncake::fabric
