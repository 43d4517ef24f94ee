// SPDX-License-Identifier: Apache-2.0
#include "store/client/mover.h"

#include <algorithm>
#include <deque>

#include "store/allocation/placement.h"

namespace mooncake::store {

namespace {

// The engine's own threads take over from here on, so that a write of this size can be stopped at any time and the copying is shared.
constexpr uint64_t kHandOverBytes = 4 << 20;

bool reaches_mapped_memory(const EngineOptions& options) {
    return options.transports.empty() || std::find(options.transports.begin(), options.transports.end(), "shm") != options.transports.end();
}

Unexpected stopped_error() { return fail(Code::kCancelled, "the client stops"); }

}  // namespace

Mover::Mover(Engine& engine, std::string own_host)
    : engine_(engine), own_host_(std::move(own_host)), mapped_(reaches_mapped_memory(engine.options())) {}

bool Mover::near(const SegmentSpec& segment) const { return mapped_ && host_of(segment.name) == own_host_; }

bool Mover::stays_here(Direction direction, const Move& move) const {
    return near(move.segment->spec) && (direction == Direction::kRead || move.bytes < kHandOverBytes);
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

void Mover::run(Direction direction, std::span<Move> moves, const Events& events) {
    const auto over = [&](Move& move) {
        if (events.is_over) events.is_over(move);
    };
    const auto starts = [&](const Move& move) {
        if (events.starts) events.starts(move);
    };
    if (moves.size() == 1 && moves[0].bytes < kHandOverBytes) {
        starts(moves[0]);
        run_here(direction, moves[0]);
        return over(moves[0]);
    }
    // Those over a network first; while they are under way, the near ones are copied here.
    std::deque<Running> running;  // completions do not move
    for (Move* const move : far_moves(direction, moves)) {
        starts(*move);
        if (!start(direction, *move, running.emplace_back())) {
            running.pop_back();
            over(*move);
        }
    }
    for (Move& move : moves) {
        if (!stays_here(direction, move)) continue;
        starts(move);
        run_here(direction, move);
        over(move);
    }
    for (Running& one : running) {
        finish(one, direction);
        over(*one.move);
    }
    for (const Move& move : moves) note(move);
}

void Mover::run_here(Direction direction, Move& move) {
    if (stopped(direction)) {
        move.outcome = stopped_error();
        return;
    }
    if (move.trial != Duration::zero() && !reach(move, Clock::now() + move.patience)) return;
    move.begun = true;
    auto moved = engine_.transfer(move.segment->spec.endpoint, direction, move.blocks, Deadline::after(move.patience));
    if (!moved) move.outcome = Unexpected(std::move(moved).error());
}

bool Mover::reach(Move& move, Time give_up) {
    const Time until = move.trial == Duration::zero() ? give_up : std::min(give_up, Clock::now() + move.trial);
    auto opened = engine_.open_segment(move.segment->spec.endpoint, Deadline(until));
    if (!opened) move.outcome = Unexpected(std::move(opened).error());
    return opened.has_value();
}

bool Mover::start(Direction direction, Move& move, Running& running) {
    running.move = &move;
    running.give_up = Clock::now() + move.patience;
    // submit() would wait for a connection as long as the engine likes, not as long as we do.
    if (!reach(move, running.give_up)) return false;
    move.begun = true;
    auto batch = engine_.submit(move.segment->spec.endpoint, direction, move.blocks);
    if (!batch) {
        move.outcome = Unexpected(std::move(batch).error());
        return false;
    }
    running.batch = *batch;
    running.done.add(1);
    if (auto hooked = engine_.on_batch_done(*batch, [&running] { running.done.succeed(0); }); !hooked) {
        running.done.succeed(0);
        move.outcome = Unexpected(std::move(hooked).error());
    }
    if (auto enlisted = enlist(direction, *batch); !enlisted) (void)engine_.cancel_batch(*batch);
    return true;
}

void Mover::finish(Running& running, Direction direction) {
    // cancel_batch() returns when the batch is final, and its callback has come or comes at once.
    if (!running.done.wait(Deadline(running.give_up))) {
        (void)engine_.cancel_batch(running.batch);
        running.done.wait(Deadline::never());
    }
    delist(direction, running.batch);
    auto status = engine_.wait_batch(running.batch);
    (void)engine_.free_batch(running.batch);
    if (!running.move->outcome) return;
    if (!status) {
        running.move->outcome = Unexpected(std::move(status).error());
        return;
    }
    if (status->state == TransferState::kCompleted) return;
    running.move->outcome = Unexpected(Clock::now() >= running.give_up && status->state == TransferState::kCancelled
                                           ? Error(Code::kTimedOut, status->error.message(), status->error.system_errno())
                                           : status->error);
}

bool Mover::stopped(Direction direction) const {
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
