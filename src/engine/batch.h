// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "base/completion.h"
#include "base/thread_annotations.h"
#include "engine/core.h"
#include "engine/engine.h"

namespace mooncake {

class Batch;

/// One task as the user counts them.
struct BatchTask {
    explicit BatchTask(Completion* parent) noexcept : completion(parent) {}
    Completion completion;
    size_t first_slice = 0;  // its slices in the group
    size_t slices = 0;
    uint64_t bytes = 0;  // moved in earlier attempts, of which other bytes of it failed
};

/// The tasks of one submit() that go the same way to the same segment: submitted, retried, stopped and finished together. An attempt has
/// a part for each pair of memory kinds, over a link that carries it; all parts are under way at once, to the same life of the peer.
/// Owned by its Batch, which it keeps alive until it is final. Thread-safe.
class TransferGroup final : public CompletionHook {
public:
    TransferGroup(EngineCore& core, std::shared_ptr<Batch> batch, std::shared_ptr<Session> session, Addresses addresses,
                  Direction direction, Deadline deadline)
        : core_(core), session_(std::move(session)), direction_(direction), deadline_(deadline), addresses_(std::move(addresses)),
          attempt_(nullptr, this), batch_(std::move(batch)) {}

    /// Only before start(). Returns the task's index.
    size_t add_task(std::span<const Block> blocks);
    /// Only before start(), which waits for it.
    void follow(Behind behind) {
        behind_ = std::move(behind);
        time_ = deadline_.left();
    }
    /// Submits; where there is no link yet, the service's threads connect first. Nothing if it was stopped before. Where there is no memory for
    /// it the group fails.
    void start() noexcept;
    /// Ends the group as cancelled or timed out; when it returns the group is final and nothing of it moves. Waits until `fence` for the
    /// peer to confirm that, however many tasks there are.
    void stop(Code code, std::string_view why, Deadline fence);

    TransferStatus status(size_t task);
    /// The calling thread is about to be given this status: if that says that the peer has restarted, it knows now.
    void tell(const TransferStatus& status);
    Service::Key key() const noexcept { return session_->key(); }
    bool over();
    /// Once it is over: the life of the peer that has the bytes. None if there were no bytes.
    Incarnation reached();
    /// Lets the calling thread do the transport's work for the attempt under way, if there is one, until that is over.
    void help(Deadline deadline);

private:
    enum class State : uint8_t { kBetween, kRunning, kFinal };  // kBetween: no attempt is under way

    /// The bytes of one task in one part.
    struct Piece {
        explicit Piece(BatchTask& owner) noexcept : task(owner), completion(&owner.completion) {}
        BatchTask& task;
        size_t slices = 0;      // as many of the part's, one piece after the other
        Completion completion;  // one operation of the task's
    };
    /// The bytes of one attempt that are of one pair. Mostly that is all of the first attempt, and then nothing is copied: it has no
    /// pieces, and its slices tell the tasks.
    struct Part {
        KindPair pair = {};
        std::shared_ptr<Link> link = {};
        std::span<const Slice> slices = {};  // the group's, or `own`
        std::vector<Slice> own = {};
        std::list<Piece> pieces = {};
        std::vector<std::shared_ptr<Link>> failed = {};  // where some of it was before
    };
    using Parts = std::list<Part>;
    /// Bytes that an attempt has to move after they failed, or that were never one part.
    struct Left {
        Slice slice = {};
        BatchTask* task = nullptr;
        std::shared_ptr<Link> failed = {};
        KindPair pair = {};  // they were taken for
    };
    /// Why a part of an attempt failed.
    struct Failure {
        KindPair pair = {};
        std::shared_ptr<Link> link = {};
        Error error = {};
    };

    void on_done(Completion&) noexcept override;
    void arm_timer() MC_REQUIRES(mutex_);
    /// start() where memory may be lacking.
    void set_out();
    /// The first attempt.
    void begin(const std::shared_ptr<Batch>& batch);
    /// begin() when the work is over. The service looks, so that nobody waits who could do something else.
    void begin_after_work(const std::shared_ptr<Batch>& batch);
    /// Fails the group if there is no memory for the step.
    template <typename Step>
    void unless_out_of_memory(const Step& step) noexcept;
    /// `last`: how the attempt before failed, if there was one.
    void start_attempt(const Failure& last);
    void run_attempt(Result<> planned, Parts parts, const Failure& last);

