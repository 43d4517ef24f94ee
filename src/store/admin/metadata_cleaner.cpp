// SPDX-License-Identifier: Apache-2.0
#include "store/admin/metadata_cleaner.h"

#include <algorithm>

#include "base/log.h"
#include "coordination/directory.h"
#include "store/admin/admin_views.h"

namespace mooncake::store {

MetadataCleaner::MetadataCleaner(const LockedMaster& master, std::string cluster_id, Duration grace, Remove remove)
    : master_(master), cluster_id_(std::move(cluster_id)), grace_(grace), remove_(std::move(remove)) {}

MetadataCleaner::Seen MetadataCleaner::look() const {
    Seen seen;
    for (const ClientView& client : view_clients(master_)) seen.living.insert(client.id.to_string());
    for (const SegmentDetail& segment : view_segments(master_)) seen.names[segment.spec.name].insert(segment.client.to_string());
    return seen;
}

void MetadataCleaner::run_once(Time now) {
    Seen seen = look();
    // A segment that only was unmounted has an owner that lives on, and so does its engine.
    for (const auto& [name, owners] : before_.names) {
        const bool died = std::none_of(owners.begin(), owners.end(), [&](const std::string& owner) { return seen.living.contains(owner); });
        if (died && !seen.names.contains(name)) dead_.emplace(name, now);
    }
    before_ = std::move(seen);
    for (auto entry = dead_.begin(); entry != dead_.end();) {
        const std::string& name = entry->first;
        const bool back = before_.names.contains(name);
        if (!back && now - entry->second < grace_) {
            ++entry;
            continue;
        }
        for (const std::string& key : {descriptor_key(cluster_id_, name), rpc_meta_key(cluster_id_, name)}) {
            if (back) break;
            if (auto removed = remove_(key); !removed) MC_LOG_WARNING("cannot delete {}: {}", key, removed.error().to_string());
            else MC_LOG_INFO("deleted {}: its client is gone", key);
        }
        entry = dead_.erase(entry);
    }
}

}  // namespace mooncake::store
