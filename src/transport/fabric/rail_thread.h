// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "base/unique_fd.h"

namespace mooncake::fabric {

class Rail;

/// Drives rails when nobody else does: without it, nothing that peers send to us would arrive. Spins for a moment when there was
/// something to do, then sleeps on the rails' descriptors.
class RailThread {
public:
    static Result<std::unique_ptr<RailThread>> start(const std::string& name, std::vector<Rail*> rails, Duration spin);
    /// Ends the thread.
    ~RailThread();

    /// Ends its sleep. From any thread.
    void ring() noexcept;

private:
    RailThread(std::vector<Rail*> rails, Duration spin, UniqueFd bell) : rails_(std::move(rails)), spin_(spin), bell_(std::move(bell)) {}

    void run(const std::stop_token& stop);
    /// True: a descriptor of a rail ended it.
    bool sleep();
    Duration nap(Time now);

    const std::vector<Rail*> rails_;
    const Duration spin_;
    const UniqueFd bell_;                // an eventfd
    std::atomic<bool> sleeping_{false};  // or about to
    int in_vain_ = 0;                    // wakes in a row for which there was no reason
    Time napping_since_{};
    std::jthread thread_;
};

}  // namespace mooncake::fabric
