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
    Publisher(Directory& directory, Service& service, std::string cluster_id, std::string name, Describe describe)
        : directory_(directory), service_(service), cluster_id_(std::move(cluster_id)), name_(std::move(name)),
          describe_(std::move(describe)) {}

    /// Writes both entries, over whatever an earlier life of ours left there.
    Result<> publish(Deadline deadline);
    /// Soon, once for all changes until then.
    void changed();
    /// Removes the entries, unless another process has taken the name over. Call after the service stopped.
    void withdraw(Deadline deadline);

private:
    Result<> publish_descriptor(Deadline deadline);

    Directory& directory_;
    Service& service_;
    const std::string cluster_id_, name_;
    const Describe describe_;
    Mutex mutex_;
    bool scheduled_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mooncake
