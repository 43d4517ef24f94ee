// SPDX-License-Identifier: Apache-2.0
#include "store/bridge/client/node_line.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "net/local_socket.h"
#include "store/bridge/messages.h"
#include "store/protocol/codes.h"

namespace mooncake::store::bridge {

namespace {

constexpr Duration kLook = 1s;                       // how often a thread that waits for an answer looks at its deadline
constexpr Duration kPause = 20ms;                    // between two attempts to find a node: nobody tells us when it comes
constexpr Duration kHelloMin = 1s, kHelloMax = 10s;  // for a node that is there
constexpr int kAttempts = 4;                         // of one call, with different lives of the node

}  // namespace

// ---- one connection

Result<std::shared_ptr<Connection>> Connection::open(const std::string& name, Deadline deadline) {
    MC_ASSIGN_OR_RETURN(net::Socket socket, net::connect_local(name, deadline));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(kLook).count();
    const timeval look{.tv_sec = seconds, .tv_usec = 0};
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &look, sizeof look);
    auto connection = std::make_shared<Connection>(std::move(socket));
    MC_ASSIGN_OR_RETURN(const auto body, connection->call(Kind::kHello, encode_request({}), -1,
                                                          Deadline::after(std::clamp<Duration>(deadline.left(), kHelloMin, kHelloMax))));
    MC_RETURN_IF_ERROR(decode_reply(body));
    return connection;
}

void Connection::break_off() noexcept {
    broken_.store(true, std::memory_order_release);
    ::shutdown(socket_.fd(), SHUT_RDWR);  // wakes who reads, who wakes the others
}

bool Connection::looks_alive() const noexcept {
    pollfd state{.fd = socket_.fd(), .events = POLLRDHUP, .revents = 0};
    return !broken() && ::poll(&state, 1, 0) == 0;
}

Result<> Connection::send(Kind kind, uint64_t request, std::span<const std::byte> body, int file, Deadline deadline) {
    const Head head{
        .kind = kind, .request = request, .boot_high = boot_.high, .boot_low = boot_.low, .table = table_.load(std::memory_order_acquire)};
    for (;;) {
        auto sent = send_frame(socket_.fd(), head, body, file);
        if (sent || sent.error().code() != Code::kBusy) return sent;
        if (!net::wait_ready(socket_.fd(), POLLOUT, deadline)) return fail(Code::kTimedOut, "the node does not read");
    }
}

void Connection::wake_all() {
    for (const auto& [request, waiter] : waiters_) waiter->wake.notify_one();
}

void Connection::deliver(const Frame& frame) {
    // The node counts the changes of our table; an answer may be overtaken by a newer one.
    uint64_t known = table_.load(std::memory_order_relaxed);
    while (known < frame.head.table && !table_.compare_exchange_weak(known, frame.head.table, std::memory_order_release)) {}
    const auto found = waiters_.find(frame.head.request);
    if (found == waiters_.end()) return;
    Waiter& waiter = *found->second;
    if (!boot_) boot_ = frame.head.boot();  // the answer to our hello; nobody else is here yet
    waiter.body.assign(frame.body.begin(), frame.body.end());
    waiter.stale = frame.head.kind == Kind::kStale;
    waiter.done = true;
    waiter.wake.notify_one();
}

void Connection::read_one() {
    auto frame = receive_frame(socket_.fd(), room_, true);
    Lock lock(mutex_);
    if (frame) return deliver(*frame);
    if (frame.error().code() == Code::kBusy) return;  // time for a look at the deadline
    broken_.store(true, std::memory_order_release);
}

Result<std::vector<std::byte>> Connection::call(Kind kind, std::span<const std::byte> body, int file, Deadline deadline) {
    Waiter me;
    const uint64_t request = next_request_.fetch_add(1, std::memory_order_relaxed);
    {
        Lock lock(mutex_);
        waiters_.emplace(request, &me);
    }
    auto sent = send(kind, request, body, file, deadline);
    if (!sent && sent.error().code() == Code::kUnavailable) broken_.store(true, std::memory_order_release);
    std::unique_lock lock(mutex_);
    while (sent && !me.done && !broken() && !deadline.passed()) {
        if (reading_) {
            me.wake.wait_until(lock, std::min(deadline.at(), Clock::now() + kLook));
            continue;
        }
        reading_ = true;
        lock.unlock();
        read_one();
        lock.lock();
        reading_ = false;
    }
    waiters_.erase(request);
    if (broken()) wake_all();
    else if (!reading_ && !waiters_.empty()) waiters_.begin()->second->wake.notify_one();  // the next one reads
    if (me.done && !me.stale) return std::move(me.body);
    if (me.done) return fail(Code::kStale, "the node does not know us");
    if (!sent && sent.error().code() != Code::kUnavailable) return Unexpected(std::move(sent).error());
    if (sent && !broken()) return fail(Code::kTimedOut, "the node does not answer");
    return fail(Code::kUnavailable, "the connection to the node ended");
}

// ---- whichever node is there

NodeLine::NodeLine(uint16_t port, Options options) : name_(socket_name(port)), options_(options) {}

bool NodeLine::pause(Deadline deadline) {
    Lock lock(pause_mutex_);
    const Time until = std::min(deadline.at(), Clock::now() + kPause);
    while (!closed_.load(std::memory_order_acquire) && Clock::now() < until) closing_.wait_until(pause_mutex_, until);
    return !closed_.load(std::memory_order_acquire) && !deadline.passed();
}

