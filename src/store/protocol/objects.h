// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "store/protocol/codes.h"
#include "store/protocol/ids.h"

/// What clients ask the master about objects, and what it answers. Plain data: views in requests borrow from the caller for the
/// time of the call. Every call is a batch; answers have the length and the order of the question.
namespace mooncake::store {

enum class ObjectDataType : uint8_t {
    kUnknown,
    kKvCache,
    kTensor,
    kWeight,
    kSample,
    kActivation,
    kGradient,
    kOptimizerState,
    kMetadata,
    kGeneral,
};
enum class SoftPinAction : uint8_t { kPreserve, kEnable, kDisable };

// What is longer is refused by client and master alike (kInvalidParams): nodes are told of keys and groups in updates of bounded length, and keep both on
// their disks.
constexpr size_t kKeyBytesMax = 64 << 10, kGroupBytesMax = 4 << 10;
/// Whether a value can have this key.
constexpr bool is_key(std::string_view key) noexcept { return !key.empty() && key.size() <= kKeyBytesMax; }
/// Nobody asks for, or removes, what can have no value; an empty key is just not there.
constexpr bool too_long(std::string_view key) noexcept { return key.size() > kKeyBytesMax; }

constexpr uint32_t kReplicasMax = 1 << 16;  // that may be wished for; there are never more than segment names

struct WriteConfig {
    uint32_t replica_num = 1;
    SoftPinAction soft_pin = SoftPinAction::kPreserve;
    std::optional<Duration> soft_pin_ttl;  // only with kEnable; nothing: the master's default; 0: not pinned
    bool hard_pin = false;                 // never evicted
    ObjectDataType data_type = ObjectDataType::kUnknown;
    std::vector<std::string> preferred_segments;  // names, tried in this order first
    std::string writer_host;                      // for placement near the writer; empty: unknown
};

/// A copy of the object's bytes: `segment` is the master's number of a mounted segment, never used again in one life of a master.
struct ReplicaLocation {
    uint32_t segment = 0;
    uint64_t offset = 0;
    friend bool operator==(const ReplicaLocation&, const ReplicaLocation&) = default;
};

// put, upsert -------------------------------------------------------------------------------------------------------------

struct PutItem {
    std::string_view key;
    uint64_t length = 0;
    std::string_view group;  // empty: none
};
/// The same client repeating the same request id gets the same answer.
struct PutStartRequest {
    ClientId client;
    uint64_t request_id = 0;
    std::string_view tenant;
    WriteConfig config;
    std::span<const PutItem> items;
    /// Segments the caller cannot reach now: used only where nothing else will do, and what lies only there is missing for it.
    std::span<const uint32_t> unreachable{};
};
struct PutStartItem {
    StoreCode code = StoreCode::kOk;
    uint32_t first_replica = 0, replica_count = 0;  // in PutStartReply::replicas
    uint64_t generation = 0;                        // names this write until its end
};
struct PutStartReply {
    std::vector<PutStartItem> items;
    std::vector<ReplicaLocation> replicas;
    /// Where some item got kNoAvailableHandle: when memory that is only held by leases comes back. Zero: waiting will not help.
    Duration retry_after{0};
    /// Where some item got kNoAvailableHandle only because what would have to go is not on a disk yet: about when it is. Zero: otherwise.
    Duration disk_wait{0};
    uint64_t epoch = 0;  // the life of the master that numbered the segments; set by its server
    /// After the request was sent, no byte of these writes may begin to move: their ranges will be used again soon after. Zero: not told.
    Duration release{0};
};

struct PutEndItem {
    std::string_view key;
    uint64_t generation = 0;  // 0: whatever this client is writing
    uint64_t checksum = 0;    // XXH3-64 of the value
};
struct PutEndRequest {
    ClientId client;
    std::string_view tenant;
    std::span<const PutEndItem> items;
};
struct PutRevokeRequest {
    ClientId client;
    uint64_t request_id = 0;  // 0: unknown; else no late start of that request will be accepted any more
    std::string_view tenant;
    std::span<const PutEndItem> items;  // checksums are ignored
    /// Segments where bytes of these writes may still land: what they have there goes into quarantine.
    std::span<const uint32_t> in_doubt{};
};
struct CodesReply {
    std::vector<StoreCode> codes;
};

// get, exist --------------------------------------------------------------------------------------------------------------

struct KeysRequest {
    std::string_view tenant;
    std::span<const std::string_view> keys;
    /// Segments the caller cannot reach now: what lies only there is missing for it, and for it alone.
    std::span<const uint32_t> unreachable;
};
struct GetItem {
    StoreCode code = StoreCode::kOk;
    uint32_t first_replica = 0, replica_count = 0;  // in GetReply::replicas
    uint64_t length = 0, checksum = 0, generation = 0;
    ObjectDataType data_type = ObjectDataType::kUnknown;
};
struct GetReply {
    std::vector<GetItem> items;
    std::vector<ReplicaLocation> replicas;
    Duration lease{0};   // from the moment the request was sent
    uint64_t epoch = 0;  // as in PutStartReply
};
struct ExistReply {
    std::vector<int32_t> results;  // 1, 0, or a negative StoreCode
    Duration soft_lease{0};        // from the moment the request was sent
};

// remove ------------------------------------------------------------------------------------------------------------------

struct RemoveRequest {
    std::string_view tenant;
    std::span<const std::string_view> keys;
    bool force = false;  // skips the test for leases, nothing else
};
struct ReplicaClearRequest {
    ClientId client;  // clears only what it wrote itself
    std::string_view tenant;
    std::span<const std::string_view> keys;
    std::string_view segment_name;  // empty: all replicas
};

}  // namespace mooncake::store
