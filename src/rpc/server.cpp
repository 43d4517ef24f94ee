// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/fork.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "net/socket.h"
#include "rpc/io_loop.h"
#include "rpc/rpc.h"
#include "rpc/session.h"

namespace mooncake::rpc {

namespace {

constexpr int kAcceptsMax = 64;          // before the other connections have their turn
constexpr Duration kAcceptPause = 50ms;  // when descriptors or memory ran out

std::string peer_text(int fd) {
    net::SocketAddress address;
    address.length = sizeof address.storage;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return "?";
    std::string text = address.to_string();
    // A dual-stack socket shows IPv4 peers as [::ffff:10.0.0.1]:80.
    constexpr std::string_view kMapped = "[::ffff:";
    if (text.starts_with(kMapped) && text.find('.') != std::string::npos) {
        text.erase(text.find(']'), 1);
        text.erase(0, kMapped.size());
    }
    return text;
}

/// One loop and its sessions; the list is only touched on the loop.
struct Lane {
    std::shared_ptr<IoLoop> loop;
    std::unique_ptr<SessionList> sessions;
};

/// Takes new connections and deals them out to the lanes. Lives on the first lane's loop.
class Acceptor final : public IoHandler, public std::enable_shared_from_this<Acceptor> {
public:
    Acceptor(net::Socket socket, std::shared_ptr<ServerShared> shared, std::vector<Lane>& lanes)
        : socket_(std::move(socket)), shared_(std::move(shared)), lanes_(lanes) {}

    void open() {
        if (!socket_) return;  // closed meanwhile
        auto watch = IoLoop::Watch::open(*lanes_[0].loop, socket_.fd());
        if (!watch) {
            MC_LOG_WARNING_EVERY(10s, "rpc port {} cannot be served now: {}", shared_->port, watch.error().to_string());
            return after_pause([](Acceptor& self) { self.open(); });
        }
        watch_ = std::move(*watch);
        watch_->wait_readable(shared_from_this());
    }
    void close() {
        timer_.reset();
        watch_.reset();
        socket_.reset();
    }

private:
    void on_readable() override {
        if (!watch_) return;
        for (int i = 0; i < kAcceptsMax; ++i) {
            net::Socket socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (socket) {
                take(std::move(socket));
                continue;
            }
            const int status = errno;
            if (status == EAGAIN || status == EWOULDBLOCK) break;
            if (status == EMFILE || status == ENFILE || status == ENOBUFS || status == ENOMEM) return pause(status);
            // Everything else concerns one connection that is already gone.
        }
        watch_->wait_readable(shared_from_this());
    }
    void on_writable() override {}

    /// The waiting connections would wake us at once: give others time to close some.
    void pause(int status) {
        MC_LOG_WARNING_EVERY(10s, "rpc port {} cannot accept connections now: errno {}", shared_->port, status);
        after_pause([](Acceptor& self) { self.on_readable(); });
    }
    void after_pause(void (*task)(Acceptor&)) {
        if (!timer_) timer_ = std::make_unique<IoLoop::Timer>(*lanes_[0].loop);
        timer_->set(Clock::now() + kAcceptPause, [self = shared_from_this(), task] { task(*self); });
    }

    void take(net::Socket socket) {
        if (shared_->connections.load(std::memory_order_relaxed) >= shared_->options.connections_max) {
            MC_LOG_WARNING_EVERY(10s, "rpc port {} has {} connections and takes no more", shared_->port, shared_->options.connections_max);
            return;
        }
        shared_->connections.fetch_add(1, std::memory_order_relaxed);
        net::tune(socket.fd());
        // A host that vanished with an answer under way: keep-alive does not run then, and the kernel would repeat it for a quarter of an hour.
        net::limit_unconfirmed(socket.fd(), shared_->options.idle_body_timeout);
        std::string address = peer_text(socket.fd());
        Lane& lane = lanes_[next_++ % lanes_.size()];
        if (lane.loop->on_loop()) return lane.sessions->add(std::move(socket), std::move(address));
        // A std::function must be copyable, a socket is not.
        auto moved = std::make_shared<net::Socket>(std::move(socket));
        lane.loop->post([&lane, moved, address = std::move(address)] { lane.sessions->add(std::move(*moved), address); });
    }

    net::Socket socket_;
    const std::shared_ptr<ServerShared> shared_;
    std::vector<Lane>& lanes_;
    std::unique_ptr<IoLoop::Watch> watch_;
    std::unique_ptr<IoLoop::Timer> timer_;
    size_t next_ = 0;
};

/// Everything a server owns; left alone in a forked child, where its threads do not exist.
struct Core {
    std::shared_ptr<ServerShared> shared = std::make_shared<ServerShared>();
    std::vector<Lane> lanes;
    std::shared_ptr<Acceptor> acceptor;
};

class ServerImpl final : public Server {
public:
    explicit ServerImpl(std::unique_ptr<Core> core) : core_(std::move(core)) {}
    ~ServerImpl() override {
        if (fork_generation_ != fork_generation()) (void)core_.release();
        else stop();
    }

    void handle(Method method, Handler handler) override {
        MC_CHECK(!started_);
        auto& handlers = core_->shared->handlers;
        const auto number = static_cast<size_t>(method);
        handlers.resize(std::max(handlers.size(), number + 1));
        handlers[number] = std::move(handler);
    }

    void start() override {
        Lock lock(stop_mutex_);
        if (std::exchange(started_, true) || core_->lanes.empty()) return;
        core_->lanes[0].loop->post([acceptor = core_->acceptor] { acceptor->open(); });
    }

    uint16_t port() const noexcept override { return core_->shared->port; }

    void stop() override {
        if (fork_generation_ != fork_generation()) return;
        const Error why(Code::kUnavailable, "server stopped");
        Lock lock(stop_mutex_);
        // The first lane goes first: its acceptor hands connections to the others.
        for (Lane& lane : core_->lanes) {
            const auto last = [&] {
                if (&lane == core_->lanes.data()) core_->acceptor->close();
                lane.sessions->close_all(why);
            };
            lane.loop->stop([&last] { last(); });  // so small that it needs no memory
        }
        core_->acceptor.reset();
        core_->lanes.clear();  // who has not answered yet holds what it needs
    }

private:
    const uint32_t fork_generation_ = fork_generation();
    std::unique_ptr<Core> core_;
    Mutex stop_mutex_;  // held while it stops
    bool started_ = false;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::create(ServerOptions options) {
    auto core = std::make_unique<Core>();
    auto listening = options.port == 0      ? net::listen_in_range(options.host, options.port_min, options.port_max, options.backlog)
                     : options.host.empty() ? net::listen_on(options.port, options.backlog)
                                            : net::listen_on(options.host, options.port, options.backlog);
    MC_ASSIGN_OR_RETURN(net::Listener listener, std::move(listening));
    core->shared->options = std::move(options);
    core->shared->port = listener.port;
    for (int i = 0; i < std::max(core->shared->options.threads, 1); ++i) {
        MC_ASSIGN_OR_RETURN(auto loop, IoLoop::start(format_text("mc-rpc-serve-{}", i)));
        core->lanes.push_back({.loop = loop, .sessions = std::make_unique<SessionList>(loop, core->shared)});
    }
    core->acceptor = std::make_shared<Acceptor>(std::move(listener.socket), core->shared, core->lanes);
    return std::make_unique<ServerImpl>(std::move(core));
}

}  // namespace mooncake::rpc