Result<> NodeLine::map(Connection& connection, uint32_t entry, const HostBlock& block, Deadline deadline) {
    const SharedPiece piece{.entry = entry, .offset = 0, .length = block.length()};
    Request request;
    request.pieces = {&piece, 1};
    MC_ASSIGN_OR_RETURN(const auto body, connection.call(Kind::kMap, encode_request(request), block.fd(), deadline));
    MC_ASSIGN_OR_RETURN(const Reply reply, decode_reply(body));
    if (reply.numbers.size() != 1 || reply.numbers.front() != 0)
        return fail(Code::kRefused, "the node does not take {} bytes of memory: {}", block.length(),
                    reply.numbers.empty() ? "" : store_code_name(static_cast<StoreCode>(reply.numbers.front())));
    return {};
}

Result<> NodeLine::replay(Connection& connection, Deadline deadline) {
    for (const auto& [entry, block] : entries_) MC_RETURN_IF_ERROR(map(connection, entry, *block, deadline));
    return {};
}

Result<NodeLine::ConnectionRef> NodeLine::reconnect(Deadline deadline) {
    for (;;) {
        if (closed_.load(std::memory_order_acquire)) return fail(Code::kCancelled, "this client is closed");
        auto opened = Connection::open(name_, deadline);
        if (opened) {
            auto replayed = replay(**opened, Deadline::after(options_.call_timeout));
            if (replayed) {
                if (connections_.fetch_add(1, std::memory_order_relaxed) > 0)
                    MC_LOG_INFO("the node of {} is back; {} pieces of memory were handed over", name_, entries_.size());
                return std::move(*opened);
            }
            opened = Unexpected(std::move(replayed).error());
        }
        // A refusal may be about the moment: memory of a client that is just going.
        if (!pause(deadline)) return Unexpected(std::move(opened).error());
    }
}

Result<NodeLine::ConnectionRef> NodeLine::current(Deadline deadline) {
    {
        Lock lock(mutex_);
        if (connection_ && !connection_->broken()) return connection_;
    }
    Lock connecting(connect_mutex_);
    {
        Lock lock(mutex_);
        if (connection_ && !connection_->broken()) return connection_;  // another thread was quicker
    }
    MC_ASSIGN_OR_RETURN(ConnectionRef opened, reconnect(deadline));
    Lock lock(mutex_);
    connection_ = opened;
    if (closed_.load(std::memory_order_acquire)) opened->break_off();
    return opened;
}

Result<> NodeLine::connect() {
    MC_RETURN_IF_ERROR(current(Deadline::after(options_.reconnect_wait)));
    return {};
}

Result<std::vector<std::byte>> NodeLine::call(Kind kind, std::span<const std::byte> body, bool repeatable) {
    const Deadline deadline = Deadline::after(options_.call_timeout);
    for (int attempt = 1;; ++attempt) {
        MC_ASSIGN_OR_RETURN(const ConnectionRef connection, current(Deadline::after(options_.reconnect_wait).earlier(deadline)));
        auto answer = connection->call(kind, body, -1, deadline);
        if (answer) return answer;
        if (closed_.load(std::memory_order_acquire)) return fail(Code::kCancelled, "this client is closed");
        const Code code = answer.error().code();
        // One that hangs must not touch our memory when it goes on: it finds the connection ended.
        if (code == Code::kStale || code == Code::kTimedOut) connection->break_off();
        const bool again = code == Code::kStale || (code == Code::kUnavailable && repeatable);
        if (!again || attempt == kAttempts) return answer;
    }
}

Result<std::vector<std::byte>> NodeLine::call_once(Kind kind, std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const ConnectionRef connection, current(Deadline::after(0s)));
    return connection->call(kind, body, -1, Deadline::after(kHelloMax));
}

Result<uint32_t> NodeLine::share(std::shared_ptr<HostBlock> block) {
    Lock connecting(connect_mutex_);
    const uint32_t entry = next_entry_++;
    const HostBlock& memory = *block;
    entries_.emplace(entry, std::move(block));
    for (int attempt = 1;; ++attempt) {
        ConnectionRef connection;
        {
            Lock lock(mutex_);
            connection = connection_;
        }
        Result<> mapped;
        if (connection && !connection->broken()) {
            mapped = map(*connection, entry, memory, Deadline::after(options_.call_timeout));
        } else {
            auto opened = reconnect(Deadline::after(options_.reconnect_wait));  // hands over this one, too
            if (opened) {
                Lock lock(mutex_);
                connection_ = std::move(*opened);
            } else {
                mapped = Unexpected(std::move(opened).error());
            }
        }
        if (mapped) return entry;
        const Code code = mapped.error().code();
        if (connection && (code == Code::kStale || code == Code::kTimedOut)) connection->break_off();
        if ((code == Code::kStale || code == Code::kUnavailable) && attempt < kAttempts && connection && connection->broken()) continue;
        entries_.erase(entry);
        return Unexpected(std::move(mapped).error());
    }
}

void NodeLine::unshare(uint32_t entry) {
    Lock connecting(connect_mutex_);
    if (entries_.erase(entry) == 0) return;
    ConnectionRef connection;
    {
        Lock lock(mutex_);
        connection = connection_;
    }
    if (!connection || connection->broken()) return;  // the next one will not hear of it
    const SharedPiece piece{.entry = entry};
    Request request;
    request.pieces = {&piece, 1};
    const auto answer = connection->call(Kind::kUnmap, encode_request(request), -1, Deadline::after(options_.call_timeout));
    if (!answer && answer.error().code() != Code::kUnavailable) connection->break_off();
}

void NodeLine::close() noexcept {
    if (born_ != fork_generation()) return;  // the connection is our parent's
    closed_.store(true, std::memory_order_release);
    {
        Lock lock(pause_mutex_);
        closing_.notify_all();
    }
    Lock lock(mutex_);
    if (connection_) connection_->break_off();
}

}  // namespace mooncake::store::bridge
