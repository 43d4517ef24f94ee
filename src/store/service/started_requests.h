// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "store/protocol/objects.h"

namespace mooncake::store {

/// The put_starts that are long enough to be carried out in parts, while they are. Such a one may yet be undone; if its client has lost the
/// connection and asks again meanwhile, it must not be told of ranges that are then taken back. Thread-safe.
class StartedRequests {
public:
    static constexpr size_t kLong = 128;  // items: shorter ones are carried out in one go

    /// While it lives, nobody else enters for the same request. False: somebody has.
    class Entry {
    public:
        Entry(StartedRequests* table, ClientId client, uint64_t request_id, bool entered)
            : table_(table), client_(client), request_id_(request_id), entered_(entered) {}
        ~Entry() {
            if (table_ != nullptr && entered_) table_->leave(client_, request_id_);
        }
        Entry(const Entry&) = delete;
        Entry& operator=(const Entry&) = delete;
        explicit operator bool() const noexcept { return entered_; }

    private:
        StartedRequests* const table_;  // null: short
        const ClientId client_;
        const uint64_t request_id_;
        const bool entered_;
    };

    Entry enter(const PutStartRequest& request) {
        if (request.items.size() <= kLong || request.request_id == 0) return Entry(nullptr, {}, 0, true);
        Lock lock(mutex_);
        const bool fresh = find(request.client, request.request_id) == running_.end();
        if (fresh) running_.emplace_back(request.client, request.request_id);
        return Entry(this, request.client, request.request_id, fresh);
    }

private:
    using Running = std::vector<std::pair<ClientId, uint64_t>>;  // as many as there are threads, at most

    Running::iterator find(const ClientId& client, uint64_t request_id) MC_REQUIRES(mutex_) {
        return std::find(running_.begin(), running_.end(), std::pair(client, request_id));
    }
    void leave(const ClientId& client, uint64_t request_id) {
        Lock lock(mutex_);
        running_.erase(find(client, request_id));
    }

    Mutex mutex_;
    Running running_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
