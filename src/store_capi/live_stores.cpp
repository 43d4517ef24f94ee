// SPDX-License-Identifier: Apache-2.0
#include "store_capi/live_stores.h"

#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "base/thread_annotations.h"

namespace mooncake::store_capi {

namespace {

struct Slot {
    std::shared_ptr<store::StoreClient> client;
    bool busy = false;  // being set up
    uint32_t fork_generation = 0;
};

struct Table {
    Mutex mutex;
    StoreHandle last MC_GUARDED_BY(mutex) = 0;
    std::unordered_map<StoreHandle, Slot> slots MC_GUARDED_BY(mutex);

    Slot* find(StoreHandle handle) MC_REQUIRES(mutex) {
        const auto found = slots.find(handle);
        return found != slots.end() && found->second.fork_generation == fork_generation() ? &found->second : nullptr;
    }
};

/// Never destroyed: threads of the program may be in here while it exits.
Table& table() {
    static Table& all = *new Table;
    return all;
}

}  // namespace

StoreHandle add_store() {
    Table& all = table();
    const Lock lock(all.mutex);
    all.slots.emplace(++all.last, Slot{.client = nullptr, .busy = false, .fork_generation = fork_generation()});
    return all.last;
}

std::shared_ptr<store::StoreClient> client_of(StoreHandle handle) {
    Table& all = table();
    const Lock lock(all.mutex);
    const Slot* const slot = all.find(handle);
    return slot != nullptr ? slot->client : nullptr;
}

bool begin_setup(StoreHandle handle) {
    Table& all = table();
    const Lock lock(all.mutex);
    Slot* const slot = all.find(handle);
    if (slot == nullptr || slot->busy || slot->client) return false;
    return slot->busy = true;
}

void end_setup(StoreHandle handle, std::shared_ptr<store::StoreClient> client) {
    Table& all = table();
    const Lock lock(all.mutex);
    Slot* const slot = all.find(handle);
    if (slot == nullptr) return;  // the caller's reference is the last, and closes it
    slot->busy = false;
    slot->client = std::move(client);
}

void remove_store(StoreHandle handle) {
    std::shared_ptr<store::StoreClient> client;
    {
        Table& all = table();
        const Lock lock(all.mutex);
        Slot* const slot = all.find(handle);
        if (slot == nullptr) return;
        client = std::move(slot->client);
        all.slots.erase(handle);
    }
    if (client) client->close();
}

}  // namespace mooncake::store_capi
