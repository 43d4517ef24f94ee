// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/completion.h"
#include "capi/live_engines.h"
#include "mooncake/api/engine.h"

namespace mooncake::api {

/// The ranges of one scatter operation: one batch each, submitted together, collected in order. One thread at a time. Waits
/// for everything before it is destroyed.
class ScatterTransferOperation::Impl {
public:
    static std::unique_ptr<Impl> submit(capi::EngineHandle handle, std::span<const ScatterTransferRange> ranges);
    explicit Impl(capi::EngineHandle handle) noexcept : handle_(handle) {}
    ~Impl();

    /// The first error, or ok; Clock at the deadline.
    Status wait(Deadline deadline);

private:
    struct Part {
        BatchId batch = 0;
        size_t fragments = 0;
        std::function<void(size_t, const Status&)> on_fragment;  // with it each fragment is a task of its own
        Completion done;
    };

    Result<> start(Engine& engine, const ScatterTransferRange& range);
    bool wait_for(Part& part, Deadline deadline);
    void collect(Part& part);
    void report(Engine& engine, Part& part);

    const capi::EngineHandle handle_;
    std::deque<Part> parts_;  // still to be collected; a deque, because a Completion stays where it is
    Status outcome_;
};

}  // namespace mooncake::api