    /// What to move next, each part with a link. `wait`: for links that are not at hand. False: it would have to.
    Result<bool> plan(bool wait, Parts& parts);
    Result<std::shared_ptr<Link>> link_for(const Need& need, bool wait);
    Need need_of(KindPair pair) const;
    void split_left(PeerMemory& memory, Parts& parts);
    void take_first_attempt();

    /// Readies the tasks and pieces of parts_.
    void ready() MC_REQUIRES(mutex_);
    /// Hands the parts to their peers.
    void submit_parts(size_t parts);

    void after_failed_attempt();
    /// Which parts failed; what of them is left goes to left_.
    std::vector<Failure> collect_failures() MC_REQUIRES(mutex_);
    void collect_failures(Part& part, std::vector<Failure>& failures) MC_REQUIRES(mutex_);
    /// What failures mean for the next attempt: transports that cannot carry a pair, or a pair that was a mistake.
    void learn(const std::vector<Failure>& failures);
    bool mistaken(const Failure& failure);

    /// A part of the attempt that stop() ends, or of the last one.
    struct Stopping {
        Stopping(Part& stopped_part, std::vector<Completion*> completions)
            : part(&stopped_part), link(stopped_part.link), running(std::move(completions)) {}
        Part* const part;
        const std::shared_ptr<Link> link;
        const std::vector<Completion*> running;
        bool asked = false;  // the peer, to stop something
        Stopped stopped = Stopped::kEverywhere;
        std::atomic<bool> taken{false}, over{false};
    };
    using StoppingParts = std::vector<std::shared_ptr<Stopping>>;
    /// Cancels all parts at once, as each may wait for its peer.
    void stop_parts(const StoppingParts& parts, const Error& reason, Deadline fence);
    /// Nothing if another thread does it.
    static void stop_part(Stopping& one, Completion& attempt, const Error& reason, Deadline fence);
    /// For stop(): what is still under way in a part.
    std::vector<Completion*> running(Part& part) MC_REQUIRES(mutex_);
    bool has_failed(const Part& part) const MC_REQUIRES(mutex_);
    /// For status(): where the n-th part of an attempt under way is, if the task is not done.
    std::shared_ptr<Link> link_under_way(size_t task, size_t part);
    void finish(const Error* error);
    /// In the metrics of the part's path.
    void count_success(const Part& part, Time started) const MC_REQUIRES(mutex_);

    EngineCore& core_;
    const std::shared_ptr<Session> session_;
    const Direction direction_;
    Deadline deadline_;               // constant when an attempt begins
    Addresses addresses_;             // at the peer; what follows belongs to who runs attempts
    std::vector<Need> needs_;         // by pair, where some transport turned out unfit
    bool renewed_ = false;            // the peer was asked again what memory it has
    std::vector<Left> left_;          // empty: all of slices_, as they are
    std::vector<Slice> slices_;       // of all tasks; constant after start()
    Behind behind_;                   // what has to be over first; empty: nothing, or it is
    Duration time_{};                 // for a patient one
    Completion attempt_;              // parent of the tasks in the present attempt
    std::atomic<int> submitting_{0};  // threads inside submit(); one attempt may fail and the next begin before it returns

    Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<BatchTask> tasks_ MC_GUARDED_BY(mutex_);  // address-stable
    State state_ MC_GUARDED_BY(mutex_) = State::kBetween;
    int tries_ MC_GUARDED_BY(mutex_) = 0;
    bool stopping_ MC_GUARDED_BY(mutex_) = false;         // no attempt starts any more; stop() makes it final
    Parts parts_ MC_GUARDED_BY(mutex_);                   // of the present or the last attempt
    std::shared_ptr<Batch> batch_ MC_GUARDED_BY(mutex_);  // our owner, until final
    Service::TimerId timer_ MC_GUARDED_BY(mutex_) = 0;
    Time started_ MC_GUARDED_BY(mutex_){};
    Error error_ MC_GUARDED_BY(mutex_);             // why tasks that are not done failed
    Incarnation ended_life_ MC_GUARDED_BY(mutex_);  // the one that the addresses belong to, if that is why
};

/// A user's batch: tasks from one or more submits. Shared by the table and by the groups still running. Thread-safe.
class Batch : public std::enable_shared_from_this<Batch> {
public:
    Batch(EngineCore& core, size_t capacity) : core_(core), capacity_(capacity) {}

    /// One task per request. All or none: kNoSpace, kInvalidArgument, kNotFound (segment), kStale (the calling thread was not told yet that a
    /// peer has restarted, which is known by now), kUnavailable (there is no memory for it).
    Result<> submit(std::span<const Request> requests, const Notification* notification,
                    const std::function<Deadline(uint64_t bytes)>& deadline);
    /// One task for all blocks.
    Result<> submit(const std::shared_ptr<Session>& session, Addresses addresses, Direction direction, std::span<const Block> blocks,
                    const Notification* notification, Deadline deadline, Behind behind = {});

