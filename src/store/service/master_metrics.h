// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "metrics/metrics.h"
#include "store/master/jobs/jobs.h"
#include "store/protocol/objects.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// The calls that are counted, by the names users know.
enum class CountedCall : uint8_t {
    kPutStart,
    kPutEnd,
    kPutRevoke,
    kGetReplicaList,
    kGetReplicaListByRegex,
    kExistKey,
    kReplicaClear,
    kRemove,
    kRemoveByRegex,
    kRemoveAll,
    kMountSegment,
    kUnmountSegment,
    kRemountSegment,
    kPing,
    kCreateCopyTask,
    kCreateMoveTask,
    kQueryTask,
    kUpdateTask,
    kEvictDiskReplica,
};

/// What the master has been asked and how it went, counted by its servers after each call; the state itself is looked at when somebody reads
/// the metrics. A call about one key counts as master_X_*, one about several as master_batch_X_*, so that keys per second are
/// requests of the first plus items of the second. Thread-safe; a call costs a few relaxed adds.
class MasterMetrics {
public:
    MasterMetrics();

    /// Upserts too.
    void put_start(const PutStartRequest& request, const PutStartReply& reply);
    void put_end(const CodesReply& reply) { codes(CountedCall::kPutEnd, reply); }
    void put_revoke(const CodesReply& reply) { codes(CountedCall::kPutRevoke, reply); }
    /// `on_disk`: so many of those found lie on disks alone.
    void get_replicas(const GetReply& reply, uint64_t on_disk = 0, uint64_t on_disk_bytes = 0);
    void exist(const ExistReply& reply);
    void remove(const CodesReply& reply) { codes(CountedCall::kRemove, reply); }
    void replica_clear(const CodesReply& reply) { codes(CountedCall::kReplicaClear, reply); }
    void remount(const RemountReply& reply);
    /// A call that is not about a list of keys.
    void call(CountedCall call, bool ok);
    void evicted(const EvictionRun& run);

    /// For metrics of others, and to read all.
    metrics::Registry& registry() noexcept { return registry_; }
    const metrics::Registry& registry() const noexcept { return registry_; }
    /// Keys asked for by get and exist, and how many of them there were.
    struct Lookups {
        uint64_t keys = 0, found = 0;
    };
    Lookups lookups() const;
    /// Keys (calls, where they are not about keys) so far.
    uint64_t total(CountedCall call) const;
    uint64_t refused_for_space() const { return allocation_failures_.value(); }

private:
    struct Counters {
        metrics::Counter* requests = nullptr;
        metrics::Counter* failures = nullptr;
        // null: such calls are only counted as a whole
        metrics::Counter* batch_requests = nullptr;
        metrics::Counter* batch_failures = nullptr;
        metrics::Counter* batch_partial_successes = nullptr;
        metrics::Counter* batch_items = nullptr;
        metrics::Counter* batch_failed_items = nullptr;
    };
    static constexpr size_t kCalls = static_cast<size_t>(CountedCall::kEvictDiskReplica) + 1;

    void items(CountedCall call, size_t count, size_t failed);
    void codes(CountedCall call, const CodesReply& reply);
    void tenant_refused(std::string_view tenant, const char* reason);

    metrics::Registry registry_;
    std::array<Counters, kCalls> calls_;
    metrics::Counter& gets_;
    metrics::Counter& gets_found_;
    metrics::Counter& hits_;
    metrics::Counter& hit_bytes_;
    metrics::Counter& exist_found_;
    metrics::Counter& allocation_failures_;
    metrics::Counter& partial_allocations_;
    std::array<metrics::Counter*, 2> evictions_attempted_, evictions_successful_;  // of everything; of memory, which is the same
    metrics::Histogram& value_size_;
};

}  // namespace mooncake::store
