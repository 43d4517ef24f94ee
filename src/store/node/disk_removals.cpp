// SPDX-License-Identifier: Apache-2.0
#include "store/node/disk_removals.h"

#include <memory>
#include <utility>

#include "base/log.h"

namespace mooncake::store {

/// Keeps what the disk was given until it has answered, and then goes.
struct DiskRemovals::Batch final : CompletionHook {
    Batch(DiskRemovals& removals, std::vector<Removal> asked) : owner(removals), wanted(std::move(asked)) {
        for (const Removal& one : wanted) removes.push_back({.tenant = one.tenant, .key = one.key, .generation = one.generation});
    }
    void on_done(Completion&) noexcept override {
        const std::unique_ptr<Batch> self(this);
        owner.ended(*this);
    }

    DiskRemovals& owner;
    std::vector<Removal> wanted;
    std::vector<TierRemove> removes;
    Completion completion{nullptr, this};
};

void DiskRemovals::add(std::vector<Removal> removals) {
    if (removals.empty()) return;
    {
        Lock lock(mutex_);
        for (const Removal& one : removals) {
            ++under_way_[one.generation];
            recalled_.erase(one.generation);
        }
    }
    auto* const batch = new Batch(*this, std::move(removals));  // its own from here on
    tier_.remove(batch->removes, batch->completion);
}

void DiskRemovals::ended(Batch& batch) {
    Lock lock(mutex_);
    for (size_t i = 0; i < batch.removes.size(); ++i) {
        const Code code = batch.removes[i].result;
        const uint64_t generation = batch.wanted[i].generation;
        const bool recalled = recalled_.contains(generation);
        if (const auto count = under_way_.find(generation); --count->second == 0) {
            under_way_.erase(count);
            recalled_.erase(generation);
        }
        if (code == Code::kOk || code == Code::kCancelled || code == Code::kInvalidArgument || recalled) continue;
        metrics_.removal_failures.add();
        MC_LOG_WARNING_EVERY(10s, "the disk did not remove a value: {}; tried again", code_name(code));
        if (failed_.size() < kFailedMax) failed_.insert_or_assign(generation, std::move(batch.wanted[i]));
    }
}

void DiskRemovals::forget(uint64_t generation) {
    Lock lock(mutex_);
    failed_.erase(generation);
    if (under_way_.contains(generation)) recalled_.insert(generation);
}

bool DiskRemovals::retry() {
    std::vector<Removal> again;
    {
        Lock lock(mutex_);
        for (auto& [generation, removal] : failed_) again.push_back(std::move(removal));
        failed_.clear();
    }
    const bool any = !again.empty();
    add(std::move(again));
    return any;
}

size_t DiskRemovals::failed() const {
    Lock lock(mutex_);
    return failed_.size();
}

}  // namespace mooncake::store
