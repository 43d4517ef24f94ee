// SPDX-License-Identifier: Apache-2.0
#include "store/member/mover.h"

#include <algorithm>

#include "store/allocation/placement.h"

namespace mooncake::store {

namespace {

// The engine's own threads take over from here on, so that a write of this size can be stopped at any time and the copying is shared.
constexpr uint64_t kHandOverBytes = 4 << 20;

/// What no transport between the two carries because it is a device's is no fault of the other side.
void explain(const Engine& engine, Move& move) {
    if (move.outcome.error().code() != Code::kNotSupported) return;
    const auto of_device = [&](const Block& block) { return !is_host(engine, block.local, block.length); };
    if (std::any_of(move.blocks.begin(), move.blocks.end(), of_device))
        move.outcome = fail(Code::kInvalidArgument, "memory of a device cannot be moved there: {}", move.outcome.error().to_string());
}

Unexpected stopped_error() { return fail(Code::kCancelled, "the client stops"); }

}  // namespace

Mover::Mover(Engine& engine, std::string own_host) : engine_(engine), own_host_(std::move(own_host)), mapped_(engine.maps_peers()) {}

bool Mover::near(const SegmentSpec& segment) const { return mapped_ && host_of(segment.name) == own_host_; }

bool Mover::stays_here(Direction direction, const Move& move) const {
    return near(move.segment->spec) && (direction == Direction::kRead || move.brief || move.bytes < kHandOverBytes);
}

std::vector<Move*> Mover::far_moves(Direction direction, std::span<Move> moves) const {
    std::vector<Move*> far;
    for (Move& move : moves)
        if (!stays_here(direction, move)) far.push_back(&move);
    Lock lock(mutex_);
    std::stable_partition(far.begin(), far.end(),
                          [this](const Move* move) MC_REQUIRES(mutex_) { return connected_.contains(move->segment->spec.endpoint); });
    return far;
}

void Mover::run(Direction direction, std::span<Move> moves, const std::function<void(Move&)>& is_over) {
    const auto over = [&](Move& move) {
        if (is_over) is_over(move);
    };
    if (moves.size() == 1 && moves[0].bytes < kHandOverBytes) {
        run_here(direction, moves[0]);
        if (!moves[0].outcome) explain(engine_, moves[0]);
        return over(moves[0]);
    }
    // Those over a network first; while they are under way, the near ones are copied here.
    std::vector<Running> running;
    for (Move* const move : far_moves(direction, moves)) {
        if (const auto started = start(direction, *move)) running.push_back(*started);
        else over(*move);
    }
    for (Move& move : moves) {
        if (!stays_here(direction, move)) continue;
        run_here(direction, move);
        if (!move.outcome) explain(engine_, move);
        over(move);
    }
    for (const Running& one : running) {
        finish(one, direction);
        if (!one.move->outcome) explain(engine_, *one.move);
        over(*one.move);
    }
    for (const Move& move : moves) note(move);
}

void Mover::run_here(Direction direction, Move& move) {
    if (move.trial != Duration::zero() && !reach(move, Clock::now() + move.patience)) return;
    if (stopped(direction, move)) {
        move.outcome = stopped_error();
        return;
    }
    move.begun = true;
    const SegmentSpec& spec = move.segment->spec;
    auto moved = engine_.transfer(spec.endpoint, direction, move.blocks, Deadline::after(move.patience), nullptr, spec.incarnation);
    if (!moved) move.outcome = Unexpected(std::move(moved).error());
}

bool Mover::reach(Move& move, Time give_up) {
    const Time until = move.trial == Duration::zero() ? give_up : std::min(give_up, Clock::now() + move.trial);
    const SegmentSpec& spec = move.segment->spec;
    if (spec.incarnation) {
        move.outcome = engine_.connect_to(spec.endpoint, spec.incarnation, Deadline(until));
        return move.outcome.has_value();
    }
    auto opened = engine_.open_segment(spec.endpoint, Deadline(until));
    if (!opened) move.outcome = Unexpected(std::move(opened).error());
    return opened.has_value();
}

std::optional<Mover::Running> Mover::start(Direction direction, Move& move) {
    const Time give_up = Clock::now() + move.patience;
    // submit() would wait for a connection as long as the engine likes, not as long as we do.
    if (!reach(move, give_up)) return std::nullopt;
    if (stopped(direction, move)) {
        move.outcome = stopped_error();
        return std::nullopt;
    }
    move.begun = true;
    const SegmentSpec& spec = move.segment->spec;
    auto batch = engine_.submit(spec.endpoint, direction, move.blocks, nullptr, spec.incarnation);
    if (!batch) {
        move.outcome = Unexpected(std::move(batch).error());
        return std::nullopt;
    }
    if (auto enlisted = enlist(direction, *batch); !enlisted) (void)engine_.cancel_batch(*batch);
    return Running{.move = &move, .batch = *batch, .give_up = give_up};
}

void Mover::finish(const Running& running, Direction direction) {
    auto status = engine_.wait_batch(running.batch, Deadline(running.give_up));
    if (status && status->state <= TransferState::kPending) {
        (void)engine_.cancel_batch(running.batch);
        status = engine_.wait_batch(running.batch);
    }
    delist(direction, running.batch);
    (void)engine_.free_batch(running.batch);
    if (!status) {
        running.move->outcome = Unexpected(std::move(status).error());
        return;
    }
    if (status->state == TransferState::kCompleted) return;
    running.move->outcome = Unexpected(Clock::now() >= running.give_up && status->state == TransferState::kCancelled
                                           ? Error(Code::kTimedOut, status->error.message(), status->error.system_errno())
                                           : status->error);
}

bool Mover::stopped(Direction direction, const Move& move) const {
    if (move.right != nullptr && !move.right->holds()) return true;
    Lock lock(mutex_);
    return all_stopped_ || (writes_stopped_ && direction == Direction::kWrite);
}

Result<> Mover::enlist(Direction direction, BatchId batch) {
    Lock lock(mutex_);
    if (all_stopped_ || (writes_stopped_ && direction == Direction::kWrite)) return stopped_error();
    (direction == Direction::kWrite ? writes_ : reads_).insert(batch);
    return {};
}

void Mover::delist(Direction direction, BatchId batch) {
    Lock lock(mutex_);
    (direction == Direction::kWrite ? writes_ : reads_).erase(batch);
}

void Mover::note(const Move& move) {
    const std::string& endpoint = move.segment->spec.endpoint;
    Lock lock(mutex_);
    if (!move.outcome) connected_.erase(endpoint);
    else if (!connected_.contains(endpoint)) connected_.insert(endpoint);
}

void Mover::stop_writes() {
    std::vector<BatchId> batches;
    {
        Lock lock(mutex_);
        writes_stopped_ = true;
        batches.assign(writes_.begin(), writes_.end());
    }
    for (const BatchId batch : batches) (void)engine_.cancel_batch(batch);  // one that was freed meanwhile is not found
}

void Mover::allow_writes() {
    Lock lock(mutex_);
    writes_stopped_ = false;
}

void Mover::stop_all() {
    std::vector<BatchId> batches;
    {
        Lock lock(mutex_);
        all_stopped_ = true;
        batches.assign(writes_.begin(), writes_.end());
        batches.insert(batches.end(), reads_.begin(), reads_.end());
    }
    for (const BatchId batch : batches) (void)engine_.cancel_batch(batch);
}

}  // namespace mooncake::store
