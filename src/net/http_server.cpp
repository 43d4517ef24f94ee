// SPDX-License-Identifier: Apache-2.0
#include "net/http_server.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/system/system_error.hpp>
#include <condition_variable>
#include <list>
#include <map>
#include <optional>
#include <thread>

#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/thread_annotations.h"
#include "net/http_routes.h"
#include "net/socket.h"

namespace mooncake::net {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr uint32_t kHeaderBytesMax = 64 * 1024;
constexpr uint64_t kDrainBytesMax = 1 << 20;

class Session;

/// The connections that live, so that stop() can reach and await them, and those that wait for a request. Thread-safe.
class SessionTable {
public:
    uint64_t add() {
        Lock lock(mutex_);
        sessions_.emplace(++last_id_, Entry{});
        return last_id_;
    }
    void set(uint64_t id, const std::shared_ptr<Session>& session) {
        Lock lock(mutex_);
        sessions_[id].session = session;
    }
    void remove(uint64_t id) {
        Lock lock(mutex_);
        const auto found = sessions_.find(id);
        if (found->second.idle) idle_.erase(found->second.place);
        if (found->second.leaving) --leaving_;
        sessions_.erase(found);
        if (sessions_.empty()) empty_.notify_all();
    }
    void set_idle(uint64_t id, bool idle) {
        Lock lock(mutex_);
        Entry& entry = sessions_.find(id)->second;
        if (entry.leaving || entry.idle == idle) return;
        entry.idle = idle;
        if (idle) entry.place = idle_.insert(idle_.end(), id);
        else idle_.erase(entry.place);
    }
    /// Without those that were told to go.
    size_t size() {
        Lock lock(mutex_);
        return sessions_.size() - leaving_;
    }
    /// The one that has waited longest, which the caller tells to go; null: none waits.
    std::shared_ptr<Session> take_idle() {
        Lock lock(mutex_);
        while (!idle_.empty()) {
            Entry& entry = sessions_.find(idle_.front())->second;
            idle_.pop_front();
            entry.idle = false;
            entry.leaving = true;
            ++leaving_;
            if (auto session = entry.session.lock()) return session;
        }
        return nullptr;
    }
    std::vector<std::shared_ptr<Session>> all() {
        Lock lock(mutex_);
        std::vector<std::shared_ptr<Session>> found;
        for (const auto& [id, entry] : sessions_)
            if (auto alive = entry.session.lock()) found.push_back(std::move(alive));
        return found;
    }
    bool wait_empty(Deadline deadline) {
        Lock lock(mutex_);
        while (!sessions_.empty() && !deadline.passed()) empty_.wait_until(mutex_, deadline.at());
        return sessions_.empty();
    }

private:
    struct Entry {
        std::weak_ptr<Session> session;
        bool idle = false;
        bool leaving = false;
        std::list<uint64_t>::iterator place{};  // in idle_, while idle
    };

    Mutex mutex_;
    std::condition_variable_any empty_;
    std::map<uint64_t, Entry> sessions_ MC_GUARDED_BY(mutex_);
    std::list<uint64_t> idle_ MC_GUARDED_BY(mutex_);  // the longest first
    size_t leaving_ MC_GUARDED_BY(mutex_) = 0;
    uint64_t last_id_ MC_GUARDED_BY(mutex_) = 0;
};

struct Shared {
    const HttpServerOptions options;
    HttpRoutes routes;
    SessionTable sessions;
};

/// One connection: reads a request, answers it, again. Kept alive by its pending operation; everything runs on its strand.
class Session : public std::enable_shared_from_this<Session> {
public:
    Session(Shared& shared, uint64_t id, Tcp::socket socket)
        : shared_(shared), id_(id), socket_(std::move(socket)), timer_(socket_.get_executor()) {
        close_in_child(socket_.native_handle());
        ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
        tune(socket_.native_handle());
    }
    ~Session() {
        close();
        shared_.sessions.remove(id_);
    }

    void start() {
        asio::dispatch(socket_.get_executor(), [self = shared_from_this()] { self->read_header(); });
    }
    /// Closes when idle; otherwise the running request is still answered.
    void request_stop() {
        asio::post(socket_.get_executor(), [self = shared_from_this()] {
            self->stopping_ = true;
            if (self->idle_) self->close();
        });
    }

private:
    using Parser = http::request_parser<http::string_body>;

