// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "store/member/pool_access.h"
#include "store/protocol/tiers.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// Tells the master, in batches and on a thread of its own, how orders of tiers ended and which values a disk has given up. What the master does not
/// hear is told again, as long as it is the same one; a new one learns what is on the disk from the report, and of what went meanwhile from here.
/// Thread-safe.
class TierTeller {
public:
    static constexpr size_t kGoneKept = 1 << 20;  // of values that went while no master listens

    struct Hooks {
        std::function<void()> idle;                        // run now and then, on the thread that tells
        std::function<bool(uint64_t generation)> is_back;  // a value that went
    };
    TierTeller(PoolAccess& pool, Hooks hooks);
    ~TierTeller() { stop(); }

    /// Whose values go; before the first master is found.
    void speak_for(SegmentId segment);
    /// Of an order that came at the mark: void if the next master is another one. One that was only not heard for a while still waits for it.
    void ended(const CopyEnd& end, const WriteFence::Mark& asked);
    void gone(std::span<const TierObject> objects);
    /// Told with the next ends.
    void want_under_way(uint64_t bytes);

    void master_lost();
    void master_found(uint64_t epoch);
    /// Forgets what was not told. Idempotent.
    void stop();

private:
    static constexpr size_t kEndsMax = 4096, kGoneMax = 4096;  // in one request
    static constexpr size_t kTextBytesMax = 1 << 20;
    static constexpr Duration kPause = 200ms, kIdle = 1s;

    struct Gone {
        std::string tenant, key;
        uint64_t generation = 0;
    };
    struct End {
        CopyEnd end;
        uint64_t epoch = 0;  // of the master whose order it was; 0: whoever comes
    };
    bool is_void(const End& end) const MC_REQUIRES(mutex_) { return end.epoch != 0 && epoch_ != 0 && end.epoch != epoch_; }
    void run(const std::stop_token& stop);
    bool tell_ends();
    bool tell_gone();

    PoolAccess& pool_;
    const Hooks hooks_;
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<End> ends_ MC_GUARDED_BY(mutex_);
    std::deque<Gone> gone_ MC_GUARDED_BY(mutex_);
    SegmentId segment_ MC_GUARDED_BY(mutex_);
    uint64_t window_bytes_ MC_GUARDED_BY(mutex_) = 0;
    uint64_t epoch_ MC_GUARDED_BY(mutex_) = 0;  // of the last master that was found
    bool has_master_ MC_GUARDED_BY(mutex_) = false;
    std::jthread thread_;
};

}  // namespace mooncake::store
