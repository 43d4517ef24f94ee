// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/master/transaction.h"

namespace mooncake::store {

/// Removes what matches (nothing: everything), of one tenant or (nothing) of all, a bounded part at a time, so that others get their turn in
/// between and patterns are tried without the lock. What remove() would refuse stays. Not thread-safe.
class Removal {
public:
    using Matches = std::function<bool(std::string_view key)>;
    struct Key {
        TenantNumber tenant = 0;
        std::string text;
    };

    /// Forced, it covers what a node is yet to report: `matches` is kept, and runs with the lock then.
    Removal(Transaction& transaction, std::optional<std::string_view> tenant, Matches matches, bool force, Time now);

    bool done() const noexcept { return next_ == 0; }
    /// The next keys that there are; looks at some objects only.
    std::vector<Key> look(const MasterState& state);
    /// Those that match.
    std::vector<Key> choose(std::vector<Key> keys) const;
    void remove(Transaction& transaction, const std::vector<Key>& keys, Time now);
    uint64_t removed() const noexcept { return removed_; }

private:
    static constexpr ObjectId kObjectsPerPart = 1024;  // well below a millisecond

    const Matches matches_;
    const bool force_;
    TenantNumber tenant_ = 0;  // 0: all
    ObjectId next_ = 1;        // 0: there are no more
    uint64_t removed_ = 0;
};

}  // namespace mooncake::store
