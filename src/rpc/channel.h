// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/address.h"
#include "rpc/call_table.h"
#include "rpc/connection.h"
#include "rpc/dialer.h"
#include "rpc/hello.h"
#include "rpc/io_loop.h"
#include "rpc/rpc.h"

namespace mooncake::rpc {

class Channel;

/// The client's end of one connection. Tells its channel everything, until it is closed.
class ClientConnection final : public Connection {
public:
    ClientConnection(std::shared_ptr<IoLoop> loop, net::Socket socket, std::shared_ptr<Channel> channel);

    void say_hello(const HelloMessage& message);
    void allow_bodies(uint64_t bytes_max) noexcept { reader().set_body_bytes_max(bytes_max); }

private:
    Result<> on_frame(const FrameHeader& header, FrameBody body) override;
    void on_closed(const Error& why) override;
    bool reads_last_words() override { return true; }

    std::shared_ptr<Channel> channel_;  // until closed: the two hold each other
};

/// All calls of a client to one address: the connection, opened when a call needs it, and the calls not answered yet.
/// Thread-safe, except what says "loop": that runs on the loop's thread.
class Channel final : public std::enable_shared_from_this<Channel> {
public:
    struct Setup {
        std::shared_ptr<IoLoop> loop;
        ClientOptions options;
        uint64_t number = 0;  // upper part of the call ids
        std::string address;  // as the caller wrote it
        net::HostPort target;
        std::function<void(Channel&)> retire;  // loop: called when the channel was not used for long
    };
    explicit Channel(Setup setup);

    /// Nothing: the channel is retired, the caller takes a fresh one.
    std::optional<Result<Bytes>> call(Method method, std::span<const std::byte> body, Deadline deadline,
                                      const std::function<void()>& meanwhile);
    /// As Client::call_async(). Nothing: retired; then body and callback were not touched.
    std::optional<uint64_t> call_async(Method method, Bytes& body, Deadline deadline, Callback& callback);
    /// As Client::call_stream(), likewise.
    std::optional<uint64_t> call_stream(Method method, Bytes& body, PartCallback& on_part, Callback& on_end);
    void cancel(uint64_t call);
    /// As Client::linger().
    void linger(Duration time);
    Result<PeerInfo> peer() const;
    uint64_t number() const noexcept { return setup_.number; }
    const std::string& address() const noexcept { return setup_.address; }
    IoLoop* loop() const noexcept { return setup_.loop.get(); }

    /// Loop: ends everything, for good.
    void shut_down();

private:
    friend class ClientConnection;
    class Withdrawal;
    enum class Stage : uint8_t { kIdle, kConnecting, kUp, kRetired, kStopped };

    struct Outgoing {
        Method method;
        std::span<const std::byte> bytes;
        Bytes* owned;  // where `bytes` are, if they may be moved away
        Deadline deadline;
        uint8_t flags = 0;
        Bytes take() const { return owned != nullptr ? std::move(*owned) : Bytes(bytes.begin(), bytes.end()); }
    };
    struct Waiting {  // for the connection
        Method method;
        Bytes body;
        Deadline deadline;
        uint8_t flags = 0;
    };
    struct Admission {
        uint64_t call = 0;
        std::shared_ptr<ClientConnection> connection;  // none: it was put into waiting_
        bool alone = false;                            // nobody else waits for an answer
        bool retired = false;                          // nothing was admitted
    };
    /// Takes frames that a caller's thread received.
    class CallerSink final : public FrameSink {
    public:
        explicit CallerSink(Channel& channel) : channel_(channel) {}
        Result<> on_frame(const FrameHeader& header, FrameBody body) override;

    private:
        Channel& channel_;
    };
    /// What lives and dies on the loop's thread.
    struct LoopParts {
        explicit LoopParts(IoLoop& loop) : hello_timer(loop), deadline_timer(loop), idle_timer(loop) {}
        std::shared_ptr<Dialer> dialer;
        std::shared_ptr<ClientConnection> greeting;  // hello said, not answered
        IoLoop::Timer hello_timer, deadline_timer, idle_timer;
        uint64_t calls_seen = 0;
        Time used_at = Clock::now();
    };

    std::optional<uint64_t> begin(PendingCall call, Method method, Bytes& body, uint8_t flags);
    /// Moves the call away only when it was admitted.
    Result<Admission> admit(PendingCall& call, const Outgoing& outgoing);
    Result<> check_admission(const Outgoing& outgoing) const MC_REQUIRES(mutex_);
    std::optional<Error> time_out(uint64_t call);
    std::shared_ptr<ClientConnection> forget(uint64_t call) MC_REQUIRES(mutex_);
    static void tell_cancelled(const std::shared_ptr<ClientConnection>& connection, uint64_t call);
    void finish_soon(PendingCall call, Result<Bytes> result);
    Error timed_out_error(Stage stage) const;
    Error too_long_error(uint64_t bytes, uint64_t bytes_max) const;
    Error in_context(const Error& error) const;

    // loop
    LoopParts& parts();
    void connect();
    void on_connected(Result<net::Socket> socket);
    Result<> on_hello_reply(std::span<const std::byte> body);
    Result<> on_answer(const FrameHeader& header, FrameBody body);
    void deliver(const FrameHeader& header, FrameBody body);
    void go_up(const std::shared_ptr<ClientConnection>& connection, const HelloReply& reply);
    void on_connection_closed(const ClientConnection& connection, const Error& why);
    void fail_all(const Error& error, Stage next, bool remember);
    void arm_deadline_timer();
    void on_deadline();
    void arm_idle_timer();
    void on_idle_timer();
    bool retire_if_unused();

    const Setup setup_;
    std::unique_ptr<LoopParts> parts_;  // loop

    mutable Mutex mutex_;
    Stage stage_ MC_GUARDED_BY(mutex_) = Stage::kIdle;
    CallTable calls_ MC_GUARDED_BY(mutex_);
    uint64_t calls_begun_ MC_GUARDED_BY(mutex_) = 0;
    std::map<uint64_t, Waiting> waiting_ MC_GUARDED_BY(mutex_);
    std::shared_ptr<ClientConnection> connection_ MC_GUARDED_BY(mutex_);  // while kUp
    PeerInfo peer_ MC_GUARDED_BY(mutex_);
    uint64_t request_bytes_max_ MC_GUARDED_BY(mutex_) = 0;  // of the peer
    Time failed_until_ MC_GUARDED_BY(mutex_){};
    Error failure_ MC_GUARDED_BY(mutex_);
    Time armed_ MC_GUARDED_BY(mutex_) = Time::max();  // when deadline_timer goes off
};

}  // namespace mooncake::rpc
