// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/socket.h"
#include "store/bridge/client/host_memory.h"
#include "store/bridge/frame.h"

namespace mooncake::store::bridge {

/// One connection to one life of a node. Whoever waits for an answer reads for all, one thread at a time. Thread-safe.
class Connection {
public:
    /// Connects and says hello. kUnavailable: there is no node; kTimedOut; kRefused: one that we do not understand.
    static Result<std::shared_ptr<Connection>> open(const std::string& name, Deadline deadline);
    explicit Connection(net::Socket socket) : socket_(std::move(socket)) {}

    /// The body of the answer. kUnavailable: the connection ended, and nobody knows whether it was carried out; kStale: it was not;
    /// kTimedOut; kNoSpace: no memory for the request, which was not sent.
    Result<std::vector<std::byte>> call(Kind kind, std::span<const std::byte> body, int file, Deadline deadline);
    /// Ends all calls.
    void break_off() noexcept;
    bool broken() const noexcept { return broken_.load(std::memory_order_acquire); }
    /// Whether the node's end of it is still there, without asking.
    bool looks_alive() const noexcept;

private:
    struct Waiter {
        bool done = false, stale = false;
        std::vector<std::byte> body;
        std::condition_variable_any wake;
    };

    Result<> send(Kind kind, uint64_t request, std::span<const std::byte> body, int file, Deadline deadline);
    void read_one();
    void deliver(const Frame& frame) MC_REQUIRES(mutex_);
    void wake_all() MC_REQUIRES(mutex_);

    const net::Socket socket_;
    std::atomic<bool> broken_{false};
    std::atomic<uint64_t> next_request_{1}, table_{0};
    BootId boot_;  // constant after open()
    Mutex mutex_;
    bool reading_ MC_GUARDED_BY(mutex_) = false;
    std::map<uint64_t, Waiter*> waiters_ MC_GUARDED_BY(mutex_);
    PacketRoom room_;  // of the thread that reads
};

/// The way to the node of a port, whichever life of it is there: connects when somebody calls, and again when it was lost, and hands over then all memory that is
/// shared. Thread-safe.
class NodeLine {
public:
    struct Options {
        Duration reconnect_wait = 5s;  // for a node that is not there
        Duration call_timeout = 120s;  // against a node that hangs
    };
    NodeLine(uint16_t port, Options options);
    ~NodeLine() { close(); }

    /// kUnavailable: nobody is there, in the time there is.
    Result<> connect();
    /// The body of the answer. A call that was broken off is made again, unless it is not `repeatable`: kUnavailable then.
    Result<std::vector<std::byte>> call(Kind kind, std::span<const std::byte> body, bool repeatable = true);
    /// The same, without patience for a node that is not there.
    Result<std::vector<std::byte>> call_once(Kind kind, std::span<const std::byte> body);

    /// Shares memory: the entry's number, which stays the same whatever node is there. kRefused: the node does not take it.
    Result<uint32_t> share(std::shared_ptr<HostBlock> block);
    /// Returns when no call of ours touches it any more.
    void unshare(uint32_t entry);

    /// Ends calls under way; later ones are refused (kCancelled). Idempotent.
    void close() noexcept;
    /// How often a connection was made.
    uint64_t connections() const noexcept { return connections_.load(std::memory_order_relaxed); }

private:
    using ConnectionRef = std::shared_ptr<Connection>;

    Result<ConnectionRef> current(Deadline deadline);
    Result<ConnectionRef> reconnect(Deadline deadline) MC_REQUIRES(connect_mutex_);
    Result<> replay(Connection& connection, Deadline deadline) MC_REQUIRES(connect_mutex_);
    static Result<> map(Connection& connection, uint32_t entry, const HostBlock& block, Deadline deadline);
    bool pause(Deadline deadline);

    const uint32_t born_ = fork_generation();
    const std::string name_;
    const Options options_;
    std::atomic<uint64_t> connections_{0};
    std::atomic<bool> closed_{false};
    Mutex pause_mutex_;
    std::condition_variable_any closing_;

    Mutex connect_mutex_;  // held while the table or the connection changes
    std::map<uint32_t, std::shared_ptr<HostBlock>> entries_ MC_GUARDED_BY(connect_mutex_);
    uint32_t next_entry_ MC_GUARDED_BY(connect_mutex_) = 1;
    Mutex mutex_;
    ConnectionRef connection_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store::bridge
