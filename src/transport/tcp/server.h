// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "net/socket.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/io_thread.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"

namespace mooncake::tcp {

/// The target: listens, knows which connections belong to which session, and owns them; they live on the I/O threads. Thread-safe. The I/O threads must be stopped before it is destroyed.
class Server final : public IoHandler {
public:
    static Result<std::unique_ptr<Server>> create(const TransportContext& context, std::vector<std::unique_ptr<IoThread>>& io_threads,
                                                  Staging& staging);
    ~Server();

    uint16_t port() const noexcept { return listener_.port; }
    AccessTable& access() noexcept { return context_.access; }
    Staging& staging() noexcept { return staging_; }
    size_t connections() const;
    /// For good: the port is closed, connections end, and when it returns no peer touches our memory any more. Idempotent; not from an
    /// I/O thread.
    void stop_serving();

    // From connections, on their I/O thread
    /// Judges a hello. Before it accepts one it makes sure that no connection of the sessions that it ends can touch our memory.
    HelloReply greet(Connection& connection, const Hello& hello);
    /// Logs what a peer did wrong, not too often. Returns false, for the convenience of the caller.
    bool complain(const Connection& connection, std::string_view what);
    /// Destroys it.
    void forget(Connection& connection);

    void on_ready(uint32_t events) override;
    void on_tick(Time now) override;
    void on_exception() noexcept override {}  // a connection that was not accepted

private:
    /// The sessions of an initiator that numbers them: the newest ends the others.
    struct Numbered {
        uint64_t newest = 0;
        std::vector<Connection*> connections;         // of the newest session
        std::list<uint64_t> place;                    // what becomes its place in idle_: connections end without memory, too
        std::list<uint64_t>::iterator idle_position;  // in idle_, when there are none
        bool idle = false;
    };

    Server(const TransportContext& context, std::vector<std::unique_ptr<IoThread>>& io_threads, Staging& staging, net::Listener listener)
        : context_(context), io_threads_(io_threads), staging_(staging), listener_(std::move(listener)) {}
    void accept_one(net::Socket socket);
    void set_listening(bool on);
    void close_listener();
    HelloReply greet_numbered(Connection& connection, const Hello& hello) MC_REQUIRES(mutex_);
    void leave_session(Connection& connection) MC_REQUIRES(mutex_);
    void leave_numbered(Connection& connection) MC_REQUIRES(mutex_);

    const TransportContext& context_;
    std::vector<std::unique_ptr<IoThread>>& io_threads_;
    Staging& staging_;
    net::Listener listener_;  // its socket: only the I/O thread of the listener, until stop_serving() took it from there
    IoThread::Token token_ = 0;
    Mutex stop_mutex_;           // held by stop_serving(), taken first
    bool listening_ = true;      // only the I/O thread of the listener
    size_t next_io_thread_ = 0;  // likewise

    mutable Mutex mutex_;  // taken before that of a connection
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_ MC_GUARDED_BY(mutex_);
    std::unordered_map<SessionId, std::vector<Connection*>, SessionId::Hash> sessions_ MC_GUARDED_BY(mutex_);
    std::unordered_map<uint64_t, Numbered> numbered_ MC_GUARDED_BY(mutex_);  // by initiator
    std::list<uint64_t> idle_ MC_GUARDED_BY(mutex_);                         // those without connection, longest first
};

}  // namespace mooncake::tcp
