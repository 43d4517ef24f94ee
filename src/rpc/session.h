// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "rpc/connection.h"
#include "rpc/hello.h"
#include "rpc/rpc.h"

namespace mooncake::rpc {

class Request;
class Session;

/// What all sessions of a server share; outlives them.
struct ServerShared {
    ServerOptions options;
    uint16_t port = 0;
    std::vector<Handler> handlers;       // by method number; constant once the server runs
    std::atomic<size_t> connections{0};  // counted up by the acceptor, down by the session

    HelloMessage hello() const {
        return {.major = options.protocol_major, .message_bytes_max = options.message_bytes_max, .hello = options.hello};
    }
};

/// The sessions of one loop, and the timer that ends those which make no progress. Only on the loop's thread.
class SessionList {
public:
    SessionList(std::shared_ptr<IoLoop> loop, std::shared_ptr<ServerShared> shared);

    void add(net::Socket socket, std::string address);
    void remove(const std::shared_ptr<Session>& session) { sessions_.erase(session); }
    /// Sees to it that check() runs while there is something to watch; an idle server has no timer.
    void watch_progress();
    void close_all(const Error& why);

private:
    void check();

    const std::shared_ptr<IoLoop> loop_;
    const std::shared_ptr<ServerShared> shared_;
    const Duration interval_;
    std::unordered_set<std::shared_ptr<Session>> sessions_;
    std::unique_ptr<IoLoop::Timer> timer_;
    bool watching_ = false;
};

/// The server's end of one connection.
class Session final : public Connection {
public:
    Session(std::shared_ptr<IoLoop> loop, net::Socket socket, std::shared_ptr<ServerShared> shared, SessionList& list, std::string address);

    const PeerInfo& peer() const noexcept { return peer_; }
    /// From any thread, once per request.
    void answer(Request& request, const FrameHeader& header, Bytes body);
    /// From any thread, before the answer.
    bool part(const FrameHeader& header, Bytes body, Responder::Haste haste);
    uint64_t unsent_bytes() const noexcept { return outbox().bytes(); }
    /// From any thread: nothing more is sent, and the peer sees a broken connection.
    void break_off(const Error& why);

    /// Closes it when it made no progress for too long; true while it needs to be asked again.
    bool check(Time now);

private:
    enum class Stage : uint8_t { kHello, kOpen, kRefused };

    Result<> on_frame(const FrameHeader& header, FrameBody body) override;
    void on_closed(const Error& why) override;
    bool wants_more() override;
    void on_sent() override;
    void on_blocked() override { list_.watch_progress(); }

    Result<> on_hello(const FrameHeader& header, std::span<const std::byte> body);
    void on_request(const FrameHeader& header, std::span<const std::byte> body);
    void on_cancel(uint64_t call);
    void abandon_all();
    bool full() const MC_REQUIRES(mutex_);

    const std::shared_ptr<ServerShared> shared_;
    SessionList& list_;  // only while not closed, on the loop
    const Time accepted_ = Clock::now();
    Stage stage_ = Stage::kHello;
    PeerInfo peer_;                 // constant once open
    uint64_t reply_bytes_max_ = 0;  // likewise
    Mutex mutex_;
    Request* first_ MC_GUARDED_BY(mutex_) = nullptr;  // the requests not answered yet
    size_t unanswered_ MC_GUARDED_BY(mutex_) = 0;
    bool paused_ MC_GUARDED_BY(mutex_) = false;
    friend class Request;
};

/// One request and its answer. Owned by the handler's side; while unanswered it stands in its session's list, so that a cancel
/// finds it.
class Request final : public Responder {
public:
    Request(std::shared_ptr<Session> session, const FrameHeader& header);
    ~Request() override;

    void reply(Bytes body) override;
    void fail(const Error& error) override;
    using Responder::part;
    bool part(Bytes body, Haste haste) override;
    uint64_t unsent_bytes() const noexcept override { return session_->unsent_bytes(); }
    void break_off(const Error& error) override;
    void expect_next(Duration within) override { session_->loop().stay_awake(within); }
    bool abandoned() const noexcept override { return abandoned_.load(std::memory_order_acquire) || deadline_.passed(); }
    Deadline deadline() const noexcept override { return deadline_; }
    const PeerInfo& peer() const noexcept override { return session_->peer(); }

private:
    bool first_answer() noexcept;

    const std::shared_ptr<Session> session_;
    const uint64_t call_;
    const uint16_t method_;
    const bool takes_parts_;
    const Deadline deadline_;
    const uint32_t fork_generation_;
    bool answered_ = false;
    std::atomic<bool> abandoned_{false};
    Request* next_ = nullptr;  // guarded by the session's mutex
    Request* previous_ = nullptr;
    friend class Session;
};

}  // namespace mooncake::rpc
