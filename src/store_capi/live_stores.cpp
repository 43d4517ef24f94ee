// SPDX-License-Identifier: Apache-2.0
#include "store_capi/live_stores.h"

#include <atomic>
#include <unordered_map>
#include <utility>

#include "base/fork.h"
#include "base/thread_annotations.h"

namespace mooncake::store_capi {

namespace {

struct Slot {
    std::shared_ptr<store::StoreClient> client;
    bool busy = false;  // being set up
};

struct Table {
    Mutex mutex;
    std::unordered_map<StoreHandle, Slot> slots MC_GUARDED_BY(mutex);

    Slot* find(StoreHandle handle) MC_REQUIRES(mutex) {
        const auto found = slots.find(handle);
        return found != slots.end() ? &found->second : nullptr;
    }
};

constinit PerProcess<Table> table;
constinit std::atomic<StoreHandle> last_handle{0};  // goes on in a forked child, where the parent's handles mean nothing

}  // namespace

StoreHandle add_store() {
    const StoreHandle handle = last_handle.fetch_add(1, std::memory_order_relaxed) + 1;
    Table& all = table.get();
    const Lock lock(all.mutex);
    all.slots.emplace(handle, Slot{});
    return handle;
}

std::shared_ptr<store::StoreClient> client_of(StoreHandle handle) {
    Table& all = table.get();
    const Lock lock(all.mutex);
    const Slot* const slot = all.find(handle);
    return slot != nullptr ? slot->client : nullptr;
}

bool begin_setup(StoreHandle handle) {
    Table& all = table.get();
    const Lock lock(all.mutex);
    Slot* const slot = all.find(handle);
    if (slot == nullptr || slot->busy || slot->client) return false;
    return slot->busy = true;
}

void end_setup(StoreHandle handle, std::shared_ptr<store::StoreClient> client) {
    Table& all = table.get();
    const Lock lock(all.mutex);
    Slot* const slot = all.find(handle);
    if (slot == nullptr) return;  // the caller's reference is the last, and closes it
    slot->busy = false;
    slot->client = std::move(client);
}

void remove_store(StoreHandle handle) {
    std::shared_ptr<store::StoreClient> client;
    {
        Table& all = table.get();
        const Lock lock(all.mutex);
        Slot* const slot = all.find(handle);
        if (slot == nullptr) return;
        client = std::move(slot->client);
        all.slots.erase(handle);
    }
    if (client) client->close();
}

}  // namespace mooncake::store_capi