    void read_header() {
        parser_.emplace();
        parser_->header_limit(kHeaderBytesMax);
        parser_->body_limit(shared_.options.body_bytes_max);
        set_idle(true);
        if (stopping_) return close();
        close_after(shared_.options.idle_timeout);
        http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](beast::error_code status, size_t) {
            self->set_idle(false);
            if (status) return self->read_failed(status);
            self->read_body();
        });
    }
    void set_idle(bool idle) {
        idle_ = idle;
        shared_.sessions.set_idle(id_, idle);
    }

    void read_body() {
        close_after(shared_.options.request_timeout);
        if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) return send_continue();
        http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](beast::error_code status, size_t) {
            if (status) return self->read_failed(status);
            self->answer();
        });
    }

    void send_continue() {
        parser_->get().erase(http::field::expect);
        static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
        asio::async_write(socket_, asio::buffer(kContinue), [self = shared_from_this()](beast::error_code status, size_t) {
            if (!status) self->read_body();
        });
    }

    void read_failed(const beast::error_code& status) {
        if (status.category() != http::make_error_code(http::error::bad_method).category()) return close();  // network, time-out
        if (status == http::error::end_of_stream || status == http::error::partial_message) return close();
        keep_alive_ = false;
        head_ = false;
        if (status == http::error::body_limit) return write({.status = 413, .body = "the body is too large"});
        if (status == http::error::header_limit) return write({.status = 431, .body = "the header is too large"});
        write({.status = 400, .body = "bad request: " + status.message()});
    }

    void answer() {
        auto message = parser_->release();
        keep_alive_ = message.keep_alive();
        head_ = message.method() == http::verb::head;
        chunks_ = message.version() >= 11;
        HttpServerRequest request;
        request.method = message.method_string();
        request.content_type = message[http::field::content_type];
        request.body = std::move(message.body());
        const std::string target = message.target();
        write(shared_.routes.answer(std::move(request), target));
    }

    void write(HttpResponse response) {
        // Who does not know chunks sees the end of a body of unknown length by the end of the connection.
        if (response.pieces && !chunks_) keep_alive_ = false;
        response_ = {};
        response_.version(11);
        response_.result(static_cast<unsigned>(response.status));
        response_.set(http::field::server, "mooncake");
        response_.set(http::field::content_type, response.content_type);
        if (!response.allow.empty()) response_.set(http::field::allow, response.allow);
        if (!response.pieces) response_.content_length(response.body.size());
        else if (chunks_) response_.chunked(true);
        response_.keep_alive(keep_alive_ && !stopping_);
        pieces_ = std::move(response.pieces);
        set_piece(std::move(response.body));
        serializer_.emplace(response_);
        serializer_->split(head_);
        close_when_stuck();
        write_some();
    }

    void write_some() {
        http::async_write_some(socket_, *serializer_, [self = shared_from_this()](beast::error_code status, size_t sent) {
            self->sent_bytes_ += static_cast<int64_t>(sent);
            if (status == http::error::need_buffer) {
                std::string piece = self->pieces_();
                if (piece.empty()) self->pieces_ = nullptr;
                self->set_piece(std::move(piece));
                return self->write_some();
            }
            if (status) return self->close();
            if (!(self->head_ ? self->serializer_->is_header_done() : self->serializer_->is_done())) return self->write_some();
            self->answered();
        });
    }

    /// An empty piece must not become a chunk: that would be the last one.
    void set_piece(std::string piece) {
        piece_ = std::move(piece);
        response_.body().data = piece_.empty() ? nullptr : piece_.data();
        response_.body().size = piece_.size();
        response_.body().more = pieces_ != nullptr;
    }

    void answered() {
        const bool another = response_.keep_alive();
        pieces_ = nullptr;
        piece_ = {};
        if (another) return read_header();
        finish();
    }

    /// Says that nothing follows and reads what the client may still be sending: closing at once would reset the connection
    /// and could take the answer with it.
    void finish() {
        beast::error_code ignored;
        socket_.shutdown(Tcp::socket::shutdown_send, ignored);
        close_after(1s);
        drain(0);
    }
    void drain(uint64_t drained) {
        if (drained > kDrainBytesMax || stopping_) return close();
        buffer_.clear();
        socket_.async_read_some(buffer_.prepare(16 * 1024), [self = shared_from_this(), drained](beast::error_code status, size_t got) {
            if (status) return self->close();
            self->drain(drained + got);
        });
    }

    void close() noexcept {
        timer_.cancel();
        if (!socket_.is_open()) return;
        keep_in_child(socket_.native_handle());
        beast::error_code ignored;
        socket_.close(ignored);
    }

    /// Ends the connection, and with it the operation under way, unless called again before. (Beast's own stream would close
    /// the descriptor without telling keep_in_child().)
    void close_after(Duration duration) {
        timer_.expires_after(duration);
        timer_.async_wait([weak = weak_from_this()](beast::error_code) {
            const auto self = weak.lock();
            if (self && Clock::now() >= self->timer_.expiry()) self->close();
        });
    }

    /// As close_after(), only while the client takes nothing: large answers to slow readers may take long.
    void close_when_stuck() {
        timer_.expires_after(shared_.options.request_timeout);
        timer_.async_wait([weak = weak_from_this(), taken = taken_bytes()](beast::error_code) {
            const auto self = weak.lock();
            if (!self || Clock::now() < self->timer_.expiry()) return;
            if (self->taken_bytes() == taken) return self->close();
            self->close_when_stuck();
        });
    }
    /// What the client has acknowledged. (What the kernel took from us says little: it may hold megabytes and take more only when a third of
    /// them is gone.)
    int64_t taken_bytes() {
        int waiting = 0;
        if (!socket_.is_open() || ::ioctl(socket_.native_handle(), SIOCOUTQ, &waiting) != 0) waiting = 0;
        return sent_bytes_ - waiting;
    }

    Shared& shared_;
    const uint64_t id_;
    Tcp::socket socket_;
    asio::steady_timer timer_;
    beast::flat_buffer buffer_;
    std::optional<Parser> parser_;
    http::response<http::buffer_body> response_;  // refers to piece_
    std::optional<http::response_serializer<http::buffer_body>> serializer_;
    HttpPieces pieces_;  // null: piece_ is the last one
    std::string piece_;
    int64_t sent_bytes_ = 0;
    bool idle_ = true;
    bool keep_alive_ = false;
    bool head_ = false;    // the request is HEAD
    bool chunks_ = false;  // and its sender knows chunks
    bool stopping_ = false;
};

