// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tl/expected.hpp>

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "store/master/transaction.h"
#include "store/protocol/tasks.h"

/// Copies, moves, drains and quotas, one file each. `now` never runs backwards. Times in answers are the core's; who knows a wall clock
/// fills in the rest.
namespace mooncake::store {

// tasks -------------------------------------------------------------------------------------------------------------------

/// kInvalidParams (unknown segment, source and target the same, a move from where it is not), kObjectNotFound, kReplicaAlreadyExists (a
/// move to where it is), kTaskPendingLimitExceeded. A copy to where it is already has ended when it is created.
TaskReply create_task(Transaction& transaction, const TaskRequest& request, Time now);
/// The client has carried out an order, or given it up and stopped: kOk (also when repeated), kTaskNotFound, kIllegalClient.
StoreCode end_task(Transaction& transaction, const TaskEnd& end, Time now);

/// Whether ranges are in quarantine since this copy was taken from this client; its task may have been forgotten meanwhile.
bool feared(const MasterState& state, const ClientId& client, const TaskId& task);

struct TaskView {
    TaskInfo info;
    Time created{}, updated{};
};
std::optional<TaskView> query_task(const MasterState& state, const TaskId& task);

/// What shall lie elsewhere as well, or instead.
struct CopyWish {
    ObjectId object = 0;
    TaskType type = TaskType::kCopy;
    SegmentNumber source = 0;                      // of a move
    std::span<const SegmentNumber> destination{};  // as in Task; none: anywhere
    bool for_drain = false;                        // whatever its tenant's quota; and nothing goes that a drain keeps
};
/// Finds the target ranges, evicting where it must, on segments that can be trusted: what is then to be applied, with its task; or the codes of
/// begin_copy(). For the operations and jobs.
tl::expected<CopyStarted, StoreCode> plan_copy(Transaction& transaction, const CopyWish& wish, Time now);
/// Tries to reserve the target ranges of a pending task and to order the copy: kOk; kNoAvailableHandle, kObjectHasReplicationTask,
/// kReplicaIsNotReady (worth another try); anything else is final. For the operations and jobs.
StoreCode begin_copy(Transaction& transaction, TaskNumber task, Time now);

// drains ------------------------------------------------------------------------------------------------------------------

struct DrainReply {
    StoreCode code = StoreCode::kOk;
    JobId job;
};
/// kInvalidParams (no segments, no concurrency, unknown targets), kSegmentNotFound, kUnavailableInCurrentStatus (one is being drained or
/// unmounted already).
DrainReply create_drain(Transaction& transaction, const DrainRequest& request, Time now);
/// Its segments take new values again, as when it fails: kOk, kJobNotFound, kUnavailableInCurrentStatus (it has ended).
StoreCode cancel_drain(Transaction& transaction, const JobId& job, Time now);

struct DrainView {
    DrainInfo info;
    Time created{}, updated{};
};
std::optional<DrainView> query_drain(const MasterState& state, const JobId& job);
std::vector<DrainView> list_drains(const MasterState& state);

// quotas ------------------------------------------------------------------------------------------------------------------

/// kUnavailableInCurrentMode where tenants are off; kInvalidParams for a name that is empty, begins with '_' or has control characters.
StoreCode set_quota(Transaction& transaction, std::string_view tenant, uint64_t bytes);
/// Also kTenantNotRegistered, kTenantNotEmpty.
StoreCode delete_quota(Transaction& transaction, std::string_view tenant);
/// In the order of names.
std::vector<TenantQuota> list_quotas(const MasterState& state);

}  // namespace mooncake::store
