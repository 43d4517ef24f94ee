// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kvplan/plan.h"

/// Tokens of two ranks that stripe and page them differently.
namespace mooncake::kvplan {

struct TokenRange {
    uint64_t first = 0, end = 0;
    bool operator==(const TokenRange&) const = default;
};

/// Which tokens a rank has: token t if `t / tokens % stripes == stripe`.
struct Stripe {
    uint32_t stripes = 1, stripe = 0, tokens = 1;

    bool owns(uint64_t token) const { return token / tokens % stripes == stripe; }
    /// Where the token lies among the rank's own; of one that is not, where the next own one lies.
    uint64_t position(uint64_t token) const;
    bool operator==(const Stripe&) const = default;
};
inline Stripe stripe_of(const Rank& rank) { return {rank.stripes, rank.stripe, rank.stripe_tokens}; }

/// The tokens that two stripes share, as progressions in their order: next() until it gives no more. Token by token where
/// both stripe single tokens (a residue by the Chinese remainder theorem), else one progression for each stretch that stays together.
class CommonTokens {
public:
    struct Progression {
        uint64_t first = 0, count = 0;  // step() apart
    };
    CommonTokens(const Stripe& a, const Stripe& b, TokenRange range);
    uint64_t step() const { return step_; }
    bool next(Progression& progression);

private:
    bool skip_to_owned(const Stripe& stripe, uint64_t& stretch_end);

    Stripe wide_[2];  // stripes of several tokens; those of single tokens are in residue_ and step_
    uint64_t step_ = 1, residue_ = 0;
    uint64_t at_ = 0, end_ = 0;
};

uint64_t count_common_tokens(const Stripe& a, const Stripe& b, TokenRange range);

/// Where the own tokens of a rank lie.
struct Pages {
    Stripe stripe;
    uint32_t block_tokens = 1;
    uint64_t first_position = 0;  // of blocks[0]
    std::span<const uint64_t> blocks;
};
/// Everything the range has in common, cut at the borders of blocks. The blocks are there: check_blocks() has seen them.
RunSet make_token_runs(const Pages& source, const Pages& target, TokenRange range);

}  // namespace mooncake::kvplan
