// SPDX-License-Identifier: Apache-2.0
#include "rpc/session.h"

#include <algorithm>

#include "base/fork.h"
#include "base/log.h"

namespace mooncake::rpc {

namespace {

constexpr uint64_t kUnsentBytesMax = 16 << 20;  // replies of one connection that wait; then its requests are not read
constexpr Duration kCheckMin = 10ms, kCheckMax = 1s;

}  // namespace

// ---- SessionList

SessionList::SessionList(std::shared_ptr<IoLoop> loop, std::shared_ptr<ServerShared> shared)
    : loop_(std::move(loop)), shared_(std::move(shared)),
      interval_(std::clamp(std::min(shared_->options.hello_timeout, shared_->options.idle_body_timeout) / 4, kCheckMin, kCheckMax)) {}

void SessionList::add(net::Socket socket, std::string address) {
    auto session = std::make_shared<Session>(loop_, std::move(socket), shared_, *this, std::move(address));
    sessions_.insert(session);
    if (const auto opened = session->open(); !opened) session->close(opened.error());
    watch_progress();
}

void SessionList::watch_progress() {
    if (watching_) return;
    watching_ = true;
    if (!timer_) timer_ = std::make_unique<IoLoop::Timer>(*loop_);
    timer_->set(Clock::now() + interval_, [this] { check(); });
}

void SessionList::check() {
    watching_ = false;
    const Time now = Clock::now();
    bool again = false;
    for (auto at = sessions_.begin(); at != sessions_.end();) {
        const std::shared_ptr<Session> session = *at++;  // check() may remove it from the set
        again |= session->check(now);
    }
    if (again) watch_progress();
}

void SessionList::close_all(const Error& why) {
    const auto sessions = std::move(sessions_);
    sessions_.clear();
    for (const auto& session : sessions) session->close(why);
    timer_.reset();
}

// ---- Session

Session::Session(std::shared_ptr<IoLoop> loop, net::Socket socket, std::shared_ptr<ServerShared> shared, SessionList& list,
                 std::string address)
    : Connection(std::move(loop), std::move(socket), kHelloBytesMax), shared_(std::move(shared)), list_(list) {
    peer_.address = std::move(address);
}

Result<> Session::on_frame(const FrameHeader& header, FrameBody body) {
    if (stage_ == Stage::kRefused) return {};
    if (header.kind == FrameKind::kHello && stage_ == Stage::kHello) return on_hello(header, body.bytes);
    if (stage_ != Stage::kOpen) return fail(Code::kCorrupt, "a frame of kind {} before hello", static_cast<int>(header.kind));
    if (header.kind == FrameKind::kRequest) on_request(header, body.bytes);
    else if (header.kind == FrameKind::kCancel) on_cancel(header.call);
    else return fail(Code::kCorrupt, "a frame of kind {} from a client", static_cast<int>(header.kind));
    return {};
}

Result<> Session::on_hello(const FrameHeader& header, std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const HelloMessage theirs, decode_hello(body));
    HelloReply reply{.message = shared_->hello()};
    reply.refusal = refusal_of(reply.message, theirs);
    Bytes bytes = encode_hello_reply(reply);
    const auto size = static_cast<uint32_t>(bytes.size());
    send({.kind = FrameKind::kHelloReply, .call = header.call, .body_bytes = size}, std::move(bytes));
    if (!reply.refusal.empty()) {
        MC_LOG_WARNING_EVERY(10s, "rpc port {} refused {}: {}", shared_->port, peer_.address, reply.refusal);
        stage_ = Stage::kRefused;
        return {};
    }
    peer_.incarnation = theirs.hello.incarnation;
    peer_.features = theirs.hello.features & shared_->options.hello.features;
    reply_bytes_max_ = std::min(theirs.message_bytes_max, kBodyBytesMax);
    reader().set_body_bytes_max(std::min(shared_->options.message_bytes_max, kBodyBytesMax));
    stage_ = Stage::kOpen;
    return {};
}

void Session::on_request(const FrameHeader& header, std::span<const std::byte> body) {
    auto request = std::make_unique<Request>(std::static_pointer_cast<Session>(shared_from_this()), header);
    if (header.left_us == 0) return request->fail(error(Code::kTimedOut, "the deadline passed before the request arrived"));
    if (header.method >= shared_->handlers.size() || !shared_->handlers[header.method])
        return request->fail(error(Code::kNotSupported, "method {} is unknown to {}", header.method, shared_->options.hello.software));
    shared_->handlers[header.method](body, std::move(request));
}

void Session::on_cancel(uint64_t call) {
    Lock lock(mutex_);
    for (Request* request = first_; request != nullptr; request = request->next_)
        if (request->call_ == call) request->abandoned_.store(true, std::memory_order_release);
}

void Session::abandon_all() {
    Lock lock(mutex_);
    for (Request* request = first_; request != nullptr; request = request->next_)
        request->abandoned_.store(true, std::memory_order_release);
}

