// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "store/tier/disk_io.h"

namespace mooncake::store {

/// A disk in memory that fails, crashes and forgets on demand. What was not synced may be lost at a crash, block by block, or torn; names as well. Ops end
/// inside submit(), unless they are held. Mounts of it share its contents; after crash() those made before are dead. Thread-safe.
class SimStore : public std::enable_shared_from_this<SimStore> {
public:
    enum class Action : uint8_t { kRead, kWrite, kSync, kCreate, kRemove, kSyncNames, kTruncate };
    struct Event {
        Action action = Action::kRead;
        std::string name;
        uint64_t offset = 0;
        uint32_t length = 0;
    };
    struct Fault {
        int error = 0;          // an errno
        uint32_t short_to = 0;  // bytes; 0: all
        bool hold = false;      // until release_held()
    };
    using Plan = std::function<Fault(const Event&)>;

    std::unique_ptr<Disk> mount();

    /// What happens to everything from now on; nothing: all goes well. Called under the lock.
    void set_plan(Plan plan);
    /// Ends the ops that were held, well.
    void release_held();
    size_t held() const;
    /// After so many more changes (writes, syncs, names) nothing works any more, as after a power failure.
    void power_off_after(uint64_t changes);
    bool is_off() const;
    /// What a machine would find after it: of each block that was not synced the old, the new or a mixture; power is back.
    void crash(uint64_t seed);
    /// How many changes there were.
    uint64_t changes() const;

    std::vector<std::string> names() const;
    /// The contents as they are, to be damaged.
    std::vector<std::byte> contents(const std::string& name) const;
    void set_contents(const std::string& name, std::vector<std::byte> bytes);

private:
    friend class SimMount;
    friend class SimFile;
    struct Node {
        std::vector<std::byte> now, synced;
    };
    using NodePtr = std::shared_ptr<Node>;
    using Names = std::map<std::string, NodePtr>;

    /// 0, or what goes wrong; counts changes.
    Fault begin(const Event& event, uint64_t life) MC_REQUIRES(mutex_);
    int64_t apply(Node& node, const DiskOp& op, uint32_t length) MC_REQUIRES(mutex_);
    void submit(const NodePtr& node, const std::string& name, DiskOp& op, uint64_t life);

    mutable Mutex mutex_;
    Names names_ MC_GUARDED_BY(mutex_), synced_names_ MC_GUARDED_BY(mutex_);
    Plan plan_ MC_GUARDED_BY(mutex_);
    uint64_t life_ MC_GUARDED_BY(mutex_) = 1;
    uint64_t changes_ MC_GUARDED_BY(mutex_) = 0;
    uint64_t off_at_ MC_GUARDED_BY(mutex_) = UINT64_MAX;
    uint64_t locked_by_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<std::pair<NodePtr, DiskOp*>> held_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
