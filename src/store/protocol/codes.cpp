// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/codes.h"

namespace mooncake::store {

std::string_view store_code_name(StoreCode code) noexcept {
    switch (code) {
        case StoreCode::kOk: return "OK";
        case StoreCode::kInternalError: return "INTERNAL_ERROR";
        case StoreCode::kBufferOverflow: return "BUFFER_OVERFLOW";
        case StoreCode::kSegmentNotFound: return "SEGMENT_NOT_FOUND";
        case StoreCode::kSegmentAlreadyExists: return "SEGMENT_ALREADY_EXISTS";
        case StoreCode::kClientNotFound: return "CLIENT_NOT_FOUND";
        case StoreCode::kNoAvailableHandle: return "NO_AVAILABLE_HANDLE";
        case StoreCode::kInvalidVersion: return "INVALID_VERSION";
        case StoreCode::kInvalidKey: return "INVALID_KEY";
        case StoreCode::kWriteFail: return "WRITE_FAIL";
        case StoreCode::kInvalidParams: return "INVALID_PARAMS";
        case StoreCode::kIllegalClient: return "ILLEGAL_CLIENT";
        case StoreCode::kInvalidWrite: return "INVALID_WRITE";
        case StoreCode::kInvalidRead: return "INVALID_READ";
        case StoreCode::kInvalidReplica: return "INVALID_REPLICA";
        case StoreCode::kReplicaIsNotReady: return "REPLICA_IS_NOT_READY";
        case StoreCode::kObjectNotFound: return "OBJECT_NOT_FOUND";
        case StoreCode::kObjectAlreadyExists: return "OBJECT_ALREADY_EXISTS";
        case StoreCode::kObjectHasLease: return "OBJECT_HAS_LEASE";
        case StoreCode::kLeaseExpired: return "LEASE_EXPIRED";
        case StoreCode::kObjectHasReplicationTask: return "OBJECT_HAS_REPLICATION_TASK";
        case StoreCode::kObjectNoReplicationTask: return "OBJECT_NO_REPLICATION_TASK";
        case StoreCode::kReplicaNotFound: return "REPLICA_NOT_FOUND";
        case StoreCode::kReplicaAlreadyExists: return "REPLICA_ALREADY_EXISTS";
        case StoreCode::kReplicaIsGone: return "REPLICA_IS_GONE";
        case StoreCode::kReplicaNotInLocalMemory: return "REPLICA_NOT_IN_LOCAL_MEMORY";
        case StoreCode::kObjectReplicaBusy: return "OBJECT_REPLICA_BUSY";
        case StoreCode::kTransferFail: return "TRANSFER_FAIL";
        case StoreCode::kChecksumMismatch: return "CHECKSUM_MISMATCH";
        case StoreCode::kRpcFail: return "RPC_FAIL";
        case StoreCode::kRpcTimeout: return "RPC_TIMEOUT";
        case StoreCode::kUnavailableInCurrentStatus: return "UNAVAILABLE_IN_CURRENT_STATUS";
        case StoreCode::kUnavailableInCurrentMode: return "UNAVAILABLE_IN_CURRENT_MODE";
        case StoreCode::kNotSupported: return "NOT_SUPPORTED";
        case StoreCode::kTaskNotFound: return "TASK_NOT_FOUND";
        case StoreCode::kTaskPendingLimitExceeded: return "TASK_PENDING_LIMIT_EXCEEDED";
        case StoreCode::kJobNotFound: return "JOB_NOT_FOUND";
        case StoreCode::kTenantQuotaExceeded: return "TENANT_QUOTA_EXCEEDED";
        case StoreCode::kTenantNotRegistered: return "TENANT_NOT_REGISTERED";
        case StoreCode::kTenantNotEmpty: return "TENANT_NOT_EMPTY";
    }
    return "UNKNOWN";
}

}  // namespace mooncake::store
