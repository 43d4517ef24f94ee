// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "engine/engine.h"

namespace mooncake {

/// Notifications that arrived and were not yet taken. Bounded: a sender is told when we do not keep up. Thread-safe.
class Inbox {
public:
    Result<> add(Notification notification) {
        Lock lock(mutex_);
        if (notifications_.size() >= kMax) return fail(Code::kNoSpace, "{} notifications wait to be taken", notifications_.size());
        notifications_.push_back(std::move(notification));
        return {};
    }
    std::vector<Notification> take() {
        Lock lock(mutex_);
        return std::exchange(notifications_, {});
    }

private:
    static constexpr size_t kMax = 1 << 18;
    Mutex mutex_;
    std::vector<Notification> notifications_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
