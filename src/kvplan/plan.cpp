// SPDX-License-Identifier: Apache-2.0
#include "kvplan/plan.h"

#include <algorithm>
#include <optional>

#include "kvplan/check.h"
#include "kvplan/cover.h"
#include "kvplan/token_runs.h"

namespace mooncake::kvplan {
namespace {

/// Neighbouring seeds must not choose neighbouring replicas in step with neighbouring targets.
uint64_t mix(uint64_t seed) {
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111eb;
    return (seed ^ (seed >> 31)) >> 1;  // leaves room for the number of a target
}

/// The tokens that the target wants in a group.
TokenRange range_of(const Request& request, const RankBlocks& target_blocks, uint32_t group) {
    TokenRange range{request.first_token, request.first_token + request.tokens};
    if (group < target_blocks.size()) range.first = std::clamp(target_blocks[group].kept_from, range.first, range.end);
    return range;
}

Result<> check_request(std::span<const Rank> sources, std::span<const Rank> targets, const Request& request) {
    if (request.tokens > kTokensMax || request.first_token > kTokenMax) {
        return fail(Code::kInvalidArgument, "{} tokens from {} on are more than a request can have", request.tokens, request.first_token);
    }
    if (request.source_blocks.size() != sources.size() || request.target_blocks.size() != targets.size()) {
        return fail(Code::kInvalidArgument, "block tables of {} sources and {} targets, but {} and {} ranks", request.source_blocks.size(),
                    request.target_blocks.size(), sources.size(), targets.size());
    }
    return {};
}

/// Puts the pairs of one target together.
class TargetPlanner {
public:
    TargetPlanner(std::span<const Rank> sources, const HolderIndex& index, const Rank& target, const Request& request, uint32_t number)
        : sources_(sources), target_(target), request_(request), number_(number),
          cover_(sources, index, target, mix(request.seed) + number) {}

    /// Every pair, or that of one source; those of others are proved to be possible but not made.
    Result<> add_pairs(std::optional<uint32_t> only_source, Plan& plan) {
        MC_RETURN_IF_ERROR(check_target());
        pair_of_.assign(sources_.size(), kNoPair);
        for (uint32_t i = 0; i < target_.regions.size(); ++i) {
            const Region& region = target_.regions[i];
            MC_ASSIGN_OR_RETURN(const std::vector<Share> shares,
                                cover_.shares_of(region, range_of(request_, target_blocks(), region.group)));
            for (const Share& share : shares) {
                if (only_source && share.holder.source != *only_source) continue;
                MC_RETURN_IF_ERROR(add_strip(i, share));
            }
        }
        std::sort(pairs_.begin(), pairs_.end(), [](const Open& a, const Open& b) { return a.pair.source < b.pair.source; });
        for (Open& open : pairs_) {
            ++plan.sources_of[number_];
            ++plan.targets_of[open.pair.source];
            plan.pairs.push_back(std::move(open.pair));
        }
        return {};
    }

private:
    static constexpr uint32_t kNoPair = UINT32_MAX;
    /// What decides a set of runs.
    struct Groups {
        uint32_t source = 0, target = 0, rows = 0;
        bool operator==(const Groups&) const = default;
    };
    struct Open {
        PairPlan pair;
        std::vector<Groups> groups;    // of each run set
        std::vector<uint64_t> tokens;  // or rows: of each run set
    };

    const RankBlocks& target_blocks() const { return request_.target_blocks[number_]; }

    Result<> check_target() const {
        std::vector<std::vector<uint64_t>> used;
        for (const Region& region : target_.regions) {
            if (region.group < used.size() && !used[region.group].empty()) continue;
            if (region.group >= used.size()) used.resize(region.group + 1);
            const TokenRange range = range_of(request_, target_blocks(), region.group);
            if (region.rows == 0 && range.first == range.end) continue;
            MC_RETURN_IF_ERROR(check_blocks(target_, target_blocks(), region.group, range));
            used[region.group] = sorted_blocks(target_, target_blocks(), region.group, range);
        }
        return check_disjoint(target_, used);
    }

