// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "store/member/any_memory.h"
#include "store/member/segment_directory.h"
#include "store/member/write_fence.h"

namespace mooncake::store {

/// Everything that goes to, or comes from, one segment in one step.
struct Move {
    SegmentHandle segment;
    std::vector<Block> blocks;
    uint64_t bytes = 0;
    Duration patience{0};                     // given up, and stopped, after that
    Duration trial{0};                        // not zero: who does not answer within this is not sent anything
    const WriteFence::Pass* right = nullptr;  // of a planned write: it does not begin unless this holds
    Result<> outcome;
    bool begun = false;  // bytes of it may have left
    bool brief = false;  // copied on the calling thread if that can be, however long it is: a device is quick
};

/// Runs the moves of one call side by side, over the engine. When run() returns none of them touches any memory any more, as far as the
/// engine can tell. Thread-safe.
class Mover {
public:
    /// `own_host`: segments there are copied by the calling thread itself, one after another.
    Mover(Engine& engine, std::string own_host);

    /// `is_over`: called on the way, on this thread, once for each move, in the order of their ends or nearly so.
    void run(Direction direction, std::span<Move> moves, const std::function<void(Move&)>& is_over = {});

    /// Stops the writes under way, and all later ones at once, until allow_writes().
    void stop_writes();
    void allow_writes();
    /// Stops everything, for good.
    void stop_all();

    bool near(const SegmentSpec& segment) const;

private:
    struct Running {
        Move* move = nullptr;
        BatchId batch = 0;
        Time give_up{};
    };

    void run_here(Direction direction, Move& move);
    /// Connects; false: it failed, and that is the outcome.
    bool reach(Move& move, Time give_up);
    /// Those that are connected first: getting through to another may take its time.
    std::vector<Move*> far_moves(Direction direction, std::span<Move> moves) const;
    bool stays_here(Direction direction, const Move& move) const;
    std::optional<Running> start(Direction direction, Move& move);
    void finish(const Running& running, Direction direction);
    Result<> enlist(Direction direction, BatchId batch);
    void delist(Direction direction, BatchId batch);
    bool stopped(Direction direction, const Move& move) const;
    void note(const Move& move);

    Engine& engine_;
    const std::string own_host_;
    const bool mapped_;  // segments on this host are reached without a network
    mutable Mutex mutex_;
    bool writes_stopped_ MC_GUARDED_BY(mutex_) = false;
    bool all_stopped_ MC_GUARDED_BY(mutex_) = false;
    std::set<BatchId> reads_ MC_GUARDED_BY(mutex_), writes_ MC_GUARDED_BY(mutex_);
    std::set<std::string> connected_ MC_GUARDED_BY(mutex_);  // endpoints that worked when last used
};

}  // namespace mooncake::store