void Session::answer(Request& request, const FrameHeader& header, Bytes body) {
    send(header, std::move(body));
    bool go_on = false;
    {
        Lock lock(mutex_);
        if (request.previous_ != nullptr) request.previous_->next_ = request.next_;
        else first_ = request.next_;
        if (request.next_ != nullptr) request.next_->previous_ = request.previous_;
        --unanswered_;
        go_on = paused_ && !full();
        if (go_on) paused_ = false;
    }
    if (go_on) resume();
}

bool Session::part(const FrameHeader& header, Bytes body, Responder::Haste haste) {
    if (body.size() > reply_bytes_max_ || outbox().bytes() + body.size() > shared_->options.stream_bytes_max) return false;
    send_now(header, std::move(body), haste == Responder::Haste::kLater);
    return true;
}

void Session::break_off(const Error& why) {
    reset_when_closed();
    loop().post([self = std::static_pointer_cast<Session>(shared_from_this()), why] { self->close(why); });
}

bool Session::full() const {
    return unanswered_ + outbox().frames() >= shared_->options.queued_requests_max || outbox().bytes() >= kUnsentBytesMax;
}

bool Session::wants_more() {
    if (stage_ == Stage::kRefused) return false;
    Lock lock(mutex_);
    paused_ = full();
    return !paused_;
}

void Session::on_sent() {
    if (stage_ == Stage::kRefused) {
        if (outbox().frames() == 0) close(error(Code::kRefused, "refused"));
        return;
    }
    bool go_on = false;
    {
        Lock lock(mutex_);
        go_on = paused_ && !full();
        if (go_on) paused_ = false;
    }
    if (go_on) resume();
    if (busy()) list_.watch_progress();
}

bool Session::check(Time now) {
    if (stage_ != Stage::kOpen && now - accepted_ >= shared_->options.hello_timeout) {
        close(error(Code::kTimedOut, "no hello within {} ms",
                    std::chrono::duration_cast<std::chrono::milliseconds>(shared_->options.hello_timeout).count()));
        return false;
    }
    if (stalled(now - shared_->options.idle_body_timeout)) {
        close(error(Code::kTimedOut, "a message made no progress"));
        return false;
    }
    return stage_ != Stage::kOpen || busy();
}

void Session::on_closed(const Error& why) {
    abandon_all();
    shared_->connections.fetch_sub(1, std::memory_order_relaxed);
    list_.remove(std::static_pointer_cast<Session>(shared_from_this()));
    // Who just goes away, as port scanners and health checks do, is not worth a line.
    if (why.code() == Code::kCorrupt || why.code() == Code::kTimedOut)
        MC_LOG_WARNING_EVERY(10s, "rpc port {} closed a connection of {}: {}", shared_->port, peer_.address, why.message());
}

// ---- Request

Request::Request(std::shared_ptr<Session> session, const FrameHeader& header)
    : session_(std::move(session)), call_(header.call), method_(header.method), takes_parts_((header.flags & kFlagParts) != 0),
      deadline_(deadline_from_wire(header.left_us)), fork_generation_(fork_generation()) {
    Lock lock(session_->mutex_);
    next_ = session_->first_;
    if (next_ != nullptr) next_->previous_ = this;
    session_->first_ = this;
    ++session_->unanswered_;
}

Request::~Request() {
    if (!answered_) fail(error(Code::kInternal, "method {} was not answered", method_));
}

bool Request::first_answer() noexcept {
    if (answered_ || fork_generation_ != mooncake::fork_generation()) return false;
    answered_ = true;
    return true;
}

void Request::reply(Bytes body) {
    if (body.size() > session_->reply_bytes_max_)
        return fail(error(Code::kNoSpace, "a reply of {} bytes; the caller takes at most {}", body.size(), session_->reply_bytes_max_));
    if (!first_answer()) return;
    const FrameHeader header{.kind = FrameKind::kReply, .method = method_, .call = call_, .body_bytes = static_cast<uint32_t>(body.size())};
    session_->answer(*this, header, std::move(body));
}

void Request::fail(const Error& error) {
    if (!first_answer()) return;
    Bytes body = encode_error(error);
    const FrameHeader header{.kind = FrameKind::kError, .method = method_, .call = call_, .body_bytes = static_cast<uint32_t>(body.size())};
    session_->answer(*this, header, std::move(body));
}

void Request::break_off(const Error& error) {
    if (!first_answer()) return;
    session_->break_off(error);
    session_->answer(*this, {.kind = FrameKind::kError, .method = method_, .call = call_}, {});  // which nobody gets
}

bool Request::part(Bytes body, Haste haste) {
    if (answered_ || !takes_parts_ || fork_generation_ != mooncake::fork_generation() || abandoned()) return false;
    const FrameHeader header{.kind = FrameKind::kPart, .method = method_, .call = call_, .body_bytes = static_cast<uint32_t>(body.size())};
    return session_->part(header, std::move(body), haste);
}

}  // namespace mooncake::rpc