struct Bound {
    UniqueFd fd;
    int family = 0;
    uint16_t port = 0;
};

Result<Bound> listen_at(const SocketAddress& address) {
    UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail_errno(Code::kUnavailable, errno, "cannot create a socket");
    const int on = 1, off = 0;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
        const int reason = errno;  // read before to_string() can change it
        const Code code = reason == EADDRINUSE ? Code::kAlreadyExists : Code::kUnavailable;
        return fail_errno(code, reason, "cannot listen on {}", address.to_string());
    }
    SocketAddress bound;
    bound.length = sizeof bound.storage;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length);
    return Bound{.fd = std::move(fd), .family = bound.family(), .port = bound.port()};
}

Result<Bound> listen_for(const HttpServerOptions& options) {
    Error last(Code::kUnavailable, format_text("'{}' has no address", options.host));
    const std::vector<std::string> hosts = options.host.empty() ? std::vector<std::string>{"::", "0.0.0.0"}
                                                                : std::vector<std::string>{options.host};
    for (const std::string& host : hosts) {
        auto addresses = resolve(host, options.port);
        if (!addresses) {
            last = std::move(addresses).error();
            continue;
        }
        for (const SocketAddress& address : *addresses) {
            auto bound = listen_at(address);
            if (bound || bound.error().code() == Code::kAlreadyExists) return bound;
            last = std::move(bound).error();
        }
    }
    return Unexpected(std::move(last));
}

class BeastServer final : public HttpServer {
public:
    BeastServer(const HttpServerOptions& options, uint16_t port) : port_(port), shared_{.options = options, .routes = {}, .sessions = {}} {}
    ~BeastServer() override { stop(); }

    /// Everything that can fail for want of descriptors or threads.
    Result<> open(Bound bound);

    void handle(const std::string& method, const std::string& path, HttpHandler handler) override {
        MC_CHECK(!started_);
        shared_.routes.add(method, path, std::move(handler));
    }
    uint16_t port() const noexcept override { return port_; }
    void start() override;
    void stop() override;

private:
    struct Asio {
        asio::io_context context;
        asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
        Tcp::acceptor acceptor{asio::make_strand(context)};
        asio::steady_timer retry{acceptor.get_executor()};
    };
    void accept();
    void close_acceptor();
    void accepted(Tcp::socket socket);
    bool close_longest_idle();

