// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/master/transaction.h"

namespace mooncake::store {

/// Removes what matches (nothing: everything), of one tenant or (nothing) of all, a bounded part at a time, so that others get their turn in
/// between and patterns are tried without the lock. What remove() would refuse stays, and so does what was written, or came to its end, after the
/// removal was asked for: however long it waits for its turn and takes, it is none of what was meant. Not thread-safe.
class Removal {
public:
    using Matches = std::function<bool(std::string_view key)>;
    struct Key {
        TenantNumber tenant = 0;
        std::string text;
    };
    struct Wish {
        std::optional<std::string> tenant{};
        Matches matches{};
        size_t cost = 1;  // of a match (Tombstones::kPatternsCostMax)
        bool force = false;
    };

    /// Asked for: this is the moment that counts.
    Removal(Transaction& transaction, Wish wish);

    /// Before the first part. Forced, it covers what a node is yet to report: `matches` is kept, and held against that.
    void start(Transaction& transaction, Time now);
    bool done() const noexcept { return next_ == 0; }
    /// The next keys that there are; looks at some objects only.
    std::vector<Key> look(const MasterState& state);
    /// Those that match; `stopped` ends it early.
    std::vector<Key> choose(std::vector<Key> keys, const std::function<bool()>& stopped = nullptr) const;
    void remove(Transaction& transaction, const std::vector<Key>& keys, Time now);
    uint64_t removed() const noexcept { return removed_; }

private:
    static constexpr ObjectId kObjectsPerPart = 1024;  // well below a millisecond

    bool is_meant(const MasterState& state, const Object& object) const;

    const Wish wish_;
    uint64_t before_ = 0;      // values of lower ranks
    TenantNumber tenant_ = 0;  // 0: all
    ObjectId next_ = 1;        // 0: there are no more
    uint64_t removed_ = 0;
};

}  // namespace mooncake::store
