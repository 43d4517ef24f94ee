// SPDX-License-Identifier: Apache-2.0
#include "capi/api_convert.h"

#include <limits>

#include "engine/codes.h"

namespace mooncake::api {

namespace {

std::string_view name_of(Status::Code code) {
    switch (code) {
        case Status::Code::kOk: return "OK";
        case Status::Code::kInvalidArgument: return "InvalidArgument";
        case Status::Code::kTooManyRequests: return "TooManyRequests";
        case Status::Code::kAddressNotRegistered: return "AddressNotRegistered";
        case Status::Code::kBatchBusy: return "BatchBusy";
        case Status::Code::kDeviceNotFound: return "DeviceNotFound";
        case Status::Code::kAddressOverlapped: return "AddressOverlapped";
        case Status::Code::kNotSupportedTransport: return "NotSupportedTransport";
        case Status::Code::kDns: return "Dns";
        case Status::Code::kSocket: return "Socket";
        case Status::Code::kMalformedJson: return "MalformedJson";
        case Status::Code::kRejectHandshake: return "RejectHandshake";
        case Status::Code::kMetadata: return "Metadata";
        case Status::Code::kEndpoint: return "Endpoint";
        case Status::Code::kContext: return "Context";
        case Status::Code::kNuma: return "Numa";
        case Status::Code::kClock: return "Clock";
        case Status::Code::kMemory: return "Memory";
        case Status::Code::kNotImplemented: return "NotImplemented";
    }
    return "Unknown";
}

}  // namespace

std::string Status::ToString() const {
    std::string text(name_of(code_));
    if (!message_.empty()) text.append(": ").append(message_);
    return text;
}

Status to_status(const Error& error) { return {static_cast<Status::Code>(status_code(error)), error.to_string()}; }

Status no_engine() { return Status::InvalidArgument("the engine is not initialized, or was freed"); }

Direction to_direction(TransferRequest::OpCode opcode) noexcept {
    return opcode == TransferRequest::READ ? Direction::kRead : Direction::kWrite;
}

Result<Request> to_request(const TransferRequest& entry) {
    if (entry.opcode != TransferRequest::READ && entry.opcode != TransferRequest::WRITE)
        return fail(Code::kInvalidArgument, "{} is no opcode", static_cast<int>(entry.opcode));
    MC_ASSIGN_OR_RETURN(const SegmentId segment, to_segment(entry.target_id));
    return Request{.direction = to_direction(entry.opcode),
                   .local = static_cast<std::byte*>(entry.source),
                   .segment = segment,
                   .remote = entry.target_offset,
                   .length = entry.length};
}

Result<SegmentId> to_segment(SegmentID segment) {
    if (segment > uint64_t{std::numeric_limits<SegmentId>::max()}) return fail(Code::kNotFound, "there is no segment {}", segment);
    return static_cast<SegmentId>(segment);
}

}  // namespace mooncake::api