    const uint16_t port_;
    const uint32_t generation_ = fork_generation();
    Shared shared_;
    std::unique_ptr<Asio> asio_;  // null once stopped
    std::vector<std::jthread> threads_;
    bool started_ = false;
};

Result<> BeastServer::open(Bound bound) try {
    asio_ = std::make_unique<Asio>();
    close_in_child(bound.fd.get());
    const int fd = bound.fd.release();
    beast::error_code status;
    asio_->acceptor.assign(bound.family == AF_INET6 ? Tcp::v6() : Tcp::v4(), fd, status);
    if (status) {
        keep_in_child(fd);
        ::close(fd);
        return fail_errno(Code::kUnavailable, status.value(), "cannot watch port {}", port_);
    }
    for (int i = 0; i < std::max(shared_.options.threads, 1); ++i) {
        MC_ASSIGN_OR_RETURN(auto thread, try_start_thread(format_text("http-{}", i), [this] { asio_->context.run(); }));
        threads_.push_back(std::move(thread));
    }
    return {};
} catch (const boost::system::system_error& failure) {  // no epoll set
    return fail_errno(Code::kUnavailable, failure.code().value(), "cannot make an epoll set");
}

void BeastServer::start() {
    MC_CHECK(asio_ && !started_);
    started_ = true;
    asio::post(asio_->acceptor.get_executor(), [this] { accept(); });
}

void BeastServer::accept() {
    asio_->acceptor.async_accept(asio::make_strand(asio_->context), [this](beast::error_code status, Tcp::socket socket) {
        if (status == asio::error::operation_aborted || !asio_->acceptor.is_open()) return;
        if (!status) {
            accepted(std::move(socket));
            return accept();
        }
        // Most likely no file descriptor is left. That of somebody who waits will do; trying again at once would only burn a core.
        close_longest_idle();
        MC_LOG_WARNING_EVERY(10s, "http server on port {} cannot accept: {}", port_, status.message());
        asio_->retry.expires_after(100ms);
        asio_->retry.async_wait([this](beast::error_code cancelled) {
            if (!cancelled) accept();
        });
    });
}

/// A client that comes back to it later opens another.
bool BeastServer::close_longest_idle() {
    const std::shared_ptr<Session> session = shared_.sessions.take_idle();
    if (session) session->request_stop();
    return session != nullptr;
}

void BeastServer::accepted(Tcp::socket socket) {
    if (shared_.sessions.size() >= shared_.options.connections_max && !close_longest_idle()) {
        MC_LOG_WARNING_EVERY(10s, "http server on port {} refuses connections beyond {}", port_, shared_.options.connections_max);
        static constexpr std::string_view kBusy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        ::send(socket.native_handle(), kBusy.data(), kBusy.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        return;
    }
    const uint64_t id = shared_.sessions.add();
    auto session = std::make_shared<Session>(shared_, id, std::move(socket));
    shared_.sessions.set(id, session);
    session->start();
}

void BeastServer::stop() {
    if (!asio_) return;
    if (fork_generation() != generation_) {
        // A forked child: the threads are not here and the descriptors are closed already, so nothing may be undone.
        new std::vector<std::jthread>(std::move(threads_));
        (void)asio_.release();
        return;
    }
    if (!threads_.empty()) {
        asio::post(asio_->acceptor.get_executor(), [this] {
            close_acceptor();
            for (const auto& session : shared_.sessions.all()) session->request_stop();
        });
        shared_.sessions.wait_empty(Deadline::after(shared_.options.stop_timeout));
        asio_->context.stop();
        threads_.clear();
    }
    close_acceptor();
    asio_.reset();
}

void BeastServer::close_acceptor() {
    if (!asio_->acceptor.is_open()) return;
    keep_in_child(asio_->acceptor.native_handle());
    beast::error_code ignored;
    asio_->acceptor.close(ignored);
    asio_->retry.cancel();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpServerOptions& options) {
    auto bound = listen_for(options);
    if (!bound) return Unexpected(std::move(bound).error().with_context("http server"));
    auto server = std::make_unique<BeastServer>(options, bound->port);
    if (auto opened = server->open(std::move(*bound)); !opened) return Unexpected(std::move(opened).error().with_context("http server"));
    return server;
}

}  // namespace mooncake::net
