// SPDX-License-Identifier: Apache-2.0
#include "kvflow/flow.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "base/error_copy.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "base/thread_pool.h"

namespace mooncake::kvplan {
namespace {

constexpr uint32_t kUnitsMax = 2;  // layers under way between two ranks: the next is written down while one moves

/// Writes layers down whose turn has come. Threads of the engine tell of ends, and have better to do.
struct Workers {
    ThreadPool pool{{.name = "mc-kvflow", .threads_max = 2}};
};
constinit PerProcess<Workers> workers;

/// What one submit() started.
struct Step {
    Flow::Done done;
    size_t left = 0;  // units
    uint64_t bytes = 0;
    std::optional<Error> error;
};

/// One layer between us and one peer, or the notification after all of them.
struct Unit {
    static constexpr uint32_t kNotification = UINT32_MAX;
    uint32_t layer = 0;
    std::shared_ptr<Step> step;
    BatchId batch = 0;  // 0: not begun
};
using Units = std::list<Unit>;  // go from one to the other without memory

struct PairState {
    const PairPlan* plan = nullptr;
    std::string peer;
    Incarnation life;
    std::set<uint32_t> layers;  // that something of moves
    // Under the mutex.
    Units waiting, running;
    size_t asked = 0;            // layers
    std::optional<Error> error;  // of the first that failed
};

/// Units that are about to begin, which nobody else touches meanwhile.
using Ready = std::vector<std::pair<PairState*, Units::iterator>>;

bool follows(const PairPlan& pair, Direction direction, uint32_t rank) {
    return (direction == Direction::kWrite ? pair.source : pair.target) == rank;
}

/// Everything callbacks need. Outlives the Flow until the last of them has come; by then nothing touches the engine any more.
class FlowState : public std::enable_shared_from_this<FlowState> {
public:
    FlowState(Engine& engine, FlowSetup setup) : engine_(engine), setup_(std::move(setup)) {}

    Result<> prepare(Deadline deadline);
    Result<> submit(std::string_view layer, Flow::Done done, const WorkPoint& after);
    void cancel();
    Result<uint64_t> wait(Deadline deadline);

    const std::vector<Flow::Peer>& peers() const noexcept { return peers_; }
    const std::vector<std::string>& layers() const noexcept { return layers_; }

private:
    const Rank& ours() const { return writes() ? setup_.sources[setup_.rank] : setup_.targets[setup_.rank]; }
    const std::vector<Rank>& theirs() const { return writes() ? setup_.targets : setup_.sources; }
    bool writes() const { return setup_.direction == Direction::kWrite; }
    Result<> check() const;
    Result<> add_pair(const PairPlan& plan, Deadline deadline);

    Result<std::vector<uint32_t>> layers_to_start(std::string_view layer) const MC_REQUIRES(mutex_);
    void queue(uint32_t layer, const std::shared_ptr<Step>& step) MC_REQUIRES(mutex_);
    /// Moves what may begin from `waiting` to `running`. `all`: however much is under way.
    void take_ready(bool all, Ready& ready) MC_REQUIRES(mutex_);
    void start_ready(bool all, const WorkPoint& after);
    void start(PairState& pair, Units::iterator unit, const WorkPoint& after);
    Result<BatchId> send(const PairState& pair, const Unit& unit, const WorkPoint& after);
    void ended(PairState& pair, Units::iterator unit);
    void note_end(PairState& pair, Units& from, Units::iterator unit, Result<uint64_t> outcome);
    /// Why nothing more begins with this peer, if anything failed.
    std::optional<Error> failure_of(const PairState& pair);
    /// One part of it is over; with the last one the caller hears of it.
    void finish(Step& step, Result<uint64_t> outcome);
    bool idle() const MC_REQUIRES(mutex_);

    Engine& engine_;
    const FlowSetup setup_;
    std::vector<std::string> layers_;
    std::map<std::string, uint32_t, std::less<>> layer_numbers_;
    std::vector<Flow::Peer> peers_;
    std::deque<PairState> pairs_;  // constant but for what is under the mutex

