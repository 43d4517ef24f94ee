// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// The twin of the tier on a disk, for tests of those who use one: a map. Answers inside the call. What it holds outlives it in its shelf, as files
/// would. It evicts the oldest where the capacity is reached. Thread-safe.
class MemoryTier : public StorageTier {
public:
    struct Shelf {
        struct Value {
            TierObject object;  // texts are those of the map and of `group`
            std::string group;
            std::vector<std::byte> bytes;
            uint64_t order = 0;
        };
        using Key = std::pair<std::string, std::string>;
        Mutex mutex;
        std::map<Key, Value> values MC_GUARDED_BY(mutex);
        std::map<Key, uint64_t> removed MC_GUARDED_BY(mutex);
        uint64_t next_order MC_GUARDED_BY(mutex) = 0;
        uint64_t bytes MC_GUARDED_BY(mutex) = 0;
        bool taken MC_GUARDED_BY(mutex) = false;
    };

    MemoryTier(std::shared_ptr<Shelf> shelf, uint64_t capacity_bytes, TierObserver* observer = nullptr)
        : shelf_(std::move(shelf)), capacity_bytes_(capacity_bytes), observer_(observer) {}
    ~MemoryTier() override { close(); }

    Result<TierFound> recover() override;
    void write(std::span<TierWrite> objects, Deadline deadline, Completion& completion) override;
    void read(std::span<TierRead> objects, Deadline deadline, Completion& completion) override;
    void remove(std::span<TierRemove> objects, Completion& completion) override;
    std::optional<TierObject> find(uint64_t generation, std::string& texts) const override;
    bool report(size_t objects_max, const std::function<bool(std::span<const TierObject>)>& part) const override;
    TierUsage usage() const override;
    void close() override;

private:
    Result<> write_one(TierWrite& object, Deadline deadline);
    Result<> read_one(TierRead& object, Deadline deadline);
    Result<> remove_one(TierRemove& object);
    bool evict(uint64_t bytes) MC_REQUIRES(shelf_->mutex);

    const std::shared_ptr<Shelf> shelf_;
    const uint64_t capacity_bytes_;
    TierObserver* const observer_;
    bool open_ MC_GUARDED_BY(shelf_->mutex) = false;
};

}  // namespace mooncake::store
