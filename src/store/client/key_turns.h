// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::store {

/// Lets the threads of one client replace a value one after the other: a master gives the key to who came last, and the earlier one would be
/// told that its write was in vain. Thread-safe. Must outlive the turns.
class KeyTurns {
public:
    /// Holds keys until it goes. Borrows them.
    class Turn {
    public:
        Turn() = default;
        Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)), keys_(std::move(other.keys_)) {}
        Turn& operator=(Turn&&) = delete;
        ~Turn() {
            if (turns_ != nullptr && !keys_.empty()) turns_->give_back(keys_);
        }
        size_t size() const noexcept { return keys_.size(); }

    private:
        friend class KeyTurns;
        KeyTurns* turns_ = nullptr;
        std::vector<std::string_view> keys_;
    };

    /// Waits until all of them are free, so that nobody waits who holds some. When the time is over, takes those that are.
    Turn take(const std::vector<std::string_view>& keys, Deadline deadline) {
        Turn turn;
        turn.turns_ = this;
        Lock lock(mutex_);
        while (holds_any(keys))
            if (changed_.wait_until(mutex_, deadline.at()) == std::cv_status::timeout) break;
        for (const std::string_view key : keys)
            if (held_.insert(key).second) turn.keys_.push_back(key);
        return turn;
    }

private:
    bool holds_any(const std::vector<std::string_view>& keys) const MC_REQUIRES(mutex_) {
        for (const std::string_view key : keys)
            if (held_.contains(key)) return true;
        return false;
    }

    void give_back(const std::vector<std::string_view>& keys) {
        {
            Lock lock(mutex_);
            for (const std::string_view key : keys) held_.erase(key);
        }
        changed_.notify_all();
    }

    Mutex mutex_;
    std::condition_variable_any changed_;
    std::unordered_set<std::string_view> held_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
