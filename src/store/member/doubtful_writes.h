// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

/// Writes of a client, or copies of a node, that were given up while a node did not answer: their bytes may still land there, so the master
/// keeps their ranges in quarantine. When that node answers again it is fenced, and the master is told that they may be used. On a thread of
/// its own, begun with the first, or the first for which there is one. Bounded: what does not fit, or is never settled, is in quarantine for
/// its time. Thread-safe.
class DoubtfulWrites {
public:
    struct Write {
        std::string key{};
        uint64_t generation = 0;
        TaskId task{};  // of a copy, which is told by this alone
    };
    static constexpr Duration kDoubtfulFor = 10min;  // by then the master uses such ranges again by itself
    struct Hooks {
        /// Sees to it that nothing we sent there before can land any more; false: it does not answer.
        std::function<bool(const std::string& endpoint)> fence;
        /// Tells the master; false: it does not answer.
        std::function<bool(std::span<const Write> settled)> tell;
        std::function<Time()> clock = Clock::now;
        bool threaded = true;  // otherwise settle() is called by the owner alone
    };
    static constexpr size_t kWritesMax = 10'000;
    static constexpr Duration kPauseMin = 200ms, kPauseMax = 5s;

    explicit DoubtfulWrites(Hooks hooks) : hooks_(std::move(hooks)) {}
    ~DoubtfulWrites() { stop(); }

    /// `endpoints`: where its bytes may still land. `until`: then its range was in quarantine for long enough anyway.
    void add(Write write, std::span<const std::string> endpoints, Time until);
    /// The master was lost: who meets us next knows nothing of them.
    void forget_all();
    /// Waits for what is under way. Idempotent; nothing is added afterwards.
    void stop();
    size_t size() const;

    /// One turn of the thread: tries whom it is time to try, and returns when to do so again.
    Time settle();

private:
    struct Doubt {
        uint64_t number = 0;  // rising
        Write write;
        std::vector<std::string> endpoints;  // none: settled, but not told
        Time until{};
    };
    struct Endpoint {
        Time retry_at{};
        Duration pause = kPauseMin;
    };

    void run(const std::stop_token& stop);
    std::vector<std::string> due(Time now) MC_REQUIRES(mutex_);
    void fenced(const std::string& endpoint, uint64_t before) MC_REQUIRES(mutex_);
    void tell_settled();
    Time next() const MC_REQUIRES(mutex_);

    const Hooks hooks_;
    mutable Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<Doubt> doubts_ MC_GUARDED_BY(mutex_);                   // by number
    std::map<std::string, Endpoint> endpoints_ MC_GUARDED_BY(mutex_);  // of the doubts
    Time tell_at_ MC_GUARDED_BY(mutex_){};                             // not before: the master did not answer
    uint64_t last_ MC_GUARDED_BY(mutex_) = 0;
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::jthread thread_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
