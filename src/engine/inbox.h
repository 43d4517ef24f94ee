// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "engine/engine.h"

namespace mooncake {

/// Notifications that arrived and were not yet taken. Bounded in number and bytes, because anybody may send some: a sender is told when
/// we do not keep up. Thread-safe.
class Inbox {
public:
    static constexpr size_t kCountMax = 1 << 18;
    static constexpr size_t kBytesMax = 64 << 20;

    /// kInvalidArgument: longer than any may be; kNoSpace: too much waits here, try again later.
    Result<> add(Notification notification) {
        MC_RETURN_IF_ERROR(check_notification(notification));
        const size_t bytes = bytes_of(notification);
        Lock lock(mutex_);
        if (notifications_.size() >= kCountMax || bytes_ + bytes > kBytesMax)
            return fail(Code::kNoSpace, "{} notifications of {} bytes wait to be taken", notifications_.size(), bytes_);
        notifications_.push_back(std::move(notification));
        bytes_ += bytes;
        return {};
    }
    std::vector<Notification> take() {
        Lock lock(mutex_);
        bytes_ = 0;
        return std::exchange(notifications_, {});
    }

private:
    static size_t bytes_of(const Notification& one) { return sizeof one + one.name.size() + one.message.size(); }

    Mutex mutex_;
    std::vector<Notification> notifications_ MC_GUARDED_BY(mutex_);
    size_t bytes_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake
