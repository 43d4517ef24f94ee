// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "store/protocol/objects.h"

/// Put, get, exist, remove: see messages.h.
namespace mooncake::store {

constexpr size_t kKeysMax = size_t{1} << 20;  // in one request
constexpr size_t kNameBytesMax = 1024;        // tenants, segments, hosts, endpoints
constexpr size_t kPatternBytesMax = 4096;
constexpr size_t kPreferredSegmentsMax = 1024;

/// Requests as the server sees them. Views point into the received bytes, or into `copy` where those lay at an odd address; spans into the
/// vectors. May be moved, not copied.
struct ReceivedKeys {
    KeysRequest request;
    std::vector<std::string_view> keys;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedPutStart {
    PutStartRequest request;
    bool replace = false;  // upsert
    std::vector<PutItem> items;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedPutEnd {
    PutEndRequest request;
    std::vector<PutEndItem> items;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedPutRevoke {
    PutRevokeRequest request;
    std::vector<PutEndItem> items;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedRemove {
    RemoveRequest request;
    std::vector<std::string_view> keys;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedRemoveMatching {
    std::string_view tenant, pattern;  // an empty pattern means all
    bool force = false;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedReplicaClear {
    ReplicaClearRequest request;
    std::vector<std::string_view> keys;
    std::unique_ptr<uint64_t[]> copy;
};

/// Of exist and get_replicas.
std::vector<std::byte> encode_keys_request(const KeysRequest& request);
Result<ReceivedKeys> decode_keys_request(std::span<const std::byte> body);
std::vector<std::byte> encode_exist_reply(const ExistReply& reply);
Result<ExistReply> decode_exist_reply(std::span<const std::byte> body);
std::vector<std::byte> encode_get_reply(const GetReply& reply);
Result<GetReply> decode_get_reply(std::span<const std::byte> body);

std::vector<std::byte> encode_put_start_request(const PutStartRequest& request, bool replace);
Result<ReceivedPutStart> decode_put_start_request(std::span<const std::byte> body);
std::vector<std::byte> encode_put_start_reply(const PutStartReply& reply);
Result<PutStartReply> decode_put_start_reply(std::span<const std::byte> body);

std::vector<std::byte> encode_put_end_request(const PutEndRequest& request);
Result<ReceivedPutEnd> decode_put_end_request(std::span<const std::byte> body);
std::vector<std::byte> encode_put_revoke_request(const PutRevokeRequest& request);
Result<ReceivedPutRevoke> decode_put_revoke_request(std::span<const std::byte> body);
/// Of put_end, put_revoke, remove and replica_clear.
std::vector<std::byte> encode_codes_reply(const CodesReply& reply);
Result<CodesReply> decode_codes_reply(std::span<const std::byte> body);

std::vector<std::byte> encode_remove_request(const RemoveRequest& request);
Result<ReceivedRemove> decode_remove_request(std::span<const std::byte> body);
std::vector<std::byte> encode_remove_matching_request(std::string_view tenant, std::string_view pattern, bool force);
Result<ReceivedRemoveMatching> decode_remove_matching_request(std::span<const std::byte> body);
/// How many, or a negative StoreCode.
std::vector<std::byte> encode_remove_matching_reply(int64_t count);
Result<int64_t> decode_remove_matching_reply(std::span<const std::byte> body);
std::vector<std::byte> encode_replica_clear_request(const ReplicaClearRequest& request);
Result<ReceivedReplicaClear> decode_replica_clear_request(std::span<const std::byte> body);

}  // namespace mooncake::store
