// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace mooncake::store {

/// The numbers that values and writes get, each once, growing. A life of the master begins with the wall clock, so that values of later lives
/// are newer; should the clock have been set back in between, nodes report numbers that are yet to come. Then counting goes on above them,
/// and what this life gave out is newer than what it did not, whatever the numbers say. Not thread-safe.
class Generations {
public:
    static constexpr uint64_t kEnd = uint64_t{1} << 63;  // the wall clock gets there in the year 2262

    /// How far a clock may have been ahead, in nanoseconds: ten years. What is further is a lie, which would leave no room for newer ones.
    static constexpr uint64_t kAheadMax = uint64_t{10} * 366 * 24 * 3600 * 1'000'000'000;

    explicit Generations(uint64_t first) : begin_(first), next_(first), limit_(first + kAheadMax) {}

    uint64_t next() const noexcept { return next_; }
    uint64_t take() noexcept { return next_++; }
    /// Whether a node may report this one.
    bool credible(uint64_t generation) const noexcept { return generation != 0 && generation < limit_; }
    /// A node reports this one, a credible one: the next ones are above.
    void seen(uint64_t generation) {
        if (generation < next_) return;
        if (begin_ != next_) earlier_.emplace_back(begin_, next_);
        begin_ = next_ = generation + 1;
    }
    /// Given out by this life.
    bool is_own(uint64_t generation) const {
        if (generation >= begin_) return generation < next_;
        return std::any_of(earlier_.begin(), earlier_.end(),
                           [&](const auto& range) { return range.first <= generation && generation < range.second; });
    }
    /// Newer values have higher ranks.
    uint64_t rank(uint64_t generation) const { return is_own(generation) ? generation | kEnd : generation; }
    /// That of the next one, if this life gives it out. What is below was written before now.
    uint64_t next_rank() const noexcept { return next_ | kEnd; }
    /// Whether the value of one is newer than that of the other.
    bool newer(uint64_t one, uint64_t other) const { return rank(one) > rank(other); }

private:
    uint64_t begin_, next_;                               // given out since the last jump
    uint64_t limit_;                                      // of what others gave out
    std::vector<std::pair<uint64_t, uint64_t>> earlier_;  // and before; few: clocks are rarely set back
};

}  // namespace mooncake::store
