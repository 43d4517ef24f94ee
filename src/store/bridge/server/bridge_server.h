// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "net/socket.h"
#include "store/bridge/server/guest.h"
#include "store/process/store_client.h"

namespace mooncake::store::bridge {

struct BridgeOptions {
    uint16_t port = 50052;  // names the socket
    int threads = 16;       // calls that are carried out at a time, at most
    Guest::Limits guest;
};

/// Serves the thin clients of a node. Its threads wait for all connections together; who gets a request carries it out itself, and sees to it that another one waits:
/// one wake-up per call, no thread per client. One of them always waits, so that a client's end is seen at once whatever the others do.
///
/// Thread-safe. Borrows the node, which must outlive it.
class BridgeServer {
public:
    /// kUnavailable: somebody else serves this port.
    static Result<std::unique_ptr<BridgeServer>> start(StoreClient& node, BridgeOptions options);
    BridgeServer(StoreClient& node, BridgeOptions options, net::Socket listener, net::Socket poll, std::unique_ptr<net::Interrupt> end);
    ~BridgeServer();

    /// Ends all connections and lets nobody in any more. Calls under way go on.
    void hang_up();
    /// Waits for calls under way, which end when the node is closed. Idempotent.
    void stop();

    BootId boot() const noexcept { return boot_; }
    size_t guests() const;
    size_t threads() const;

private:
    using GuestRef = std::shared_ptr<Guest>;
    struct Job {
        uint64_t number = 0;
        GuestRef guest;
        Frame frame;
    };

    Result<> start_thread() MC_REQUIRES(mutex_);
    void run();
    void accept_all();
    void handle(uint64_t number, uint32_t events, PacketRoom& room);
    void carry_out(Job job);
    /// Then this thread, which waited for clients, may do something else.
    bool another_waits() MC_REQUIRES(mutex_);
    /// What was put aside meanwhile; then it waits again.
    void look_for_jobs();
    /// Whether this thread may: another one waits for clients then. Otherwise it was put aside.
    bool may_carry_out(Job& job);
    void arm(uint64_t number, const Guest& guest, bool reading);
    GuestRef find(uint64_t number) const;
    /// `waits`: the caller counts as one that waits for clients.
    void end(uint64_t number, bool waits);

    static constexpr size_t kGuestsMax = 1024;
    static constexpr uint64_t kListener = 0, kEnd = 1, kFirstGuest = 2;

    StoreClient& node_;
    const BridgeOptions options_;
    const BootId boot_;
    net::Socket listener_;
    const net::Socket poll_;
    const std::unique_ptr<net::Interrupt> end_;
    mutable Mutex mutex_;
    std::map<uint64_t, GuestRef> guests_ MC_GUARDED_BY(mutex_);
    uint64_t next_guest_ MC_GUARDED_BY(mutex_) = kFirstGuest;
    bool open_ MC_GUARDED_BY(mutex_) = true;
    bool listening_ MC_GUARDED_BY(mutex_) = true;
    std::vector<std::jthread> threads_ MC_GUARDED_BY(mutex_);
    size_t waiting_ MC_GUARDED_BY(mutex_) = 0;    // threads that wait for clients
    std::deque<Job> jobs_ MC_GUARDED_BY(mutex_);  // that no thread was left for; one per client
};

}  // namespace mooncake::store::bridge
