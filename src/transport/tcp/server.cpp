// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/policy.h"

namespace mooncake::tcp {

Result<std::unique_ptr<Server>> Server::create(const TransportContext& context, std::vector<std::unique_ptr<IoThread>>& io_threads,
                                               Staging& staging) {
    MC_ASSIGN_OR_RETURN(auto listener, net::listen_in_range(context.options.bind_address, context.options.port_min,
                                                            context.options.port_max, context.options.listen_backlog));
    std::unique_ptr<Server> server(new Server(context, io_threads, staging, std::move(listener)));
    MC_ASSIGN_OR_RETURN(server->token_, io_threads.front()->add(server->listener_.socket.fd(), *server, EPOLLIN));
    return server;
}

Server::~Server() = default;

size_t Server::connections() const {
    Lock lock(mutex_);
    return connections_.size();
}

void Server::stop_serving() {
    Lock stopping(stop_mutex_);
    close_listener();
    Lock lock(mutex_);
    stopped_ = true;
    // Behind shut() their threads have left our memory. They are destroyed by those threads, when these notice.
    for (const auto& [raw, connection] : connections_) raw->shut();
}

void Server::close_listener() {
    if (!listener_.socket) return;
    IoThread& io = *io_threads_.front();
    io.remove(token_, listener_.socket.fd());
    if (!listening_) io.want_ticks(-1);
    listening_ = true;
    listener_.socket.reset();
}

void Server::set_listening(bool on) {
    if (listening_ == on) return;
    listening_ = on;
    IoThread& io = *io_threads_.front();
    io.change(token_, listener_.socket.fd(), on ? uint32_t{EPOLLIN} : 0);
    io.want_ticks(on ? -1 : 1);
}

void Server::on_tick(Time) { set_listening(true); }

void Server::on_ready(uint32_t) {
    constexpr int kAcceptsAtOnce = 16;  // then the connections have their turn
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
        net::Socket socket(::accept4(listener_.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (socket) {
            accept_one(std::move(socket));
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            MC_LOG_WARNING_EVERY(10s, "tcp: cannot accept a connection (errno {}): out of resources, trying again later", errno);
            set_listening(false);  // until the next tick, or we would be called again at once
        }
        if (errno != EINTR && errno != ECONNABORTED) return;
    }
}

void Server::accept_one(net::Socket socket) {
    tune_data(socket.fd());
    IoThread& io = *io_threads_[next_io_thread_++ % io_threads_.size()];
    auto connection = std::make_unique<Connection>(*this, io, std::move(socket));
    Connection* const raw = connection.get();
    Lock lock(mutex_);
    if (stopped_) return;
    if (connections_.size() >= kConnectionsMax) {
        MC_LOG_WARNING_EVERY(10s, "tcp: {} connections are open, refusing more", connections_.size());
        return;
    }
    // All memory that this needs is there before anybody knows of it. Its first event may come, and even end it, before start() returns;
    // forget() then waits for our mutex.
    decltype(connections_) fresh;
    fresh.emplace(raw, std::move(connection));
    connections_.reserve(connections_.size() + 1);
    if (auto started = raw->start(); started) connections_.merge(fresh);
    else MC_LOG_WARNING_EVERY(10s, "tcp: {}", started.error().to_string());
}

void Server::leave_session(Connection& connection) {
    if (connection.numbered) return leave_numbered(connection);
    const auto found = sessions_.find(connection.session);
    if (found == sessions_.end()) return;
    std::erase(found->second, &connection);
    if (found->second.empty()) sessions_.erase(found);
}

void Server::leave_numbered(Connection& connection) {
    const auto found = numbered_.find(connection.initiator.value);
    if (found == numbered_.end() || std::erase(found->second.connections, &connection) == 0) return;
    Numbered& session = found->second;
    if (!session.connections.empty()) return;
    // No connection of it is left that could apply anything, so it may be forgotten when there are too many.
    session.idle = true;
    session.idle_position = session.place.begin();
    idle_.splice(idle_.end(), session.place);
    if (idle_.size() <= kSessionsRemembered) return;
    numbered_.erase(idle_.front());
    idle_.pop_front();
}

void Server::forget(Connection& connection) {
    std::unique_ptr<Connection> last;
    Lock lock(mutex_);
    leave_session(connection);
    const auto found = connections_.find(&connection);
    last = std::move(found->second);
    connections_.erase(found);
}

bool Server::complain(const Connection& connection, std::string_view what) {
    MC_LOG_WARNING_EVERY(1s, "tcp: closing a connection of engine {}: {}", connection.initiator.to_string(), what);
    return false;
}

HelloReply Server::greet(Connection& connection, const Hello& hello) {
    if (hello.version != kVersion && hello.version != kNumberedSessions)
        return {.status = Status::kRefused,
                .text = format_text("you speak version {} of the tcp transport, we speak {}", hello.version, kVersion)};
    HelloReply answer{.version = hello.version, .features = hello.features & kFeaturesKnown};
    if (hello.target != context_.incarnation) {
        answer.status = Status::kStale;
        answer.text = format_text("this is engine {}, not {}", context_.incarnation.to_string(), hello.target.to_string());
        return answer;
    }
    Lock lock(mutex_);
    if (stopped_) return {.version = hello.version, .status = Status::kStale, .text = "this engine is closed"};
    connection.initiator = hello.initiator;
    if (hello.version == kNumberedSessions) return greet_numbered(connection, hello);
    // The fence. Connections stay alive while we hold our mutex, and never take it while they hold their own.
    for (const SessionId& ended : hello.ended) {
        const auto found = sessions_.find(ended);
        if (found == sessions_.end()) continue;
        for (Connection* const old : found->second) old->shut();
        sessions_.erase(found);
    }
    connection.session = hello.session;
    sessions_[hello.session].push_back(&connection);
    return answer;
}

HelloReply Server::greet_numbered(Connection& connection, const Hello& hello) {
    Numbered& session = numbered_[hello.initiator.value];
    if (hello.number < session.newest)
        return {.version = hello.version,
                .status = Status::kStale,
                .text = format_text("session {} was replaced by {}", hello.number, session.newest)};
    if (session.idle) {
        session.place.splice(session.place.end(), idle_, session.idle_position);
        session.idle = false;
    }
    if (session.place.empty()) session.place.push_back(hello.initiator.value);
    if (hello.number > session.newest) {
        session.newest = hello.number;
        for (Connection* const old : session.connections) old->shut();
        session.connections.clear();
    }
    connection.numbered = true;
    session.connections.push_back(&connection);
    return {.version = hello.version, .features = hello.features & kFeaturesKnown};
}

}  // namespace mooncake::tcp
