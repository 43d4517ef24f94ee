// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "base/format.h"

namespace mooncake::store {

/// What the store answers, per key; the numbers are what Python, C and the REST service give out.
enum class StoreCode : int32_t {
    kOk = 0,
    kInternalError = -1,
    kBufferOverflow = -10,
    kSegmentNotFound = -101,
    kSegmentAlreadyExists = -102,
    kClientNotFound = -103,
    kNoAvailableHandle = -200,  // the pool is full: not stored, try later
    kInvalidVersion = -300,
    kInvalidKey = -400,
    kWriteFail = -500,
    kInvalidParams = -600,
    kIllegalClient = -601,  // somebody else than the one who began
    kInvalidWrite = -700,
    kInvalidRead = -701,
    kInvalidReplica = -702,
    kReplicaIsNotReady = -703,  // still being written
    kObjectNotFound = -704,
    kObjectAlreadyExists = -705,
    kObjectHasLease = -706,
    kLeaseExpired = -707,
    kObjectHasReplicationTask = -708,
    kObjectNoReplicationTask = -709,
    kReplicaNotFound = -710,
    kReplicaAlreadyExists = -711,
    kReplicaIsGone = -712,
    kReplicaNotInLocalMemory = -713,
    kObjectReplicaBusy = -714,
    kTransferFail = -800,
    kChecksumMismatch = -801,
    kRpcFail = -900,
    kRpcTimeout = -901,
    kUnavailableInCurrentStatus = -1010,
    kUnavailableInCurrentMode = -1011,
    kNotSupported = -1012,
    kTaskNotFound = -1400,
    kTaskPendingLimitExceeded = -1401,
    kJobNotFound = -1402,
    kTenantQuotaExceeded = -1700,
    kTenantNotRegistered = -1701,
    kTenantNotEmpty = -1702,
};

/// "OBJECT_NOT_FOUND"; "UNKNOWN" for a number that is not in the table.
MC_EXPORT std::string_view store_code_name(StoreCode code) noexcept;

}  // namespace mooncake::store
