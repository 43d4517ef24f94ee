// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "mooncake/api/status.h"
#include "mooncake/api/types.h"

// Between the types of the C++ interface and the engine's own.
namespace mooncake::api {

Status to_status(const Error& error);
template <typename T>
Status to_status(const Result<T>& result) {
    return result ? Status::OK() : to_status(result.error());
}
/// What calls on an engine that was not initialized, or is gone, return.
Status no_engine();

Direction to_direction(TransferRequest::OpCode opcode) noexcept;
/// kInvalidArgument for an opcode or a segment that cannot exist.
Result<Request> to_request(const TransferRequest& entry);
/// kNotFound for numbers that no segment has.
Result<SegmentId> to_segment(SegmentID segment);

}  // namespace mooncake::api
