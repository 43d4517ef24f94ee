// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "store/member/doubtful_writes.h"
#include "store/member/pool_access.h"
#include "store/member/write_moves.h"
#include "store/protocol/events.h"

namespace mooncake::store {

/// Carries out the copies the master orders, on a thread of its own, one after another: reads our segment's memory, writes to the
/// targets, reports. Where a target broke off and may still take bytes, that is reported, and once more when it has been fenced.
/// Thread-safe.
class CopyWorker {
public:
    /// `checksum`: a source that does not hold its value is not copied.
    CopyWorker(PoolAccess& pool, bool checksum);
    ~CopyWorker() { stop(); }

    /// Does not wait. An order that came before is not carried out again: its outcome is reported again once there is one. What does not
    /// fit the queue is reported as failed by and by; the master orders no more than it allows.
    void add(CopyOrder order);
    /// Who meets us next knows nothing of our copies.
    void master_lost() { doubts_.forget_all(); }
    /// Forgets what has not begun, waits for what has. Idempotent.
    void stop();

private:
    static constexpr size_t kQueueMax = 100'000;
    static constexpr size_t kRememberedMax = 100'000;  // orders, the latest ones

    struct Outcome {
        StoreCode code = StoreCode::kOk;
        std::string message{};
        std::vector<SegmentHandle> in_doubt{};  // targets where bytes may still land
    };
    void run(const std::stop_token& stop);
    /// An order counts only under the master that gave it: another numbers segments otherwise.
    struct Job {
        CopyOrder order;
        WriteFence::Mark asked;
        bool again = false;  // only its outcome is asked for
    };
    void carry_out(const Job& job);
    /// False: the master did not answer.
    bool report(const TaskId& task, const Outcome& outcome);
    Outcome copy(const Job& job);
    /// The same where the source lies in a file, which may be cut off meanwhile: through memory of our own, step by step.
    Outcome copy_of_file(const CopyOrder& order, const std::byte* bytes, const WriteFence::Pass& pass);
    static Outcome outcome_of(const std::vector<WriteMoves::Failure>& failures);
    static Outcome unknown_target();
    static Outcome not_the_value();
    DoubtfulWrites::Hooks doubt_hooks();
    /// Nothing of this copy can land any more.
    bool settled(const TaskId& task);

    PoolAccess& pool_;
    const bool checksum_;
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<Job> queue_ MC_GUARDED_BY(mutex_);
    // Carrying one out twice could write where something else lies by then.
    std::unordered_map<TaskId, std::optional<Outcome>> seen_ MC_GUARDED_BY(mutex_);  // nothing: not done yet
    std::deque<TaskId> seen_order_ MC_GUARDED_BY(mutex_);
    DoubtfulWrites doubts_;
    std::jthread thread_;
};

}  // namespace mooncake::store
