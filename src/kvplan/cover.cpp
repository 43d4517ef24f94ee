// SPDX-License-Identifier: Apache-2.0
#include "kvplan/cover.h"

#include <algorithm>
#include <functional>

#include "kvplan/check.h"

namespace mooncake::kvplan {
namespace {

/// Adds an interval, or prolongs the last one of the same holder.
void add_share(std::vector<Share>& shares, const Holder& holder, uint32_t first_head, uint32_t end) {
    if (!shares.empty() && shares.back().holder == holder && shares.back().first_head + shares.back().heads == first_head) {
        shares.back().heads += end - first_head;
        return;
    }
    shares.push_back({holder, first_head, end - first_head});
}

}  // namespace

size_t HolderIndex::NameHash::operator()(const Name& name) const {
    return std::hash<std::string_view>()(name.layer) * 31 + std::hash<std::string_view>()(name.part);
}

HolderIndex::HolderIndex(std::span<const Rank> sources) {
    for (uint32_t source = 0; source < sources.size(); ++source) {
        const std::vector<Region>& regions = sources[source].regions;
        for (uint32_t i = 0; i < regions.size(); ++i) holders_[{regions[i].layer, regions[i].part}].push_back({source, i});
    }
}

std::span<const Holder> HolderIndex::find(const Region& region) const {
    const auto found = holders_.find({region.layer, region.part});
    return found == holders_.end() ? std::span<const Holder>() : std::span<const Holder>(found->second);
}

Result<> Cover::check_alike(const Region& region, std::span<const Holder> holders) const {
    const Rank& first = sources_[holders[0].source];
    for (const Holder& holder : holders) {
        const Rank& source = sources_[holder.source];
        const Region& theirs = source.regions[holder.region];
        if (theirs.cell_bytes != region.cell_bytes || theirs.total_heads != region.total_heads || theirs.rows != region.rows) {
            return fail(Code::kNotSupported,
                        "{}: rank '{}' has cells of {} bytes, {} heads and {} rows, rank '{}' {} bytes, {} heads and {} rows",
                        place_of(region), source.segment, theirs.cell_bytes, theirs.total_heads, theirs.rows, target_.segment,
                        region.cell_bytes, region.total_heads, region.rows);
        }
        if (region.rows == 0 && (source.stripes != first.stripes || source.stripe_tokens != first.stripe_tokens)) {
            return fail(Code::kNotSupported, "{}: ranks '{}' and '{}' stripe their tokens differently", place_of(region), first.segment,
                        source.segment);
        }
    }
    return {};
}

uint64_t Cover::count(const Stripe& stripe, TokenRange range) {
    const auto known = std::find_if(counted_.begin(), counted_.end(),
                                    [&](const Counted& counted) { return counted.stripe == stripe && counted.range == range; });
    if (known != counted_.end()) return known->tokens;
    counted_.push_back({stripe, range, count_common_tokens(stripe, stripe_of(target_), range)});
    return counted_.back().tokens;
}

Unexpected Cover::nobody_has(const Region& region, uint32_t head, const Stripe* stripe, TokenRange range) const {
    if (stripe == nullptr)
        return fail(Code::kNotSupported, "{}: head {} has no source for rank '{}'", place_of(region), head, target_.segment);
    CommonTokens::Progression tokens;
    CommonTokens(*stripe, stripe_of(target_), range).next(tokens);
    return fail(Code::kNotSupported, "{}: head {} of token {} has no source for rank '{}'", place_of(region), head, tokens.first,
                target_.segment);
}

/// No source has any head of some stripe. Finds a token of it, where that does not take long.
Unexpected Cover::nobody_stripes(const Region& region, std::span<const Stripe> known, TokenRange range) const {
    constexpr int kTokensTried = 1 << 16;
    CommonTokens own(stripe_of(target_), Stripe(), range);
    int tried = 0;
    for (CommonTokens::Progression tokens; own.next(tokens);) {
        for (; tokens.count != 0 && tried < kTokensTried; --tokens.count, tokens.first += own.step(), ++tried) {
            const bool held = std::any_of(known.begin(), known.end(), [&](const Stripe& stripe) { return stripe.owns(tokens.first); });
            if (held) continue;
            return fail(Code::kNotSupported, "{}: head {} of token {} has no source for rank '{}'", place_of(region), region.first_head,
                        tokens.first, target_.segment);
        }
        if (tried == kTokensTried) break;
    }
    return fail(Code::kNotSupported, "{}: some stripe of the tokens has no source for rank '{}'", place_of(region), target_.segment);
}

/// Cuts the heads where the set of those who have them changes, and takes one of each set. All layers with the same holders choose the same one, so that a target
/// hears from few; neighbouring targets take different ones.
Result<> Cover::choose(const Region& region, std::span<const Holder> holders, const Stripe* stripe, TokenRange range,
                       std::vector<Share>& shares) const {
    const uint32_t end = region.first_head + region.heads;
    std::vector<Holder> able;
    for (uint32_t head = region.first_head; head < end;) {
        able.clear();
        uint32_t cut = end;
        for (const Holder& holder : holders) {
            const Rank& source = sources_[holder.source];
            if (stripe != nullptr && source.stripe != stripe->stripe) continue;
            const Region& theirs = source.regions[holder.region];
            if (theirs.first_head > head) {
                cut = std::min(cut, theirs.first_head);
            } else if (const uint32_t their_end = theirs.first_head + theirs.heads; their_end > head) {
                able.push_back(holder);
                cut = std::min(cut, their_end);
            }
        }
        if (able.empty()) return nobody_has(region, head, stripe, range);
        add_share(shares, able[choice_ % able.size()], head, cut);
        head = cut;
    }
    return {};
}

Result<std::vector<Share>> Cover::shares_of(const Region& region, TokenRange range) {
    std::vector<Share> shares;
    const std::span<const Holder> holders = index_.find(region);
    if (region.rows == 0 && count(Stripe(), range) == 0) return shares;
    const Stripe all;
    if (holders.empty()) return nobody_has(region, region.first_head, region.rows == 0 ? &all : nullptr, range);
    MC_RETURN_IF_ERROR(check_alike(region, holders));
    if (region.rows != 0) {
        MC_RETURN_IF_ERROR(choose(region, holders, nullptr, range, shares));
        return shares;
    }
    std::vector<Stripe> stripes;
    uint64_t tokens = 0;
    for (const Holder& holder : holders) {
        const Stripe stripe = stripe_of(sources_[holder.source]);
        if (std::find(stripes.begin(), stripes.end(), stripe) != stripes.end()) continue;
        stripes.push_back(stripe);
        const uint64_t common = count(stripe, range);
        if (common != 0) MC_RETURN_IF_ERROR(choose(region, holders, &stripe, range, shares));
        tokens += common;
    }
    // Stripes of one width never share a token: if the numbers add up, every token has exactly one.
    if (tokens != count(Stripe(), range)) return nobody_stripes(region, stripes, range);
    return shares;
}

}  // namespace mooncake::kvplan