    Result<> add_strip(uint32_t target_region, const Share& share) {
        uint32_t& number = pair_of_[share.holder.source];
        if (number == kNoPair) {
            number = static_cast<uint32_t>(pairs_.size());
            pairs_.push_back({{.source = share.holder.source, .target = number_, .strips = {}, .run_sets = {}, .bytes = 0}, {}, {}});
        }
        Open& open = pairs_[number];
        const Region& theirs = sources_[share.holder.source].regions[share.holder.region];
        const Region& ours = target_.regions[target_region];
        const Groups groups{theirs.group, ours.group, ours.rows};
        const auto set = static_cast<uint32_t>(std::find(open.groups.begin(), open.groups.end(), groups) - open.groups.begin());
        if (set == open.groups.size()) {
            MC_RETURN_IF_ERROR(add_runs(open, theirs, ours));
            open.groups.push_back(groups);
        }
        open.pair.strips.push_back({share.holder.region, target_region, share.first_head, share.heads, set});
        open.pair.bytes += ours.cell_bytes * share.heads * open.tokens[set];
        return {};
    }

    Result<> add_runs(Open& open, const Region& theirs, const Region& ours) const {
        const uint32_t source = open.pair.source;
        const RankBlocks& source_blocks = request_.source_blocks[source];
        const TokenRange range = range_of(request_, target_blocks(), ours.group);
        MC_RETURN_IF_ERROR(check_blocks(sources_[source], source_blocks, theirs.group, range));
        const BlockTable &from = source_blocks[theirs.group], &to = target_blocks()[ours.group];
        RunSet runs;
        if (ours.rows != 0) {
            runs.push_back({.source_block = from.blocks[0], .target_block = to.blocks[0], .count = ours.rows});
        } else {
            runs = make_token_runs({stripe_of(sources_[source]), theirs.block_tokens, from.first_token, from.blocks},
                                   {stripe_of(target_), ours.block_tokens, to.first_token, to.blocks}, range);
        }
        uint64_t tokens = 0;
        for (const TokenRun& run : runs) tokens += run.count;
        open.tokens.push_back(tokens);
        open.pair.run_sets.push_back(std::move(runs));
        return {};
    }

    std::span<const Rank> sources_;
    const Rank& target_;
    const Request& request_;
    const uint32_t number_;
    Cover cover_;
    std::vector<uint32_t> pair_of_;  // by source
    std::vector<Open> pairs_;
};

Result<Plan> plan_targets(std::span<const Rank> sources, std::span<const Rank> targets, const Request& request,
                          std::span<const uint32_t> only_targets, std::optional<uint32_t> only_source) {
    MC_RETURN_IF_ERROR(check_request(sources, targets, request));
    for (const Rank& source : sources) MC_RETURN_IF_ERROR(check_rank(source));
    const HolderIndex index(sources);
    Plan plan;
    plan.sources_of.resize(targets.size());
    plan.targets_of.resize(sources.size());
    for (uint32_t number = 0; number < targets.size(); ++number) {
        if (!only_targets.empty() && std::find(only_targets.begin(), only_targets.end(), number) == only_targets.end()) continue;
        MC_RETURN_IF_ERROR(check_rank(targets[number]));
        MC_RETURN_IF_ERROR(TargetPlanner(sources, index, targets[number], request, number).add_pairs(only_source, plan));
    }
    return plan;
}

}  // namespace

Result<Plan> make_plan(std::span<const Rank> sources, std::span<const Rank> targets, const Request& request,
                       std::span<const uint32_t> only_targets) {
    for (const uint32_t target : only_targets) {
        if (target >= targets.size()) return fail(Code::kInvalidArgument, "target {} of {}", target, targets.size());
    }
    return plan_targets(sources, targets, request, only_targets, std::nullopt);
}

Result<Plan> make_plan_of_source(std::span<const Rank> sources, std::span<const Rank> targets, const Request& request, uint32_t source) {
    if (source >= sources.size()) return fail(Code::kInvalidArgument, "source {} of {}", source, sources.size());
    return plan_targets(sources, targets, request, {}, source);
}

}  // namespace mooncake::kvplan
