// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "store/protocol/segments.h"

/// Mounting and liveness: see messages.h. The request for the list of segments is empty.
namespace mooncake::store {

constexpr size_t kHeldSegmentsMax = 4096;  // in one request

/// As in messages_objects.h.
struct ReceivedRemount {
    struct Held {
        std::vector<HeldObject> objects;
        std::vector<HeldWrite> writes;
        std::vector<HeldQuarantine> quarantined;
    };
    RemountRequest request;
    std::vector<HeldSegment> segments;
    std::vector<Held> held;  // what the segments span
    std::vector<Behind> behind;
    std::unique_ptr<uint64_t[]> copy;
};
struct ReceivedFailureReport {
    FailureReport report;
    std::vector<SegmentId> segments;
};

std::vector<std::byte> encode_mount_request(const MountRequest& request);
Result<MountRequest> decode_mount_request(std::span<const std::byte> body);
std::vector<std::byte> encode_remount_request(const RemountRequest& request);
Result<ReceivedRemount> decode_remount_request(std::span<const std::byte> body);
std::vector<std::byte> encode_remount_reply(const RemountReply& reply);
Result<RemountReply> decode_remount_reply(std::span<const std::byte> body);
std::vector<std::byte> encode_unmount_request(const UnmountRequest& request);
Result<UnmountRequest> decode_unmount_request(std::span<const std::byte> body);

/// Of heartbeat, goodbye and follow.
std::vector<std::byte> encode_client_request(const ClientId& client);
Result<ClientId> decode_client_request(std::span<const std::byte> body);
std::vector<std::byte> encode_heartbeat_reply(const HeartbeatReply& reply);
Result<HeartbeatReply> decode_heartbeat_reply(std::span<const std::byte> body);
std::vector<std::byte> encode_failure_report(const FailureReport& report);
Result<ReceivedFailureReport> decode_failure_report(std::span<const std::byte> body);

std::vector<std::byte> encode_segments_reply(const SegmentsReply& reply);
Result<SegmentsReply> decode_segments_reply(std::span<const std::byte> body);

/// Of mount, unmount, goodbye, report_failures and end_task.
std::vector<std::byte> encode_code_reply(StoreCode code);
Result<StoreCode> decode_code_reply(std::span<const std::byte> body);

}  // namespace mooncake::store
