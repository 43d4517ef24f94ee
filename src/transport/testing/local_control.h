// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/gate.h"
#include "base/incarnation.h"
#include "base/thread_annotations.h"
#include "transport/control.h"

namespace mooncake::testing {

/// A ControlPlane among the hosts of one process: a descriptor's rpc_port says which of them is meant, and its incarnation whether
/// that is still the same. Handlers run on the caller's thread. Thread-safe.
class LocalControl final : public ControlPlane {
public:
    explicit LocalControl(Incarnation own) : own_(own) {
        Lock lock(directory().mutex);
        port_ = ++directory().last_port;
        directory().hosts[port_] = this;
    }
    ~LocalControl() override {
        {
            Lock lock(directory().mutex);
            directory().hosts.erase(port_);
        }
        calls_.close();
    }
    LocalControl(const LocalControl&) = delete;
    LocalControl& operator=(const LocalControl&) = delete;

    uint16_t port() const noexcept { return port_; }
    /// Calls that came here.
    uint64_t answered() const noexcept { return answered_.load(); }

    void serve(std::string transport, Handler handler) override {
        std::shared_ptr<Served> before, fresh;
        if (handler) fresh = std::make_shared<Served>(std::move(handler));
        {
            Lock lock(mutex_);
            before = std::exchange(served_[std::move(transport)], fresh);
        }
        if (before) before->gate.close();
    }

    Result<Bytes> call(const SegmentDescriptor& peer, const std::string& transport, Bytes request, Deadline deadline) override {
        if (deadline.passed()) return fail(Code::kTimedOut, "no time to ask {}", peer.name);
        LocalControl* target = nullptr;
        Gate::Pass inside;
        {
            Lock lock(directory().mutex);
            const auto found = directory().hosts.find(peer.rpc_port);
            if (found == directory().hosts.end()) return fail(Code::kUnavailable, "{} is gone", peer.name);
            target = found->second;
            inside = target->calls_.enter();
        }
        if (target->own_ != peer.incarnation) return fail(Code::kStale, "another incarnation answered");
        std::shared_ptr<Served> served;
        {
            Lock lock(target->mutex_);
            served = target->served_[transport];
        }
        ++target->answered_;
        const Gate::Pass pass = served ? served->gate.enter() : Gate::Pass();
        if (!pass) return fail(Code::kNotSupported, "{} has no transport {}", peer.name, transport);
        return served->handler(request);
    }

private:
    struct Served {
        explicit Served(Handler answer) : handler(std::move(answer)) {}
        const Handler handler;
        Gate gate;  // a call is inside
    };
    struct Directory {
        Mutex mutex;
        std::map<uint16_t, LocalControl*> hosts MC_GUARDED_BY(mutex);
        uint16_t last_port MC_GUARDED_BY(mutex) = 0;
    };
    static Directory& directory() {
        static Directory only;
        return only;
    }

    const Incarnation own_;
    uint16_t port_ = 0;
    std::atomic<uint64_t> answered_{0};
    Gate calls_;  // a call to us is inside
    Mutex mutex_;
    std::map<std::string, std::shared_ptr<Served>> served_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::testing
