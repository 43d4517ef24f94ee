// SPDX-License-Identifier: Apache-2.0
#include "store/member/write_moves.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <utility>

#include "base/log.h"
#include "store/member/own_copies.h"

namespace mooncake::store {

namespace {

constexpr Duration kPatience = 2s, kPatiencePerByte = 100ns;

}  // namespace

WriteMoves::Target& WriteMoves::target_for(uint64_t epoch, uint32_t number) {
    const auto same = [&](const Target& target) { return target.to.number == number && target.to.epoch == epoch; };
    if (!targets_.empty() && same(targets_.back())) return targets_.back();
    const auto found = std::find_if(targets_.begin(), targets_.end(), same);
    if (found != targets_.end()) return *found;
    Target& target = targets_.emplace_back();
    target.to = segments_.find(epoch, number);
    return target;
}

bool WriteMoves::add(uint32_t item, uint64_t epoch, const ReplicaLocation& replica, uint64_t offset, const std::byte* from, uint64_t length,
                     Copier* copier) {
    Target& target = target_for(epoch, replica.segment);
    if (!target.to.segment) return false;
    const SegmentSpec& spec = target.to.segment->spec;
    if (spec.kind != SegmentKind::kMemory) return false;  // a disk has no addresses
    const uint64_t at = replica.offset + offset;
    if (at > spec.size || length > spec.size - at) return false;
    const uint64_t base = target.to.own ? reinterpret_cast<uint64_t>(target.to.own->base) : spec.base;
    target.blocks.push_back({.local = const_cast<std::byte*>(from), .remote = base + at, .length = length, .copier = copier});
    target.item_of_block.push_back(item);
    return true;
}

std::vector<WriteMoves::Failure> WriteMoves::run() {
    std::vector<Move> moves;
    std::vector<const Target*> targets;  // of each move
    std::vector<Failure> failures;
    WriteGuard guard(right_);
    for (Target& target : targets_) {
        if (!target.to.segment) continue;
        if (target.to.own) {
            copy_own(target, guard, failures);
            continue;
        }
        // Less than that is on its way before anything can have changed.
        const bool guarded = target.bytes() > WriteGuard::kPieceBytes && pool_.mover.near(target.to.segment->spec);
        std::vector<std::vector<Block>>
            of_devices;  // nobody looks on while a device copies: these go step by step, each with a look at the right
        if (guarded) of_devices = take_device_blocks(target.blocks);
        if (guarded) guard.watch(target.blocks);
        if (!target.blocks.empty()) {
            moves.push_back(move_to(target, std::move(target.blocks)));
            targets.push_back(&target);
        }
        for (std::vector<Block>& step : of_devices) {
            moves.push_back(move_to(target, std::move(step)));
            moves.back().brief = true;
            targets.push_back(&target);
        }
    }
    if (!moves.empty()) pool_.mover.run(Direction::kWrite, moves);
    for (size_t i = 0; i < moves.size(); ++i) {
        if (moves[i].outcome && guard.left_out()) moves[i].outcome = fail(Code::kCancelled, "the right to write has ended");
        note_outcome(*targets[i], moves[i], failures);
    }
    targets_.clear();
    return failures;
}

Move WriteMoves::move_to(const Target& target, std::vector<Block> blocks) {
    Move move{.segment = target.to.segment, .blocks = std::move(blocks), .right = &right_, .outcome = {}};
    for (const Block& block : move.blocks) move.bytes += block.length;
    // One that failed is tried again at little cost to whoever happens to do it; once it answers, as fast as it likes.
    const std::optional<Duration> trial = pool_.directory.trial(target.to.segment);
    move.trial = trial.value_or(Duration::zero());
    move.patience = (trial ? std::min(kPatience, *trial) : kPatience) + kPatiencePerByte * move.bytes;
    return move;
}

std::vector<std::vector<Block>> WriteMoves::take_device_blocks(std::vector<Block>& blocks) const {
    std::vector<std::vector<Block>> steps;
    uint64_t left = 0;  // in the last one
    std::erase_if(blocks, [&](const Block& block) {
        if (is_host(*pool_.engine, block.local, block.length)) return false;
        for (uint64_t at = 0; at < block.length;) {
            if (left == 0) {
                steps.emplace_back();
                left = OwnCopies::kStepBytes;
            }
            const uint64_t length = std::min(left, block.length - at);
            steps.back().push_back({.local = block.local + at, .remote = block.remote + at, .length = length, .copier = block.copier});
            left -= length;
            at += length;
        }
        return true;
    });
    return steps;
}

void WriteMoves::copy_own(const Target& target, WriteGuard& guard, std::vector<Failure>& failures) {
    OwnCopies by_device(*pool_.engine, Direction::kWrite, [&guard] { return guard.allows(); });
    for (size_t i = 0; i < target.blocks.size(); ++i) {
        const Block& block = target.blocks[i];
        if (const MemoryKind kind = pool_.engine->memory_kind(block.local, block.length); kind != MemoryKind::kHost) {
            by_device.add(target.item_of_block[i], block, kind);
            continue;
        }
        if (block.copier != nullptr) block.copier->begin(block.local, block.length);
        auto* const to = reinterpret_cast<std::byte*>(block.remote);
        if (!target.to.own->of_file) {
            guard.copy(to, block.local, block.length, block.copier);
        } else if (!guard.copy_if_there(to, block.local, block.length, block.copier)) {
            MC_LOG_WARNING_EVERY(1s, "segment {}: its file was cut off", target.to.segment->spec.name);
            failures.push_back({.item = target.item_of_block[i], .segment = target.to.segment->number, .right_ended = !right_.holds()});
        }
    }
    by_device.flush();
    if (guard.left_out()) return note_failures(target, false, failures);
    for (const auto& [item, error] : by_device.failures()) {
        MC_LOG_WARNING_EVERY(1s, "memory of a device cannot be copied: {}", error.to_string());
        failures.push_back({.item = static_cast<uint32_t>(item), .segment = target.to.segment->number, .right_ended = !right_.holds()});
    }
}

void WriteMoves::note_failures(const Target& target, bool in_doubt, std::vector<Failure>& failures) const {
    uint32_t last = std::numeric_limits<uint32_t>::max();
    for (const uint32_t item : target.item_of_block)
        if (std::exchange(last, item) != item)
            failures.push_back({.item = item,
                                .segment = target.to.segment->number,
                                .in_doubt = in_doubt ? target.to.segment : nullptr,
                                .right_ended = !right_.holds()});
}

void WriteMoves::note_outcome(const Target& target, const Move& move, std::vector<Failure>& failures) {
    const SegmentHandle& segment = target.to.segment;
    if (move.outcome) {
        if (!pool_.directory.all_reachable()) pool_.directory.worked(segment);
        return;
    }
    pool_.segment_failed(segment, move.outcome.error());
    note_failures(target, may_still_land(move), failures);
}

bool WriteMoves::may_still_land(const Move& move) {
    if (!move.begun) return false;
    const Error& error = move.outcome.error();
    const bool broke_off = error.code() == Code::kUnavailable || error.code() == Code::kTimedOut || error.code() == Code::kCancelled;
    // Nobody listens: the process that could have taken late bytes is gone.
    if (!broke_off || error.system_errno() == ECONNREFUSED || pool_.closing.load(std::memory_order_acquire)) return false;
    return !pool_.fence_peer(move.segment->spec.endpoint);
}

}  // namespace mooncake::store