    Mutex mutex_;
    std::condition_variable_any changed_;
    std::set<uint32_t> started_ MC_GUARDED_BY(mutex_);  // layers
    bool cancelled_ MC_GUARDED_BY(mutex_) = false;
    uint32_t starting_ MC_GUARDED_BY(mutex_) = 0;  // threads that do
    uint64_t bytes_ MC_GUARDED_BY(mutex_) = 0;
    std::optional<Error> error_ MC_GUARDED_BY(mutex_);
};

Result<> FlowState::check() const {
    if (setup_.rank >= (writes() ? setup_.sources : setup_.targets).size())
        return fail(Code::kInvalidArgument, "there is no {} of number {}", writes() ? "source" : "target", setup_.rank);
    if (!setup_.lives.empty() && setup_.lives.size() != theirs().size())
        return fail(Code::kInvalidArgument, "{} lives for {} ranks", setup_.lives.size(), theirs().size());
    if (setup_.notification) MC_RETURN_IF_ERROR(check_notification(*setup_.notification));
    for (const PairPlan& pair : setup_.plan.pairs) {
        if (pair.source >= setup_.sources.size() || pair.target >= setup_.targets.size())
            return fail(Code::kInvalidArgument, "the plan was made of other ranks");
        for (const Strip& strip : pair.strips)
            if (strip.source_region >= setup_.sources[pair.source].regions.size() ||
                strip.target_region >= setup_.targets[pair.target].regions.size() || strip.run_set >= pair.run_sets.size())
                return fail(Code::kInvalidArgument, "the plan was made of other regions");
    }
    return {};
}

Result<> FlowState::prepare(Deadline deadline) {
    MC_RETURN_IF_ERROR(check());
    for (const Region& region : ours().regions)
        if (layer_numbers_.try_emplace(region.layer, static_cast<uint32_t>(layers_.size())).second) layers_.push_back(region.layer);
    for (const PairPlan& plan : setup_.plan.pairs)
        if (follows(plan, setup_.direction, setup_.rank)) MC_RETURN_IF_ERROR(add_pair(plan, deadline));
    return {};
}

Result<> FlowState::add_pair(const PairPlan& plan, Deadline deadline) {
    const uint32_t number = writes() ? plan.target : plan.source;
    PairState& pair = pairs_.emplace_back();
    pair.plan = &plan;
    pair.peer = theirs()[number].segment;
    if (!setup_.lives.empty()) pair.life = setup_.lives[number];
    for (const Strip& strip : plan.strips) {
        const Region& region = setup_.targets[plan.target].regions[strip.target_region];
        const auto found = layer_numbers_.find(region.layer);
        if (found == layer_numbers_.end()) return fail(Code::kInvalidArgument, "the plan was made of other regions");
        pair.layers.insert(found->second);
    }
    // Addresses belong to a life of their process: what comes after it under the same name must not be written to.
    if (!pair.life) {
        MC_ASSIGN_OR_RETURN(const auto descriptor, engine_.describe(pair.peer, 0, deadline));
        pair.life = descriptor.incarnation;
    }
    peers_.push_back({.segment = pair.peer, .rank = number, .bytes = plan.bytes, .layers = static_cast<uint32_t>(pair.layers.size())});
    return {};
}

Result<std::vector<uint32_t>> FlowState::layers_to_start(std::string_view layer) const {
    if (cancelled_) return fail(Code::kCancelled, "cancelled before it was started");
    std::vector<uint32_t> wanted;
    if (layer.empty()) {
        for (uint32_t i = 0; i < layers_.size(); ++i)
            if (!started_.contains(i)) wanted.push_back(i);
        return wanted;
    }
    const auto found = layer_numbers_.find(layer);
    if (found == layer_numbers_.end()) return fail(Code::kNotFound, "this rank has no layer \"{}\"", layer);
    if (started_.contains(found->second)) return fail(Code::kAlreadyExists, "layer \"{}\" was started before", layer);
    wanted.push_back(found->second);
    return wanted;
}

void FlowState::queue(uint32_t layer, const std::shared_ptr<Step>& step) {
    started_.insert(layer);
    for (PairState& pair : pairs_) {
        if (!pair.layers.contains(layer)) continue;
        pair.waiting.push_back({.layer = layer, .step = step});
        ++step->left;
        if (++pair.asked != pair.layers.size() || !setup_.notification) continue;
        pair.waiting.push_back({.layer = Unit::kNotification, .step = step});
        ++step->left;
    }
}

Result<> FlowState::submit(std::string_view layer, Flow::Done done, const WorkPoint& after) {
    auto step = std::make_shared<Step>();
    step->done = std::move(done);
    step->left = 1;  // this call
    {
        Lock lock(mutex_);
        MC_ASSIGN_OR_RETURN(const auto wanted, layers_to_start(layer));
        try {
            for (const uint32_t number : wanted) queue(number, step);
        } catch (const std::bad_alloc&) {
            cancelled_ = true;  // part of it is queued, and nobody would ever hear of the rest
        }
    }
    // What waits for a device must be told so now: later the stream, or the event, may stand for other work.
    start_ready(static_cast<bool>(after), after);
    finish(*step, uint64_t{0});
    return {};
}

void FlowState::take_ready(bool all, Ready& ready) {
    size_t most = 0;
    for (const PairState& pair : pairs_) most += all ? pair.waiting.size() : std::min<size_t>(pair.waiting.size(), kUnitsMax);
    ready.reserve(most);
    for (PairState& pair : pairs_) {
        while (!pair.waiting.empty()) {
            const bool last = pair.waiting.front().layer == Unit::kNotification;  // which must not overtake any bytes
            if (last ? !pair.running.empty() : !all && pair.running.size() >= kUnitsMax) break;
            ready.emplace_back(&pair, pair.waiting.begin());
            pair.running.splice(pair.running.end(), pair.waiting, pair.waiting.begin());
        }
    }
    if (!ready.empty()) ++starting_;
}

void FlowState::start_ready(bool all, const WorkPoint& after) {
    for (;;) {
        Ready ready;
        {
            Lock lock(mutex_);
            take_ready(all, ready);
        }
        if (ready.empty()) return;
        for (auto& [pair, unit] : ready) start(*pair, unit, after);
        Lock lock(mutex_);
        --starting_;
        changed_.notify_all();
    }
}

Result<BatchId> FlowState::send(const PairState& pair, const Unit& unit, const WorkPoint& after) {
    {
        Lock lock(mutex_);
        if (cancelled_) return fail(Code::kCancelled, "cancelled");
    }
    if (unit.layer == Unit::kNotification)
        return engine_.submit(pair.peer, setup_.direction, {}, &*setup_.notification, pair.life, Connect::kMeanwhile);
    std::vector<Block> blocks;
    const bool out = writes();
    expand(*pair.plan, setup_.sources[pair.plan->source], setup_.targets[pair.plan->target], layers_[unit.layer], SIZE_MAX,
           [&](std::span<const Piece> pieces) {
               for (const Piece& piece : pieces)
                   blocks.push_back({.local = reinterpret_cast<std::byte*>(out ? piece.source : piece.target),
                                     .remote = out ? piece.target : piece.source,
                                     .length = piece.bytes});
           });
    return engine_.submit(pair.peer, setup_.direction, blocks, nullptr, pair.life, Connect::kMeanwhile, after);
}

void FlowState::start(PairState& pair, Units::iterator unit, const WorkPoint& after) {
    if (auto failed = failure_of(pair)) {
        // A peer that does not answer costs one time-out, however many layers wait.
        if (unit->layer == Unit::kNotification) return note_end(pair, pair.running, unit, uint64_t{0});
        return note_end(pair, pair.running, unit, Unexpected(std::move(*failed)));
    }
    Result<BatchId> batch(0);
    try {
        batch = send(pair, *unit, after);
    } catch (const std::bad_alloc&) {
        batch = Unexpected(out_of_memory());
    }
    if (!batch) return note_end(pair, pair.running, unit, Unexpected(std::move(batch).error()));
    bool stop = false;
    {
        Lock lock(mutex_);
        unit->batch = *batch;
        stop = cancelled_;
    }
    if (stop) (void)engine_.begin_cancel(*batch);
    try {
        if (engine_.on_batch_done(*batch, [self = shared_from_this(), &pair, unit] { self->ended(pair, unit); })) return;
    } catch (const std::bad_alloc&) {
        (void)engine_.await_batch(*batch);  // nobody will tell us
    }
    ended(pair, unit);  // the engine was closed meanwhile: it is over
}

void FlowState::ended(PairState& pair, Units::iterator unit) {
    Result<uint64_t> outcome = fail(Code::kUnavailable, "the engine is closed");
    if (const auto status = engine_.batch_status(unit->batch)) {
        if (status->state == TransferState::kCompleted) outcome = status->bytes;
        else outcome = Unexpected(copy_error(status->error));
        (void)engine_.free_batch(unit->batch);
    }
    note_end(pair, pair.running, unit, std::move(outcome));
    {
        Lock lock(mutex_);
        if (pair.waiting.empty()) return;
    }
    const auto go_on = [self = shared_from_this()] { self->start_ready(false, {}); };
    if (!workers.get().pool.post(go_on)) go_on();
}

std::optional<Error> FlowState::failure_of(const PairState& pair) {
    Lock lock(mutex_);
    if (!pair.error) return std::nullopt;
    return copy_error(*pair.error);
}

void FlowState::note_end(PairState& pair, Units& from, Units::iterator unit, Result<uint64_t> outcome) {
    Units gone;
    {
        Lock lock(mutex_);
        if (outcome) bytes_ += *outcome;
        else if (!pair.error) pair.error = copy_error(outcome.error());
        if (!outcome && !error_) error_ = copy_error(outcome.error());
    }
    finish(*unit->step, std::move(outcome));
    Lock lock(mutex_);
    gone.splice(gone.end(), from, unit);
    changed_.notify_all();
}

void FlowState::finish(Step& step, Result<uint64_t> outcome) {
    {
        Lock lock(mutex_);
        if (outcome) step.bytes += *outcome;
        else if (!step.error) step.error = std::move(outcome).error();
        if (--step.left != 0) return;
    }
    if (!step.done) return;
    const Result<uint64_t> all = step.error ? Result<uint64_t>(Unexpected(std::move(*step.error))) : Result<uint64_t>(step.bytes);
    std::exchange(step.done, {})(all);
}

void FlowState::cancel() {
    std::vector<BatchId> batches;
    {
        Lock lock(mutex_);
        cancelled_ = true;
        for (const PairState& pair : pairs_)
            for (const Unit& unit : pair.running)
                if (unit.batch != 0) batches.push_back(unit.batch);
    }
    for (const BatchId batch : batches) (void)engine_.begin_cancel(batch);
    start_ready(true, {});  // what waits ends by being refused
}

bool FlowState::idle() const {
    return starting_ == 0 &&
           std::all_of(pairs_.begin(), pairs_.end(), [](const PairState& pair) { return pair.waiting.empty() && pair.running.empty(); });
}

Result<uint64_t> FlowState::wait(Deadline deadline) {
    Lock lock(mutex_);
    while (!idle()) {
        if (deadline.is_never()) changed_.wait(mutex_);
        else if (deadline.passed()) return fail(Code::kBusy, "still under way");
        else changed_.wait_until(mutex_, deadline.at());
    }
    if (error_) return Unexpected(copy_error(*error_));
    return bytes_;
}

class FlowOwner final : public Flow {
public:
    explicit FlowOwner(std::shared_ptr<FlowState> state) : state_(std::move(state)) {}
    ~FlowOwner() override {
        if (fork_generation() != born_) {
            [[maybe_unused]] const auto* const kept_for_ever = new std::shared_ptr<FlowState>(std::move(state_));
            return;
        }
        state_->cancel();
        (void)state_->wait(Deadline::never());
    }

    const std::vector<Peer>& peers() const noexcept override { return state_->peers(); }
    const std::vector<std::string>& layers() const noexcept override { return state_->layers(); }
    Result<> submit(std::string_view layer, Done done, const WorkPoint& after) override {
        return state_->submit(layer, std::move(done), after);
    }
    void cancel() override { state_->cancel(); }
    Result<uint64_t> wait(Deadline deadline) override { return state_->wait(deadline); }

private:
    const uint32_t born_ = fork_generation();
    std::shared_ptr<FlowState> state_;
};

}  // namespace

Result<std::unique_ptr<Flow>> Flow::create(Engine& engine, FlowSetup setup, Deadline deadline) {
    auto state = std::make_shared<FlowState>(engine, std::move(setup));
    MC_RETURN_IF_ERROR(state->prepare(deadline));
    return std::make_unique<FlowOwner>(std::move(state));
}

}  // namespace mooncake::kvplan