    /// Who asks for the outcome is told by it when a peer has restarted; who submitted is not, if that is another thread.
    Result<TransferStatus> task_status(size_t task);
    TransferStatus status();
    /// Whether all tasks have ended. Tells nobody how.
    bool over() { return worst().status.state > TransferState::kPending; }
    /// False at the deadline.
    bool wait(Deadline deadline = Deadline::never());
    void cancel();
    /// The same without waiting: the service's threads do it, and on_done() tells of the end. Waits only where they cannot be asked.
    void begin_cancel();
    bool busy() const noexcept { return !running_.done(); }
    void on_done(std::function<void()> callback);

private:
    friend class TransferGroup;
    struct Place {
        TransferGroup* group = nullptr;
        size_t index = 0;
    };
    /// The requests of one submit() that go the same way to the same segment.
    struct Way {
        std::shared_ptr<Session> session = nullptr;
        Addresses addresses = {};
        uint64_t bytes = 0;
        TransferGroup* group = nullptr;
    };
    using Ways = std::map<std::pair<SegmentId, Direction>, Way>;
    struct Worst {
        TransferStatus status;
        TransferGroup* group = nullptr;  // whose it is
    };
    /// For the peer of a group, in the life that has its bytes.
    struct PendingNotification {
        std::shared_ptr<Session> session;
        TransferGroup* group = nullptr;
        Notification notification;
    };
    /// How far the lists below had grown.
    struct Sizes {
        size_t groups = 0, places = 0, notifications = 0;
    };

    Result<> collect_ways(std::span<const Request> requests, Ways& ways, uint64_t& bytes);
    void add_groups(std::span<const Request> requests, Ways& ways, const Notification* notification, Deadline deadline,
                    std::vector<TransferGroup*>& added) MC_REQUIRES(mutex_);
    Sizes sizes() const MC_REQUIRES(mutex_) { return {groups_.size(), places_.size(), notifications_.size()}; }
    /// Takes back what was added since and not started.
    void shrink_to(const Sizes& before) noexcept MC_REQUIRES(mutex_);
    /// Whether all peers live that the addresses belong to, as far as is known without asking anybody. Tells the calling thread.
    static Result<> check_lives(const Ways& ways);
    Worst worst();
    std::vector<TransferGroup*> unfinished();
    /// Has the service stop a group. False: we have to.
    bool post_stop(TransferGroup& group, Deadline fence);
    /// By a group that just became final; the last one delivers notifications and callbacks.
    void group_finished() noexcept;
    void notify(std::span<const PendingNotification> notifications);

    EngineCore& core_;
    const size_t capacity_;
    Mutex mutex_;
    std::deque<TransferGroup> groups_ MC_GUARDED_BY(mutex_);  // address-stable
    std::vector<Place> places_ MC_GUARDED_BY(mutex_);         // task number -> where it is
    size_t active_ MC_GUARDED_BY(mutex_) = 0;                 // groups not final
    std::vector<PendingNotification> notifications_ MC_GUARDED_BY(mutex_);
    std::vector<std::function<void()>> callbacks_ MC_GUARDED_BY(mutex_);
    Completion running_;  // one operation per group not final
};

/// Batches by id. An id carries the generation of its slot, so that a freed or invented one is never taken for another batch.
/// Thread-safe.
class BatchTable {
public:
    Result<BatchId> add(std::shared_ptr<Batch> batch);
    Result<std::shared_ptr<Batch>> get(BatchId id) const;  // kNotFound
    Result<> remove(BatchId id);                           // kNotFound, kBusy
    /// Every batch that is there.
    void cancel_all();
    /// Forgets all of them, when nobody can ask for one any more.
    void clear();

private:
    struct Slot {
        uint64_t generation = 1;
        std::shared_ptr<Batch> batch;
        uint32_t next_free = 0;  // once free
    };
    static constexpr unsigned kSlotBits = 24;
    const Slot* find(BatchId id) const MC_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::deque<Slot> slots_ MC_GUARDED_BY(mutex_);
    // A line through the slots themselves, so that to free one needs no memory: oldest first, so that it rests before it is used again.
    uint32_t free_first_ MC_GUARDED_BY(mutex_) = 0, free_last_ MC_GUARDED_BY(mutex_) = 0;
    size_t free_count_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake
