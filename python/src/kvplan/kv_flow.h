// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/thread_annotations.h"
#include "completion_port.h"
#include "interpreter.h"
#include "kvflow/flow.h"
#include "transfer_engine.h"

namespace mooncake::python {

/// A plan with the ranks it was made of.
struct KvPlan {
    std::vector<kvplan::Rank> sources, targets;
    kvplan::Plan plan;
};

/// What one submit() of a flow started. Thread-safe. In a forked child, where nobody could ever end it, it is done and has failed.
class KvStep {
public:
    /// Once, by any thread; wakes whoever waits.
    void end(const Result<uint64_t>& outcome);
    /// Puts the token into the port when it is done. Any number may be told.
    void tell(const CompletionPort& port, uint64_t token);

    bool done() const;
    /// False at the deadline.
    bool wait(Deadline deadline) const;
    /// Only when done.
    Result<uint64_t> outcome() const;

private:
    struct Listener {
        CompletionPort port;
        uint64_t token = 0;
    };
    /// Else some thread of the parent may have held the mutex when this process was forked.
    bool ours() const noexcept { return fork_generation() == born_; }

    const uint32_t born_ = fork_generation();
    mutable Mutex mutex_;
    mutable std::condition_variable_any ended_;
    std::optional<Result<uint64_t>> outcome_ MC_GUARDED_BY(mutex_);
    std::vector<Listener> listeners_ MC_GUARDED_BY(mutex_);
};

/// A flow that closes by itself when the interpreter exits.
class ClosableFlow {
public:
    explicit ClosableFlow(std::unique_ptr<kvplan::Flow> flow) : flow_(std::move(flow)) {}
    kvplan::Flow& operator*() const noexcept { return *flow_; }
    kvplan::Flow* operator->() const noexcept { return flow_.get(); }
    /// When it returns nothing of the flow moves any more.
    void close() {
        flow_->cancel();
        (void)flow_->wait(Deadline::never());
    }

private:
    const std::unique_ptr<kvplan::Flow> flow_;
};

/// The Python class _Flow. Methods are entered and left with the interpreter lock.
class KvFlow {
public:
    KvFlow(const InnerEngine& engine, const KvPlan& plan, uint32_t rank, bool writes, std::optional<Notification> notification,
           double timeout);

    std::shared_ptr<KvStep> submit(const std::string& layer, nb::handle after);
    void cancel();
    void close();
    const kvplan::Flow& flow() const;

private:
    EngineRef engine_;  // outlives the flow
    NativeRef<ClosableFlow> flow_;
};

/// Seconds, as Python counts them; nothing or less than nothing that can be counted: for ever.
Deadline deadline_from(std::optional<double> seconds);

}  // namespace mooncake::python
