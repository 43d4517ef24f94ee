// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/incarnation.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "rpc/rpc.h"
#include "store/protocol/tiers.h"

namespace mooncake::store {

/// Asks other nodes for values on their disks (docs/tiers.md). Connects when it is first needed. Thread-safe.
class NodeCalls {
public:
    explicit NodeCalls(Incarnation incarnation) : incarnation_(incarnation) {}
    ~NodeCalls() { stop(); }

    struct Question {
        std::string service;  // host:port
        StageRequest request;
        Deadline deadline = Deadline::never();
        Time sent{};  // set by stage()
        Result<StageReply> reply = fail(Code::kInternal, "not asked");
    };
    /// Asks all at once, and waits for the answers.
    void stage(std::vector<Question>& questions);
    /// Does not wait: what does not arrive runs out.
    void release(const std::string& service, const std::vector<uint64_t>& leases);

    /// Ends the calls under way, and refuses later ones. Idempotent.
    void stop();

private:
    /// Null: stopped.
    std::shared_ptr<rpc::Client> client();

    const Incarnation incarnation_;
    Mutex mutex_;
    std::shared_ptr<rpc::Client> client_ MC_GUARDED_BY(mutex_);
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mooncake::store
