// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/thread_annotations.h"
#include "coordination/directory.h"
#include "engine/service.h"
#include "transport/descriptor.h"

namespace mooncake {

/// Keeps our two directory entries (rpc_meta and descriptor) true. Registrations are published together and a moment later, so
/// that registering n buffers costs n, not n squared. Thread-safe.
class Publisher {
public:
    using Describe = std::function<SegmentDescriptor(uint32_t buffers_max)>;
    /// Asks the control port at `address` ("host:port") whether an engine of our name lives there, other than this one.
    using Lives = std::function<bool(const std::string& address, Deadline deadline)>;
    Publisher(Directory& directory, Service& service, std::string cluster_id, std::string name, Describe describe, Lives lives)
        : directory_(directory), service_(service), cluster_id_(std::move(cluster_id)), name_(std::move(name)),
          describe_(std::move(describe)), lives_(std::move(lives)) {}

    /// Writes both entries, over whatever an earlier life of ours left there. kAlreadyExists: another engine of this name is alive.
    Result<> publish(Deadline deadline);
    /// Soon, once for all changes until then.
    void changed();
    /// Removes the entries, unless another process has taken the name over. Call after the service stopped.
    void withdraw(Deadline deadline);

private:
    Result<> publish_address(const SegmentDescriptor& own, Deadline deadline);
    Result<> remove_leftover(const std::string& key, Deadline deadline);
    Result<> publish_descriptor(Deadline deadline);

    Directory& directory_;
    Service& service_;
    const std::string cluster_id_, name_;
    const Describe describe_;
    const Lives lives_;
    Mutex mutex_;
    bool scheduled_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mooncake
