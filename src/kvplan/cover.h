// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "kvplan/layout.h"
#include "kvplan/token_runs.h"

/// Who has what a target wants.
namespace mooncake::kvplan {

/// A region of a source.
struct Holder {
    uint32_t source = 0, region = 0;
    bool operator==(const Holder&) const = default;
};

/// The regions of all sources by layer and part. Borrows the ranks.
class HolderIndex {
public:
    explicit HolderIndex(std::span<const Rank> sources);
    std::span<const Holder> find(const Region& region) const;  // by source, then as they stand there

private:
    struct Name {
        std::string_view layer, part;
        bool operator==(const Name&) const = default;
    };
    struct NameHash {
        size_t operator()(const Name& name) const;
    };
    std::unordered_map<Name, std::vector<Holder>, NameHash> holders_;
};

/// An interval of heads of the target's region, and the one who sends it.
struct Share {
    Holder holder;
    uint32_t first_head = 0, heads = 0;
};

/// Finds the shares of the regions of one target, and proves that they are an exact cover of its heads and tokens. Borrows what it is given.
class Cover {
public:
    Cover(std::span<const Rank> sources, const HolderIndex& index, const Rank& target, uint64_t choice)
        : sources_(sources), index_(index), target_(target), choice_(choice) {}

    /// The shares of one region for the tokens of the range. They may be of several sources with the same heads and different stripes: their tokens then add up to all.
    /// kNotSupported: something has no source.
    Result<std::vector<Share>> shares_of(const Region& region, TokenRange range);

private:
    struct Counted {
        Stripe stripe;
        TokenRange range;
        uint64_t tokens = 0;
    };
    Result<> check_alike(const Region& region, std::span<const Holder> holders) const;
    Result<> choose(const Region& region, std::span<const Holder> holders, const Stripe* stripe, TokenRange range,
                    std::vector<Share>& shares) const;
    uint64_t count(const Stripe& stripe, TokenRange range);
    Unexpected nobody_has(const Region& region, uint32_t head, const Stripe* stripe, TokenRange range) const;
    Unexpected nobody_stripes(const Region& region, std::span<const Stripe> known, TokenRange range) const;

    std::span<const Rank> sources_;
    const HolderIndex& index_;
    const Rank& target_;
    const uint64_t choice_;
    std::vector<Counted> counted_;
};

}  // namespace mooncake::kvplan
