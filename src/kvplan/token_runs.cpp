// SPDX-License-Identifier: Apache-2.0
#include "kvplan/token_runs.h"

#include <algorithm>
#include <numeric>

namespace mooncake::kvplan {
namespace {

bool is_wide(const Stripe& stripe) { return stripe.stripes > 1 && stripe.tokens > 1; }
uint64_t divide_up(uint64_t value, uint64_t by) { return (value + by - 1) / by; }

/// One side's way through its blocks.
struct Walk {
    explicit Walk(const Pages& of, uint64_t token_step)
        : pages(of), step(is_wide(of.stripe) || of.stripe.stripes == 1 ? token_step : token_step / of.stripe.stripes) {}

    void go_to(uint64_t token) {
        const uint64_t position = pages.stripe.position(token) - pages.first_position;
        block = pages.blocks[position / pages.block_tokens];
        slot = static_cast<uint32_t>(position % pages.block_tokens);
    }
    uint64_t tokens_left() const { return divide_up(pages.block_tokens - slot, step); }

    const Pages& pages;
    const uint64_t step;  // in slots
    uint64_t block = 0;
    uint32_t slot = 0;
};

void add_run(RunSet& runs, const TokenRun& run) {
    if (!runs.empty()) {
        // Stretches of a wide stripe may go on where the last one ended, on both sides.
        TokenRun& last = runs.back();
        if (last.source_block == run.source_block && last.target_block == run.target_block &&
            last.source_slot + uint64_t{last.count} * last.source_step == run.source_slot &&
            last.target_slot + uint64_t{last.count} * last.target_step == run.target_slot) {
            last.count += run.count;
            return;
        }
    }
    runs.push_back(run);
}

}  // namespace

uint64_t Stripe::position(uint64_t token) const {
    const uint64_t unit = token / tokens, before = unit / stripes, phase = unit % stripes;
    if (phase < stripe) return before * tokens;
    if (phase > stripe) return (before + 1) * tokens;
    return before * tokens + token % tokens;
}

CommonTokens::CommonTokens(const Stripe& a, const Stripe& b, TokenRange range) : at_(range.first), end_(range.end) {
    size_t wide = 0;
    for (const Stripe& stripe : {a, b}) {
        if (is_wide(stripe)) {
            wide_[wide++] = stripe;
            continue;
        }
        // Both residues at once: the first number of the one progression that is in the other, if any is.
        const uint64_t tries = stripe.stripes / std::gcd(step_, uint64_t{stripe.stripes});
        uint64_t tried = 0;
        while (tried < tries && residue_ % stripe.stripes != stripe.stripe) residue_ += step_, ++tried;
        if (tried == tries) at_ = end_;
        step_ = std::lcm(step_, uint64_t{stripe.stripes});
    }
}

bool CommonTokens::skip_to_owned(const Stripe& stripe, uint64_t& stretch_end) {
    const uint64_t unit = at_ / stripe.tokens, phase = unit % stripe.stripes;
    const uint64_t units_ahead = (stripe.stripe + stripe.stripes - phase) % stripe.stripes;
    if (units_ahead != 0) {
        at_ = (unit + units_ahead) * stripe.tokens;
        return false;
    }
    stretch_end = std::min(stretch_end, (unit + 1) * stripe.tokens);
    return true;
}

bool CommonTokens::next(Progression& progression) {
    while (at_ < end_) {
        uint64_t stretch_end = end_;
        bool owned = true;
        for (const Stripe& stripe : wide_) owned = owned && (stripe.stripes == 1 || skip_to_owned(stripe, stretch_end));
        if (!owned) continue;
        const uint64_t first = at_ + (residue_ + step_ - at_ % step_) % step_;
        at_ = stretch_end;
        if (first >= stretch_end) continue;
        progression = {first, divide_up(stretch_end - first, step_)};
        return true;
    }
    return false;
}

uint64_t count_common_tokens(const Stripe& a, const Stripe& b, TokenRange range) {
    CommonTokens common(a, b, range);
    uint64_t count = 0;
    for (CommonTokens::Progression progression; common.next(progression);) count += progression.count;
    return count;
}

RunSet make_token_runs(const Pages& source, const Pages& target, TokenRange range) {
    CommonTokens common(source.stripe, target.stripe, range);
    Walk from(source, common.step()), to(target, common.step());
    RunSet runs;
    runs.reserve(source.blocks.size() + target.blocks.size());
    for (CommonTokens::Progression progression; common.next(progression);) {
        while (progression.count != 0) {
            from.go_to(progression.first);
            to.go_to(progression.first);
            const uint64_t count = std::min({progression.count, from.tokens_left(), to.tokens_left()});
            add_run(runs, {.source_block = from.block,
                           .target_block = to.block,
                           .source_slot = from.slot,
                           .target_slot = to.slot,
                           .source_step = static_cast<uint32_t>(from.step),
                           .target_step = static_cast<uint32_t>(to.step),
                           .count = static_cast<uint32_t>(count)});
            progression.first += count * common.step();
            progression.count -= count;
        }
    }
    return runs;
}

}  // namespace mooncake::kvplan
