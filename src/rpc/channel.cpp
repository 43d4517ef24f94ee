// SPDX-License-Identifier: Apache-2.0
#include "rpc/channel.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <utility>

namespace mooncake::rpc {

namespace {

constexpr Duration kFailureMemory = 100ms;  // a storm of calls to a dead address makes no storm of connects
// A network that was away is not waited for longer than this after it is back: a new connection does not repeat ever more slowly.
constexpr Duration kUnconfirmedMax = 3s;
constexpr Duration kStallTimeout = 30s;  // a server that takes or sends nothing in the middle of a message is given up
constexpr Duration kCheckMin = 10ms, kCheckMax = 5s;

FrameHeader request_header(uint64_t call, Method method, Deadline deadline, size_t body_bytes, uint8_t flags = 0) {
    return {.kind = FrameKind::kRequest,
            .flags = flags,
            .method = static_cast<uint16_t>(method),
            .call = call,
            .left_us = deadline_to_wire(deadline),
            .body_bytes = static_cast<uint32_t>(body_bytes)};
}

bool is_answer(FrameKind kind) noexcept { return kind == FrameKind::kReply || kind == FrameKind::kError || kind == FrameKind::kPart; }

}  // namespace

// ---- ClientConnection

ClientConnection::ClientConnection(std::shared_ptr<IoLoop> loop, net::Socket socket, std::shared_ptr<Channel> channel)
    : Connection(std::move(loop), std::move(socket), kHelloBytesMax, Reading::kShared), channel_(std::move(channel)) {}

void ClientConnection::say_hello(const HelloMessage& message) {
    Bytes body = encode_hello(message);
    const FrameHeader header{.kind = FrameKind::kHello, .body_bytes = static_cast<uint32_t>(body.size())};
    send(header, std::move(body));
}

Result<> ClientConnection::on_frame(const FrameHeader& header, FrameBody body) {
    if (header.kind == FrameKind::kHelloReply) return channel_->on_hello_reply(body.bytes);
    if (is_answer(header.kind)) return channel_->on_answer(header, body);
    return fail(Code::kCorrupt, "a frame of kind {} from a server", static_cast<int>(header.kind));
}

void ClientConnection::on_closed(const Error& why) {
    const auto channel = std::exchange(channel_, nullptr);
    channel->on_connection_closed(*this, why);
}

// ---- Channel: callers

Channel::Channel(Setup setup) : setup_(std::move(setup)), calls_(setup_.number) {}

Error Channel::in_context(const Error& error) const { return Error(error).with_context(format_text("rpc to {}", setup_.address)); }

Error Channel::timed_out_error(Stage stage) const {
    const bool connecting = stage != Stage::kUp;
    return in_context(error(Code::kTimedOut, "{}: no answer before the deadline", connecting ? "connect" : "call"));
}

Error Channel::too_long_error(uint64_t bytes, uint64_t bytes_max) const {
    return in_context(error(Code::kInvalidArgument, "call: a request of {} bytes; the server takes at most {}", bytes, bytes_max));
}

/// The answer goes to the caller's stack: whoever leaves it without one, because something was thrown, is first forgotten.
class Channel::Withdrawal {
public:
    Withdrawal(Channel& channel, uint64_t call, Waiter& waiter) noexcept : channel_(channel), call_(call), waiter_(waiter) {}
    ~Withdrawal() {
        if (std::uncaught_exceptions() == thrown_) return;
        {
            Lock lock(channel_.mutex_);
            channel_.waiting_.erase(call_);
            if (channel_.calls_.take(call_)) return;
        }
        waiter_.done.wait(Deadline::never());  // somebody just hands us the result
    }
    Withdrawal(const Withdrawal&) = delete;
    Withdrawal& operator=(const Withdrawal&) = delete;

private:
    Channel& channel_;
    const uint64_t call_;
    Waiter& waiter_;
    const int thrown_ = std::uncaught_exceptions();
};

std::optional<Result<Bytes>> Channel::call(Method method, std::span<const std::byte> body, Deadline deadline,
                                           const std::function<void()>& meanwhile) {
    if (setup_.loop->on_loop())
        return fail(Code::kInternal, "rpc to {}: a blocking call from an i/o thread would wait for itself", setup_.address);
    Waiter waiter;
    waiter.done.add(1);
    PendingCall pending{.deadline = deadline, .waiter = &waiter};
    const auto admission = admit(pending, {method, body, nullptr, deadline});
    if (!admission) return Unexpected(admission.error());
    if (admission->retired) return std::nullopt;
    const Withdrawal withdrawal(*this, admission->call, waiter);
    // Where the answer may come sooner than we look for it, the turn is taken before the request leaves; else after, when it delays nothing.
    bool reads = meanwhile && admission->alone && admission->connection->begin_here();
    if (admission->connection) admission->connection->send_borrowed(request_header(admission->call, method, deadline, body.size()), body);
    if (!meanwhile) reads = admission->alone && admission->connection->begin_here();
    if (meanwhile) meanwhile();
    if (reads) {
        CallerSink sink(*this);
        admission->connection->read_here(waiter.done, deadline, sink);
    }
    if (!waiter.done.wait(deadline)) {
        if (auto late = time_out(admission->call)) return Unexpected(std::move(*late));
        waiter.done.wait(Deadline::never());  // somebody just hands us the result
    }
    return std::move(waiter.result);
}

/// The error, or nothing when the call is just being answered.
std::optional<Error> Channel::time_out(uint64_t call) {
    std::shared_ptr<ClientConnection> connection;
    Stage stage = Stage::kIdle;
    {
        Lock lock(mutex_);
        if (!calls_.take(call)) return std::nullopt;
        connection = forget(call);
        stage = stage_;
    }
    tell_cancelled(connection, call);
    return timed_out_error(stage);
}

std::optional<uint64_t> Channel::call_async(Method method, Bytes& body, Deadline deadline, Callback& callback) {
    return begin({.deadline = deadline, .callback = callback}, method, body, /*flags=*/0);
}

std::optional<uint64_t> Channel::call_stream(Method method, Bytes& body, PartCallback& on_part, Callback& on_end) {
    return begin({.callback = on_end, .on_part = std::make_shared<const PartCallback>(on_part)}, method, body, kFlagParts);
}

std::optional<uint64_t> Channel::begin(PendingCall call, Method method, Bytes& body, uint8_t flags) {
    const Deadline deadline = call.deadline;
    const auto admission = admit(call, {method, body, &body, deadline, flags});
    if (!admission) {
        finish_soon(std::move(call), Unexpected(admission.error()));
        return 0;
    }
    if (admission->retired) return std::nullopt;
    if (admission->connection) {
        const FrameHeader header = request_header(admission->call, method, deadline, body.size(), flags);
        try {
            if (flags != 0) setup_.loop->post([connection = admission->connection] { connection->watch_closely(); });
            admission->connection->send(header, std::move(body));
        } catch (const std::bad_alloc&) {
            // Who is told by an exception is not called back. If somebody does so just now, that is the answer.
            Lock lock(mutex_);
            if (calls_.take(admission->call)) throw;
        }
    }
    return admission->call;
}

Result<> Channel::check_admission(const Outgoing& outgoing) const {
    if (stage_ == Stage::kStopped) return Unexpected(in_context(error(Code::kCancelled, "call: client stopped")));
    if (outgoing.deadline.passed()) return Unexpected(timed_out_error(stage_));
    if (calls_.size() >= setup_.options.pending_calls_max)
        return Unexpected(in_context(error(Code::kNoSpace, "call: {} calls are waiting for an answer", calls_.size())));
    if (stage_ == Stage::kIdle && failed_until_ != Time() && Clock::now() < failed_until_) return Unexpected(failure_);
    const uint64_t bytes_max = stage_ == Stage::kUp ? request_bytes_max_ : kBodyBytesMax;
    if (outgoing.bytes.size() > bytes_max) return Unexpected(too_long_error(outgoing.bytes.size(), bytes_max));
    return {};
}

Result<Channel::Admission> Channel::admit(PendingCall& call, const Outgoing& outgoing) {
    Lock lock(mutex_);
    if (stage_ == Stage::kRetired) return Admission{.retired = true};
    MC_RETURN_IF_ERROR(check_admission(outgoing));
    // First whatever needs memory: nobody waits for a connection that nobody makes, or for an answer to a caller that has left. What the loop is
    // told of here it looks at under the lock.
    std::map<uint64_t, Waiting> waiting;
    if (stage_ != Stage::kUp) waiting.emplace(0, Waiting{outgoing.method, outgoing.take(), outgoing.deadline, outgoing.flags});
    if (stage_ == Stage::kIdle) setup_.loop->post([self = shared_from_this()] { self->connect(); });
    const bool rearm = call.waiter == nullptr && call.deadline.at() < armed_;
    const Time deadline = call.deadline.at();
    if (rearm) setup_.loop->post([self = shared_from_this()] { self->arm_deadline_timer(); });
    Admission admission;
    admission.call = calls_.insert(std::move(call));
    ++calls_begun_;
    if (rearm) armed_ = deadline;
    if (stage_ == Stage::kUp) {
        admission.connection = connection_;
        admission.alone = calls_.size() == 1;
        return admission;
    }
    auto entry = waiting.extract(waiting.begin());
    entry.key() = admission.call;
    waiting_.insert(std::move(entry));
    stage_ = Stage::kConnecting;
    return admission;
}

/// Returns the connection that must still be told, if any.
std::shared_ptr<ClientConnection> Channel::forget(uint64_t call) {
    if (waiting_.erase(call) != 0) return nullptr;
    return connection_;
}

void Channel::tell_cancelled(const std::shared_ptr<ClientConnection>& connection, uint64_t call) {
    if (!connection || connection->take_back(call)) return;
    connection->send({.kind = FrameKind::kCancel, .call = call}, {});
}

void Channel::cancel(uint64_t call) {
    std::optional<PendingCall> taken;
    std::shared_ptr<ClientConnection> connection;
    {
        Lock lock(mutex_);
        taken = calls_.take(call);
        if (taken) connection = forget(call);
    }
    if (!taken) return;
    tell_cancelled(connection, call);
    finish_soon(std::move(*taken), Unexpected(in_context(error(Code::kCancelled, "call: cancelled by the caller"))));
}

void Channel::linger(Duration time) {
    if (!setup_.loop->on_loop()) return;
    Lock lock(mutex_);
    if (connection_) connection_->linger(time);
}

void Channel::finish_soon(PendingCall call, Result<Bytes> result) {
    // Callbacks run on the loop, but after it was stopped there is only the caller's thread left.
    const auto shared = std::make_shared<std::pair<PendingCall, Result<Bytes>>>(std::move(call), std::move(result));
    const auto finish = [shared] { shared->first.finish(std::move(shared->second)); };
    if (!setup_.loop->post(finish)) finish();
}

/// Callers who wait are answered at once; frames for callbacks go to the loop, and are there before anything that it reads later.
Result<> Channel::CallerSink::on_frame(const FrameHeader& header, FrameBody body) {
    if (!is_answer(header.kind)) return fail(Code::kCorrupt, "a frame of kind {} from a server", static_cast<int>(header.kind));
    std::optional<PendingCall> call;
    {
        Lock lock(channel_.mutex_);
        if (!channel_.calls_.contains(header.call)) return {};  // timed out or cancelled meanwhile
        if (header.kind != FrameKind::kPart && channel_.calls_.blocking(header.call)) call = channel_.calls_.take(header.call);
    }
    if (!call) {
        channel_.setup_.loop->post(
            [self = channel_.shared_from_this(), header, bytes = body.take()] { self->deliver(header, {.bytes = bytes}); });
        return {};
    }
    if (header.kind == FrameKind::kError) call->finish(Unexpected(decode_error(body.bytes)));
    else call->finish(body.take());
    return {};
}

Result<PeerInfo> Channel::peer() const {
    Lock lock(mutex_);
    if (stage_ != Stage::kUp) return fail(Code::kNotFound, "rpc to {}: not connected", setup_.address);
    return peer_;
}

// ---- Channel: the loop

Channel::LoopParts& Channel::parts() {
    if (!parts_) parts_ = std::make_unique<LoopParts>(*setup_.loop);
    return *parts_;
}

void Channel::connect() {
    {
        Lock lock(mutex_);
        if (stage_ != Stage::kConnecting) return;
    }
    const Deadline deadline = Deadline::after(setup_.options.connect_timeout);
    parts().hello_timer.set(deadline.at(), [self = shared_from_this()] {
        if (const auto greeting = self->parts().greeting) greeting->close(Error(Code::kUnavailable, "no answer", ETIMEDOUT));
    });
    parts().dialer = std::make_shared<Dialer>(
        setup_.loop, setup_.target, deadline,
        [self = shared_from_this()](Result<net::Socket> socket) { self->on_connected(std::move(socket)); });
    parts().dialer->start();
}

void Channel::on_connected(Result<net::Socket> socket) {
    parts().dialer.reset();
    if (!socket) return fail_all(in_context(socket.error()), Stage::kIdle, /*remember=*/true);
    net::tune(socket->fd());
    net::limit_unconfirmed(socket->fd(), kUnconfirmedMax);
    const auto connection = std::make_shared<ClientConnection>(setup_.loop, std::move(*socket), shared_from_this());
    parts().greeting = connection;
    if (const auto opened = connection->open(); !opened) return connection->close(opened.error());
    connection->say_hello(
        {.major = setup_.options.protocol_major, .message_bytes_max = setup_.options.message_bytes_max, .hello = setup_.options.hello});
}

Result<> Channel::on_hello_reply(std::span<const std::byte> body) {
    auto connection = std::exchange(parts().greeting, nullptr);
    if (!connection) return fail(Code::kCorrupt, "a second hello reply");
    auto reply = decode_hello_reply(body);
    const HelloMessage ours{.major = setup_.options.protocol_major, .hello = setup_.options.hello};
    if (reply && reply->refusal.empty()) reply->refusal = refusal_of(reply->message, ours);
    if (reply && reply->refusal.empty()) {
        go_up(connection, *reply);
        return {};
    }
    parts().greeting = std::move(connection);  // it ends as one that never came up
    if (!reply) return Unexpected(std::move(reply).error());
    return Unexpected(Error(Code::kRefused, reply->refusal));
}

void Channel::go_up(const std::shared_ptr<ClientConnection>& connection, const HelloReply& reply) {
    parts().hello_timer.cancel();
    connection->allow_bodies(std::min(setup_.options.message_bytes_max, kBodyBytesMax));
    std::vector<std::pair<PendingCall, uint64_t>> too_long;
    const uint64_t bytes_max = std::min(reply.message.message_bytes_max, kBodyBytesMax);
    {
        Lock lock(mutex_);
        stage_ = Stage::kUp;
        connection_ = connection;
        request_bytes_max_ = bytes_max;
        peer_ = {.incarnation = reply.message.hello.incarnation,
                 .features = reply.message.hello.features & setup_.options.hello.features,
                 .address = setup_.address};
        for (auto& [call, waiting] : waiting_) {
            if (waiting.body.size() > bytes_max) {
                too_long.emplace_back(*calls_.take(call), waiting.body.size());
                continue;
            }
            // Frames are queued here and leave when the batch that brought the hello reply is done.
            const FrameHeader header = request_header(call, waiting.method, waiting.deadline, waiting.body.size(), waiting.flags);
            if (waiting.flags != 0) connection->watch_closely();
            connection->send(header, std::move(waiting.body));
        }
        waiting_.clear();
    }
    for (auto& [call, bytes] : too_long) call.finish(Unexpected(too_long_error(bytes, bytes_max)));
    arm_idle_timer();
}

Result<> Channel::on_answer(const FrameHeader& header, FrameBody body) {
    if (parts().greeting) return fail(Code::kCorrupt, "an answer before the hello reply");
    deliver(header, body);
    return {};
}

void Channel::deliver(const FrameHeader& header, FrameBody body) {
    std::optional<PendingCall> call;
    std::shared_ptr<const PartCallback> on_part;
    {
        Lock lock(mutex_);
        if (header.kind == FrameKind::kPart) on_part = calls_.on_part(header.call);
        else call = calls_.take(header.call);
    }
    if (on_part) return (*on_part)(body.bytes);
    if (!call) return;  // timed out or cancelled meanwhile
    if (header.kind == FrameKind::kError) call->finish(Unexpected(decode_error(body.bytes)));
    else call->finish(body.take());
}

void Channel::on_connection_closed(const ClientConnection& connection, const Error& why) {
    const bool greeting = parts().greeting.get() == &connection;
    if (greeting) {
        parts().greeting.reset();
    } else {
        Lock lock(mutex_);
        if (connection_.get() != &connection) return;  // let go before, for not being used
    }
    const Code code = why.code() == Code::kRefused || why.code() == Code::kCancelled ? why.code() : Code::kUnavailable;
    // An errno of 0 means that the server closed the connection.
    const int status = why.code() == Code::kCorrupt && why.system_errno() == 0 ? EPROTO : why.system_errno();
    const Error error(code, format_text("{}: {}", greeting ? "hello" : "call", why.message()), status);
    fail_all(in_context(error), Stage::kIdle, /*remember=*/greeting);
}

void Channel::fail_all(const Error& error, Stage next, bool remember) {
    parts().hello_timer.cancel();
    std::vector<PendingCall> calls;
    {
        Lock lock(mutex_);
        if (stage_ != Stage::kStopped) stage_ = next;
        connection_.reset();
        waiting_.clear();
        calls = calls_.take_all();
        failed_until_ = remember ? Clock::now() + kFailureMemory : Time();
        failure_ = error;
    }
    for (PendingCall& call : calls) call.finish(Unexpected(error));
    arm_idle_timer();
}

void Channel::arm_deadline_timer() {
    Time at;
    {
        Lock lock(mutex_);
        at = armed_;
        if (stage_ == Stage::kStopped || stage_ == Stage::kRetired) return;
    }
    if (at != Time::max()) parts().deadline_timer.set(at, [self = shared_from_this()] { self->on_deadline(); });
}

void Channel::on_deadline() {
    std::vector<PendingCall> expired;
    std::vector<std::shared_ptr<ClientConnection>> connections;
    Stage stage = Stage::kIdle;
    {
        Lock lock(mutex_);
        stage = stage_;
        expired = calls_.take_expired(Clock::now());
        for (const PendingCall& call : expired) connections.push_back(forget(call.id));
        armed_ = calls_.next_deadline().at();
    }
    arm_deadline_timer();
    for (size_t i = 0; i < expired.size(); ++i) {
        tell_cancelled(connections[i], expired[i].id);
        expired[i].finish(Unexpected(timed_out_error(stage)));
    }
}

void Channel::arm_idle_timer() {
    {
        Lock lock(mutex_);
        if (stage_ == Stage::kStopped) return;
    }
    const Duration interval = std::clamp(setup_.options.idle_timeout / 4, kCheckMin, kCheckMax);
    parts().idle_timer.set(Clock::now() + interval, [self = shared_from_this()] { self->on_idle_timer(); });
}

void Channel::on_idle_timer() {
    const Time now = Clock::now();
    std::shared_ptr<ClientConnection> connection;
    bool idle = false;
    {
        Lock lock(mutex_);
        if (calls_.size() != 0 || calls_begun_ != parts().calls_seen) parts().used_at = now;
        parts().calls_seen = calls_begun_;
        idle = now - parts().used_at >= setup_.options.idle_timeout;
        connection = connection_;
        if (idle && connection) {
            // First of all no new call may use it: such a call would fail with the connection.
            connection_.reset();
            stage_ = Stage::kIdle;
        }
    }
    if (connection && idle) {
        connection->close(Error(Code::kUnavailable, "closed for not being used"));
    } else if (connection && connection->stalled(now - kStallTimeout)) {
        connection->close(Error(Code::kUnavailable, "the server takes no bytes or stopped within a message", ETIMEDOUT));
    } else if (idle && retire_if_unused()) {
        return;
    }
    arm_idle_timer();
}

bool Channel::retire_if_unused() {
    const auto self = shared_from_this();
    {
        Lock lock(mutex_);
        if (stage_ != Stage::kIdle || calls_.size() != 0) return false;
        stage_ = Stage::kRetired;
    }
    parts_.reset();
    setup_.retire(*this);
    return true;
}

void Channel::shut_down() {
    const auto self = shared_from_this();
    std::shared_ptr<ClientConnection> connection;
    {
        Lock lock(mutex_);
        if (stage_ == Stage::kRetired) return;
        stage_ = Stage::kStopped;
        connection = connection_;
    }
    const Error stopped(Code::kCancelled, "client stopped");
    if (!connection) connection = parts().greeting;
    if (connection) connection->close(stopped);
    if (parts().dialer) parts().dialer->cancel();
    fail_all(in_context(Error(Code::kCancelled, "call: client stopped")), Stage::kStopped, /*remember=*/false);
    parts_.reset();
}

}  // namespace mooncake::rpc
