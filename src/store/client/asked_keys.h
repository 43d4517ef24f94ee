// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "store/protocol/objects.h"

namespace mooncake::store {

/// The keys of a batch that a master is asked about. Those that no value can have are answered here: one of them must neither make a request too long
/// for all others, nor be told to a master that knows no such bound. Borrows the batch.
class AskedKeys {
public:
    explicit AskedKeys(std::span<const std::string_view> batch) : batch_(batch) {
        if (std::none_of(batch.begin(), batch.end(), too_long)) return;
        all_ = false;
        for (uint32_t i = 0; i < batch.size(); ++i) {
            if (too_long(batch[i])) continue;
            keys_.push_back(batch[i]);
            where_.push_back(i);
        }
    }

    bool all() const noexcept { return all_; }
    std::span<const std::string_view> keys() const noexcept { return all_ ? batch_ : std::span<const std::string_view>(keys_); }
    /// Where in the batch key `i` of these stands.
    size_t place(size_t i) const noexcept { return all_ ? i : where_[i]; }
    /// What was answered to these, in the order of the batch, with `refused` for the rest.
    template <typename Answer>
    std::vector<Answer> spread(std::vector<Answer> answers, const Answer& refused) const {
        if (all_) return answers;
        std::vector<Answer> spread(batch_.size(), refused);
        for (size_t i = 0; i < answers.size(); ++i) spread[where_[i]] = std::move(answers[i]);
        return spread;
    }

private:
    const std::span<const std::string_view> batch_;
    bool all_ = true;  // the rest is empty then
    std::vector<std::string_view> keys_;
    std::vector<uint32_t> where_;
};

}  // namespace mooncake::store
