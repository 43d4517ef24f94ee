// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "store/service/locked_master.h"

namespace mooncake::store {

/// Deletes what clients that died have left in the engines' metadata directory. A name is deleted once no living client has had a segment of
/// that name for `grace`, so that a process that comes back under it is not hurt. Not thread-safe: run_once() every second or so.
class MetadataCleaner {
public:
    using Remove = std::function<Result<>(const std::string& key)>;

    /// Borrows the master. `remove` deletes one key of the directory; a missing one is fine.
    MetadataCleaner(const LockedMaster& master, std::string cluster_id, Duration grace, Remove remove);

    void run_once(Time now);

private:
    struct Seen {
        std::set<std::string> living;                        // clients, by id
        std::map<std::string, std::set<std::string>> names;  // of their segments -> ids of their owners
    };
    Seen look() const;

    const LockedMaster& master_;
    const std::string cluster_id_;
    const Duration grace_;
    const Remove remove_;
    Seen before_;
    std::map<std::string, Time> dead_;  // names, and when we noticed
};

}  // namespace mooncake::store
