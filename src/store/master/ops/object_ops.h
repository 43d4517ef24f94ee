// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "store/master/transaction.h"
#include "store/protocol/objects.h"

/// What clients ask about objects, one file each. They never fail as a whole: every item has its code. `now` never runs backwards.
namespace mooncake::store {

/// Per item: kInvalidParams (no key, no length, bad configuration), kTenantNotRegistered, kObjectAlreadyExists (a value that can be read; others are replaced at the end),
/// kReplicaIsNotReady (somebody is writing it, or copies what cannot be read), kInvalidWrite (the request was revoked before), kNoAvailableHandle, kTenantQuotaExceeded.
/// Items of one group are started all or none.
PutStartReply put_start(Transaction& transaction, const PutStartRequest& request, Time now);
/// As put_start, but a value is replaced at the end, and unfinished writes of others are pre-empted at once. Also per item:
/// kObjectHasReplicationTask, kInvalidParams where the group would change.
PutStartReply upsert_start(Transaction& transaction, const PutStartRequest& request, Time now);
/// Ends a put or an upsert. To name a write that another's upsert has pre-empted tells that its bytes have landed: its range is free again.
/// kOk (also when repeated), kObjectNotFound, kIllegalClient, kInvalidWrite (not the current write).
CodesReply put_end(Transaction& transaction, const PutEndRequest& request, Time now);
/// Gives a write up; the client has stopped writing, but for what is in doubt. Codes as put_end; kInvalidWrite also for a finished one.
CodesReply put_revoke(Transaction& transaction, const PutRevokeRequest& request, Time now);

/// Grants leases. Per item: kObjectNotFound (also where it, or one of its group, lies only where the caller cannot
/// reach it), kReplicaIsNotReady (it, or one of its group, is being written).
GetReply get_replicas(Transaction& transaction, const KeysRequest& request, Time now);
/// Grants soft leases.
ExistReply exist(Transaction& transaction, const KeysRequest& request, Time now);

/// Per key: kObjectNotFound, kReplicaIsNotReady (being written), kObjectHasReplicationTask, kObjectHasLease.
CodesReply remove(Transaction& transaction, const RemoveRequest& request, Time now);
/// Per key: kOk (cleared), kObjectNotFound, kIllegalClient (written by another), kReplicaIsNotReady (also where only replicas would be
/// left that cannot be counted on now), kObjectHasReplicationTask, kObjectHasLease, kReplicaNotFound (none on that segment).
CodesReply replica_clear(Transaction& transaction, const ReplicaClearRequest& request, Time now);

}  // namespace mooncake::store
