// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "store/master/state.h"

namespace mooncake::store {

/// What an operation works on: it looks at the state, and applies each change the moment it is decided, so that the later keys of a batch
/// see what the earlier ones did. The changes go to the log in the same order (see docs/adr/0020). Borrows both for its life.
class Transaction {
public:
    explicit Transaction(MasterState& state, std::vector<Change>* log = nullptr) : state_(state), log_(log) {}

    const MasterState& state() const noexcept { return state_; }
    /// A change is applied as a whole. Whatever an operation throws, it throws before or after; to throw within would leave a state that
    /// contradicts itself, and ends the process.
    template <typename OneChange>
    void apply(OneChange change) noexcept {
        state_.apply(change);
        if (log_ == nullptr) return;
        if constexpr (requires { change.own(); }) change.own();
        log_->emplace_back(std::move(change));
    }
    void advance(Time now) {
        if (state_.due(now)) apply(ClockAdvanced{.now = now});
    }

private:
    MasterState& state_;
    std::vector<Change>* log_;
};

}  // namespace mooncake::store
