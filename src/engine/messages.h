// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "transport/descriptor.h"

// Bodies of the engine's RPCs (schema/engine.fbs). Pure functions. Decoders accept any bytes: what fails verification or goes
// beyond the limits is kCorrupt. Encoders do not check the limits; the receiver will.
namespace mooncake {

constexpr size_t kSegmentNameBytesMax = 512;
constexpr size_t kHostBytesMax = 512;
constexpr size_t kBootIdBytesMax = 128;
constexpr size_t kEndpointsMax = 32;
constexpr size_t kEndpointBytesMax = 64 << 10;
constexpr size_t kLocationBytesMax = 128;
constexpr size_t kControlBytesMax = 64 << 10;
constexpr size_t kDeviceRangesMax = 4096;         // that we tell of; what is beyond them is found out by trying
constexpr size_t kDeviceRangesLimit = 256 << 10;  // that we believe

struct DescribeRequest {
    std::string segment_name;
    uint32_t buffers_max = 0;
};

std::vector<std::byte> encode_describe_request(const std::string& segment_name, uint32_t buffers_max);
Result<DescribeRequest> decode_describe_request(std::span<const std::byte> body);

std::vector<std::byte> encode_descriptor(const SegmentDescriptor& descriptor);
/// The name, the incarnation and the port are never empty or zero in a decoded descriptor.
Result<SegmentDescriptor> decode_descriptor(std::span<const std::byte> body);

struct NotifyRequest {
    Notification notification;
    Incarnation target;  // whom it is for; none: whoever is there
};

std::vector<std::byte> encode_notification(const Notification& notification, Incarnation target);
/// The only limit is that of the RPC message.
Result<NotifyRequest> decode_notification(std::span<const std::byte> body);

/// What one side of a transport says to the other; the answer is the handler's bytes as they are.
struct ControlRequest {
    std::string transport;
    Incarnation target;  // whom it is for
    std::vector<std::byte> body;
};

std::vector<std::byte> encode_control_request(const ControlRequest& request);
/// Names a transport and a target.
Result<ControlRequest> decode_control_request(std::span<const std::byte> body);

}  // namespace mooncake
