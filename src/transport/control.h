// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "transport/descriptor.h"

namespace mooncake {

/// How the two sides of a transport talk beside their data path: keys, fences, greetings. Carried by the control port every
/// engine has, so that it works when a NIC does not. Small messages (64 KiB), rare, never on the way of a transfer that goes
/// well. Thread-safe.
class ControlPlane {
public:
    using Bytes = std::vector<std::byte>;
    /// Runs on a thread that may block for a moment. What it fails with reaches the caller with its code.
    using Handler = std::function<Result<Bytes>(std::span<const std::byte> request)>;

    virtual ~ControlPlane() = default;

    /// Answers requests for one transport (by its capabilities' name). An empty handler ends it: when it returns, the earlier
    /// one does not run any more. Requests for a transport without a handler fail with kNotSupported.
    virtual void serve(std::string transport, Handler handler) = 0;

    /// Blocks until the answer or the deadline. kUnavailable, kTimedOut; kStale when another incarnation answered; else what the
    /// handler said.
    virtual Result<Bytes> call(const SegmentDescriptor& peer, const std::string& transport, Bytes request, Deadline deadline) = 0;
};

}  // namespace mooncake
