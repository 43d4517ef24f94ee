// SPDX-License-Identifier: Apache-2.0
#include "store/member/failure_teller.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread.h"

namespace mooncake::store {

namespace {

constexpr Duration kTellTimeout = 500ms;

}  // namespace

void FailureTeller::tell(const SegmentId& segment) {
    Lock lock(mutex_);
    if (stopped_) return;
    waiting_.insert(segment);
    if (thread_.joinable()) return wake_.notify_all();
    auto thread = try_start_thread("mc-failures", [this](const std::stop_token& stop) { run(stop); });
    if (thread) thread_ = std::move(*thread);
    else MC_LOG_WARNING_EVERY(10s, "the master is not told of unreachable segments now: {}", thread.error().to_string());
}

void FailureTeller::stop() {
    std::jthread thread;
    {
        Lock lock(mutex_);
        stopped_ = true;
        thread.swap(thread_);
    }
    thread.request_stop();  // joined on the way out, without the lock
}

void FailureTeller::run(const std::stop_token& stop) MC_NO_THREAD_ANALYSIS {
    std::unique_lock lock(mutex_);
    while (wake_.wait(lock, stop, [this]() MC_NO_THREAD_ANALYSIS { return !waiting_.empty(); })) {
        const std::set<SegmentId> told = std::exchange(waiting_, {});
        lock.unlock();
        const std::vector<SegmentId> segments(told.begin(), told.end());
        const auto answer = master_.report_failures({.client = client_, .segments = segments}, Deadline::after(kTellTimeout));
        if (!answer)
            MC_LOG_WARNING_EVERY(10s, "the master was not told of {} unreachable segments: {}", segments.size(),
                                 answer.error().to_string());
        else if (*answer != StoreCode::kOk)
            MC_LOG_WARNING_EVERY(10s, "the master does not heed what we say of {} unreachable segments: {}", segments.size(),
                                 store_code_name(*answer));
        lock.lock();
        wake_.wait_for(lock, stop, interval_, [] { return false; });
    }
}

}  // namespace mooncake::store
