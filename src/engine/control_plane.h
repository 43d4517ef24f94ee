// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/gate.h"
#include "base/incarnation.h"
#include "base/thread_annotations.h"
#include "base/thread_pool.h"
#include "rpc/rpc.h"
#include "transport/control.h"

namespace mooncake {

/// The transports' ControlPlane, over the RPCs every engine has. Handlers run on threads of their own, because the engine's others may
/// all wait for answers of a peer whose threads wait for ours. Thread-safe. The client must outlive every call.
class RpcControl final : public ControlPlane {
public:
    RpcControl(rpc::Client& client, Incarnation own) : client_(client), own_(own) {}
    /// No request may arrive any more.
    ~RpcControl() override { threads_.stop(); }

    void serve(std::string transport, Handler handler) override;
    Result<Bytes> call(const SegmentDescriptor& peer, const std::string& transport, Bytes request, Deadline deadline) override;

    /// For rpc::Method::kControl. Returns at once.
    void answer(std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder);

private:
    /// One serve(): closed when another takes its place.
    struct Entry {
        Gate gate;
        Handler handler;
    };

    std::shared_ptr<Entry> find(const std::string& transport);

    rpc::Client& client_;
    const Incarnation own_;
    Mutex mutex_;
    std::map<std::string, std::shared_ptr<Entry>> entries_ MC_GUARDED_BY(mutex_);
    std::atomic<size_t> waiting_{0};  // requests taken and not yet answered
    ThreadPool threads_{{.name = "mc-control", .threads_max = 2}};
};

}  // namespace mooncake
