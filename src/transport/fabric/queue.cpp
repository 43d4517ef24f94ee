// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/queue.h"

#include <algorithm>

namespace mooncake::fabric {

namespace {
constexpr size_t kSpareMax = 1024;
}

WorkQueue::~WorkQueue() { MC_CHECK(idle()); }

void WorkQueue::push(Direction direction, std::span<const Slice> slices) {
    if (!slices.empty()) batches_.push_back({.direction = direction, .slices = slices});
}

bool WorkQueue::is_given_up(const Batch& batch, const Slice& slice) noexcept {
    return std::find(batch.given_up.begin(), batch.given_up.end(), slice.completion) != batch.given_up.end();
}

bool WorkQueue::advance(std::list<Batch>::iterator batch) {
    batch->offset = 0;
    batch->run = nullptr;
    batch->refused = 0;
    do ++batch->next;
    while (batch->next < batch->slices.size() && !batch->given_up.empty() && is_given_up(*batch, batch->head()));
    if (batch->next < batch->slices.size()) return true;
    batches_.erase(batch);
    return false;
}

Piece WorkQueue::begin(std::list<Batch>::iterator batch, uint64_t length) {
    const Slice& slice = batch->head();
    if (batch->run == nullptr) {
        if (spare_.empty()) runs_.emplace_back();
        else runs_.splice(runs_.end(), spare_, spare_.begin());
        SliceRun& run = runs_.back();
        const bool seen = slice.region == nullptr || slice.region->kind == MemoryKind::kHost;  // memory of a device nobody can be shown
        run = {.completion = slice.completion, .local = slice.local, .length = slice.length, .copier = seen ? slice.copier : nullptr};
        run.self = std::prev(runs_.end());
        batch->run = &run;
    }
    const Piece piece{.run = batch->run,
                      .direction = batch->direction,
                      .registered = batch->registered(),
                      .local = slice.local + batch->offset,
                      .remote = slice.remote + batch->offset,
                      .length = length};
    ++batch->run->pending;
    batch->offset += length;
    batch->refused = 0;
    if (batch->offset == slice.length) {
        batch->run->all_begun = true;
        advance(batch);
    }
    return piece;
}

bool WorkQueue::refuse(std::list<Batch>::iterator batch, Error error, Endings& endings) {
    if (SliceRun* const run = batch->run) {
        run->all_begun = true;
        if (!run->error) run->error = std::move(error);
        if (run->pending == 0) end(*run, endings);
    } else {
        endings.fail(*batch->head().completion, std::move(error));
    }
    batch->blocked = false;
    return advance(batch);
}

void WorkQueue::end(SliceRun& run, Endings& endings) {
    if (run.error) {
        endings.fail(*run.completion, std::move(*run.error));
    } else {
        endings.succeed(*run.completion, run.length);
        if (run.copier != nullptr) endings.show(*run.copier, run.local, run.length);
    }
    run.error.reset();
    if (spare_.size() < kSpareMax) spare_.splice(spare_.end(), runs_, run.self);
    else runs_.erase(run.self);
}

void WorkQueue::finish(const Piece& piece, Endings& endings) {
    SliceRun& run = *piece.run;
    --run.pending;
    if (run.pending == 0 && run.all_begun) end(run, endings);
}

void WorkQueue::fail(const Piece& piece, const Error& error, Endings& endings) {
    SliceRun& run = *piece.run;
    if (!run.error) run.error = error;
    if (!run.all_begun) {
        // What has not begun of it will not.
        const auto batch = std::find_if(batches_.begin(), batches_.end(), [&](const Batch& other) { return other.run == &run; });
        MC_CHECK(batch != batches_.end());
        run.all_begun = true;
        batch->blocked = false;
        advance(batch);
    }
    finish(piece, endings);
}

void WorkQueue::give_up(const Completion* completion, const Error& reason, Endings& endings) {
    // Of slices that have begun, the last piece reports; here when no piece is under way.
    for (auto run = runs_.begin(); run != runs_.end();) {
        SliceRun& here = *run++;
        if ((completion != nullptr && here.completion != completion) || here.error) continue;
        here.error = reason;
    }
    for (auto batch = batches_.begin(); batch != batches_.end();) {
        const auto here = batch++;
        SliceRun* const run = here->run;
        // The completion of the head may be another one's; of the others those that are not yet given up end.
        const size_t first = run != nullptr ? here->next + 1 : here->next;
        for (size_t i = first; i < here->slices.size(); ++i) {
            const Slice& slice = here->slices[i];
            if ((completion == nullptr || slice.completion == completion) && !is_given_up(*here, slice))
                endings.fail(*slice.completion, reason);
        }
        if (completion != nullptr) here->given_up.push_back(completion);
        const bool head_ends = completion == nullptr || here->head().completion == completion;
        if (run != nullptr && head_ends) {
            run->all_begun = true;
            if (run->pending == 0) end(*run, endings);
        }
        if (completion == nullptr) {
            batches_.erase(here);
        } else if (head_ends) {
            here->blocked = false;
            advance(here);
        }
    }
}

}  // namespace mooncake::fabric
