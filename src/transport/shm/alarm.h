// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/socket.h"
#include "transport/shm/loop.h"

namespace mooncake::shm {

/// Something that the loop's thread does later. Costs a descriptor once it was set. Thread-safe.
class Alarm final : private Loop::Handler {
public:
    Alarm(Loop& loop, std::function<void()> ring) : loop_(loop), ring_(std::move(ring)) {}
    ~Alarm();
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;

    /// Rings once, after that time; in place of what was set before.
    Result<> set(Duration after);

private:
    void on_ready() override;
    void on_exception() noexcept override {}  // it rings no more until it is set

    Loop& loop_;
    const std::function<void()> ring_;
    Mutex mutex_;
    net::Socket timer_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::shm
