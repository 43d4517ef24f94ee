// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "store/protocol/tiers.h"

/// Values between memory and disks: see messages.h.
namespace mooncake::store {

constexpr size_t kCopyEndsMax = 1 << 16;  // in one request
constexpr size_t kGoneMax = 1 << 16;
constexpr size_t kStageItemsMax = 4096;
constexpr size_t kLeasesMax = 1 << 16;

/// As in messages_objects.h.
struct ReceivedCopiesEnd {
    CopiesEnd request;
    std::vector<CopyEnd> items;
};
struct ReceivedReplicasGone {
    ReplicasGone request;
    std::vector<GoneReplica> items;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedStage {
    StageRequest request;
    std::vector<StageItem> items;
    std::unique_ptr<uint64_t[]> copy;
};

/// Answered with CodesReply.
std::vector<std::byte> encode_copies_end(const CopiesEnd& request);
Result<ReceivedCopiesEnd> decode_copies_end(std::span<const std::byte> body);
/// Answered with a code.
std::vector<std::byte> encode_replicas_gone(const ReplicasGone& request);
Result<ReceivedReplicasGone> decode_replicas_gone(std::span<const std::byte> body);

std::vector<std::byte> encode_stage_request(const StageRequest& request);
Result<ReceivedStage> decode_stage_request(std::span<const std::byte> body);
std::vector<std::byte> encode_stage_reply(const StageReply& reply);
Result<StageReply> decode_stage_reply(std::span<const std::byte> body);
/// Answered with a code.
std::vector<std::byte> encode_release_request(const ReleaseRequest& request);
Result<ReleaseRequest> decode_release_request(std::span<const std::byte> body);

}  // namespace mooncake::store
