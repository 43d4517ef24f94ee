// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/peer.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>

#include "base/futex.h"
#include "base/log.h"

namespace mooncake::tcp {

namespace {

constexpr uint32_t kArmedIdle = EPOLLRDHUP | EPOLLONESHOT;

uint32_t epoll_events(short wants) noexcept {
    uint32_t events = kArmedIdle;
    if (wants & POLLIN) events |= EPOLLIN;
    if (wants & POLLOUT) events |= EPOLLOUT;
    return events;
}

}  // namespace

Hello Initiator::hello(const Target& target) const {
    return {.version = target.version,
            .features = kFeatureKinds | kFeatureDevices | (options.tcp_checksum ? kFeatureChecksum : 0),
            .initiator = incarnation,
            .target = target.incarnation};
}

TcpPeer::TcpPeer(Initiator& initiator, Target target) : initiator_(initiator), target_(std::move(target)) {
    // Before we look what is in doubt: what comes later outdates us.
    initiator_.fences.join(target_.incarnation, member_);
}

Result<std::unique_ptr<TcpPeer>> TcpPeer::connect(Initiator& initiator, Target target, Deadline deadline) {
    std::unique_ptr<TcpPeer> peer(new TcpPeer(initiator, std::move(target)));
    MC_RETURN_IF_ERROR(peer->open({deadline, initiator.closing}));
    return peer;
}

Result<> TcpPeer::end_sessions(std::span<const SessionId> sessions, const net::Patience& patience) {
    for (; !sessions.empty(); sessions = sessions.subspan(std::min(sessions.size(), kEndedMax))) {
        const auto some = sessions.first(std::min(sessions.size(), kEndedMax));
        Hello hello = initiator_.hello(target_);
        hello.session = SessionId::random();
        hello.ended.assign(some.begin(), some.end());
        MC_RETURN_IF_ERROR(greet(target_, hello, patience));
        initiator_.fences.settled(target_.incarnation, some);
    }
    return {};
}

/// All lanes of one session, which is not welcome before everything that is in doubt has ended.
Result<std::vector<Greeted>> TcpPeer::open_lanes(const SessionId& session, const net::Patience& patience) {
    auto ended = initiator_.fences.in_doubt(target_.incarnation);
    if (ended.size() > kEndedMax) {
        MC_RETURN_IF_ERROR(end_sessions(std::span(ended).subspan(kEndedMax), patience));
        ended.resize(kEndedMax);
    }
    Hello hello = initiator_.hello(target_);
    hello.session = session;
    hello.number = initiator_.next_number.fetch_add(1, std::memory_order_relaxed);
    std::vector<net::Socket> sockets;
    for (int i = 0; i < initiator_.lanes; ++i) {
        hello.lane = static_cast<uint16_t>(i);
        // Nothing is sent before all are welcome, so one of them is enough to say it.
        hello.ended = i == 0 ? ended : std::vector<SessionId>();
        MC_ASSIGN_OR_RETURN(auto socket, send_hello(target_, hello, patience));
        sockets.push_back(std::move(socket));
    }
    std::vector<Greeted> lanes;
    for (net::Socket& socket : sockets) {
        auto greeted = receive_hello_reply(target_, std::move(socket), hello, patience);
        // Another process answers: with the one we meant went its memory.
        if (!greeted && greeted.error().code() == Code::kStale) initiator_.fences.settled(target_.incarnation, ended);
        if (!greeted) return Unexpected(std::move(greeted).error());
        lanes.push_back(std::move(*greeted));
    }
    initiator_.fences.settled(target_.incarnation, ended);
    while (member_.outdated.exchange(false, std::memory_order_acq_rel))
        MC_RETURN_IF_ERROR(end_sessions(initiator_.fences.in_doubt(target_.incarnation), patience));
    return lanes;
}

Result<> TcpPeer::open(const net::Patience& patience) {
    bell_->event = net::Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!bell_->event) return fail_errno(Code::kUnavailable, errno, "{}: cannot create an eventfd", target_.to_string());
    const SessionId session = SessionId::random();
    MC_ASSIGN_OR_RETURN(auto lanes, open_lanes(session, patience));
    {
        Lock lock(failure_mutex_);
        session_ = session;
    }
    for (Greeted& greeted : lanes) {
        auto& threads = initiator_.io_threads;
        IoThread& io = *threads[initiator_.next_io_thread.fetch_add(1, std::memory_order_relaxed) % threads.size()];
        auto slot = std::make_unique<Slot>(*this, io, std::move(greeted.socket), (greeted.features & kFeatureChecksum) != 0);
        Lock lock(slot->mutex);
        slot->armed = kArmedIdle;
        slot->fd = slot->lane.fd();
        slots_.push_back(std::move(slot));
    }
    address_.length = sizeof address_.storage;
    if (::getpeername(slots_.front()->fd, reinterpret_cast<sockaddr*>(&address_.storage), &address_.length) != 0)
        return fail_errno(Code::kUnavailable, errno, "{}: the connection failed", target_.to_string());
    patience_ = farewell_patience(slots_.front()->fd);
    // Only now, as an event may come at once.
    for (const auto& slot : slots_) {
        auto token = slot->io.add(slot->fd, *slot, kArmedIdle);
        if (!token) return Unexpected(std::move(token).error().with_context(target_.to_string()));
        slot->token = *token;
    }
    return {};
}

TcpPeer::~TcpPeer() {
    if (fork_generation() != birth_) {
        // The I/O threads are gone and the sockets are closed: there is nothing left to end, and nothing safe to touch.
        for (auto& slot : slots_) (void)slot.release();
        (void)new std::jthread(std::move(mender_));
        return;
    }
    Error reason(Code::kCancelled, "out of memory");
    try {
        reason = error(Code::kCancelled, "{}: the connection was given up", target_.to_string());
    } catch (const std::bad_alloc&) {  // then it is named by what it is short of
    }
    break_off({.error = reason});
    for (const auto& slot : slots_)
        if (slot->token != 0) slot->io.remove(slot->token, -1);  // its socket is closed already
    std::jthread mender;
    {
        Lock lock(mend_mutex_);
        mender = std::move(mender_);
    }
    if (mender.joinable()) mender.join();
    try {
        begin_farewell();
        Lock lock(failure_mutex_);
        if (farewell_ && farewell_->finish(target_)) initiator_.fences.settled(target_.incarnation, {&session_, 1});
    } catch (const std::bad_alloc&) {  // as when the target does not answer: whoever connects next has the session ended
    }
    initiator_.fences.leave(target_.incarnation, member_);
}

Error TcpPeer::failure() const {
    Lock lock(failure_mutex_);
    return failure_;
}

// ---- work

void TcpPeer::settle(Slot& slot, Attention attention) {
    const short wants = slot.lane.wants();
    // Pairs with stop_driving(): either we see that the last driver has left, or it sees what the lane wants.
    slot.wants.store(wants, std::memory_order_seq_cst);
    if (slot.lane.fd() < 0) return;
    const bool attended = attention == Attention::kMe || drivers_.load(std::memory_order_seq_cst) > 0;
    const uint32_t events = attended ? kArmedIdle : epoll_events(wants);
    if (slot.armed == events || (attended && slot.armed != 0)) return;
    slot.armed = events;
    slot.io.change(slot.token, slot.fd, events);
}

size_t TcpPeer::step(Slot& slot, size_t budget, Attention attention) {
    FinishedList finished;
    size_t moved = 0;
    Verdict verdict;
    bool failed = false, stuck = false;
    // What throws in the middle of a message costs the connection, on whatever thread, and nobody waits in vain.
    try {
        if (slot.lane.fd() >= 0) {
            auto result = slot.lane.progress(queue_, finished, budget);
            stuck = !result && slot.lane.culprit() != nullptr;
            failed = !result && !stuck;
            if (failed) verdict = verdict_on(std::move(result).error());
            else settle(slot, attention);
            if (result) moved = *result;
        }
    } catch (const std::exception&) {
        failed = true;
        verdict = {.error = out_of_memory()};
    }
    slot.mutex.unlock();
    if (failed) break_off(verdict);
    if (stuck) mend_soon();
    if (!finished.empty()) {
        const auto bell = bell_;
        finished.deliver();
        // On an I/O thread `this` may be gone now.
        bell->ring();
        // Who was told may have been put behind us on this core. It goes first, and comes back with more to send.
        if (attention == Attention::kMe && waiters_.load(std::memory_order_relaxed) > 1) ::sched_yield();
    }
    return moved;
}

Verdict TcpPeer::verdict_on(Error error) const {
    // A stream that makes no sense is as lost as one that broke: others may be retried on a new connection.
    const Error named = std::move(error).with_context(target_.to_string());
    return {.error = Error(Code::kUnavailable, named.message(), named.system_errno())};
}

void TcpPeer::on_lane_ready(Slot& slot, uint32_t) {
    slot.mutex.lock();
    slot.armed = 0;
    if (slot.lane.suspended()) return slot.mutex.unlock();  // whatever it is, it comes from the connection that is being replaced
    if (slot.lane.wants() == 0 && slot.lane.fd() >= 0) {
        // Nothing is outstanding, so this can only be the end of the connection.
        char byte = 0;
        const ssize_t got = ::recv(slot.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        const int error = errno;
        if (got >= 0 || error != EAGAIN) {
            slot.mutex.unlock();
            break_off({.error = Error(Code::kUnavailable, format_text("{}: idle: the peer closed the connection", target_.to_string()),
                                      got < 0 ? error : 0)});
            return;
        }
    }
    step(slot, kLaneStepBytes, Attention::kSomebody);
}

bool TcpPeer::drive() {
    // Each thread begins with a lane of its own, or they would all queue up at the first.
    static constinit std::atomic<uint32_t> next_thread{0};
    static thread_local const uint32_t home = next_thread.fetch_add(1, std::memory_order_relaxed);
    bool moved = false;
    for (size_t i = 0; i < slots_.size(); ++i) {
        Slot& slot = *slots_[(home + i) % slots_.size()];
        if (slot.wants.load(std::memory_order_relaxed) == 0 && queue_.empty()) continue;
        if (!slot.mutex.try_lock()) continue;
        moved = step(slot, kLaneStepBytes, Attention::kMe) > 0 || moved;
    }
    return moved;
}

void TcpPeer::submit(Direction direction, std::span<const Slice> slices, Submit how) {
    if (!queue_.push(direction, slices)) {
        const Error error = failure();
        FinishedList finished;
        for (const Slice& slice : slices) finished.fail(slice.completion, 1, error);
        finished.deliver();
        return;
    }
    if (how == Submit::kWait) {
        drive();
        if (!queue_.empty()) bell_->ring();
        return;
    }
    bool stepped = false;
    for (const auto& slot : slots_) {
        if (stepped && queue_.empty()) break;
        if (!slot->mutex.try_lock()) continue;
        step(*slot, kLeaveBytes, Attention::kSomebody);
        stepped = true;
    }
    if (!stepped) {
        slots_.front()->mutex.lock();
        step(*slots_.front(), kLeaveBytes, Attention::kSomebody);
    }
    bell_->ring();
}

// ---- waiting

bool TcpPeer::start_driving() noexcept {
    // Pairs with stop_driving(): who is turned away has pushed its work before, so the last driver to leave sees it.
    int drivers = drivers_.load(std::memory_order_seq_cst);
    while (drivers < initiator_.drivers_max)
        if (drivers_.compare_exchange_weak(drivers, drivers + 1, std::memory_order_seq_cst)) return true;
    return false;
}

void TcpPeer::stop_driving() {
    if (drivers_.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
    // Whatever is still outstanding belongs to others: the I/O threads take it until one of them drives. What is still in the queue is in
    // no lane yet, so that no I/O thread would hear of it, and who pushed it may sleep because we were driving.
    for (const auto& slot : slots_) {
        if (slot->wants.load(std::memory_order_seq_cst) == 0 && queue_.empty()) continue;
        slot->mutex.lock();
        step(*slot, queue_.empty() ? 0 : kLeaveBytes, Attention::kSomebody);
    }
}

bool TcpPeer::wait(Completion& completion, Deadline deadline) {
    waiters_.fetch_add(1, std::memory_order_relaxed);
    const bool done = drive_or_sleep(completion, deadline);
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return done;
}

bool TcpPeer::drive_or_sleep(Completion& completion, Deadline deadline) {
    while (!completion.done()) {
        // Who does not drive may sleep for as long as it takes: those who do, and after them the I/O threads, finish its work as well.
        if (!start_driving()) return completion.wait(deadline);
        const Driven driven = drive_until(completion, deadline);
        stop_driving();
        if (driven == Driven::kTimedOut) return completion.done();
        if (driven == Driven::kCrowded) return completion.wait(deadline);
    }
    return true;
}

void TcpPeer::poke() {
    if (drivers_.load(std::memory_order_relaxed) > 0) return;
    for (const auto& slot : slots_) {
        if (slot->wants.load(std::memory_order_relaxed) == 0 && queue_.empty()) continue;
        if (slot->mutex.try_lock()) step(*slot, kPokeBytes, Attention::kSomebody);
    }
}

TcpPeer::Driven TcpPeer::drive_until(const Completion& completion, Deadline deadline) {
    SpinPause pause;
    bool idle = false;
    Duration budget{};
    Deadline spin_end = deadline;
    for (;;) {
        const bool moved = drive();
        if (completion.done()) return Driven::kDone;
        if (moved) {
            if (idle) spin_.ended(true, budget);
            idle = false;
            continue;
        }
        if (!idle) {
            idle = true;
            budget = spin_.budget();
            spin_end = Deadline::after(budget).earlier(deadline);
        }
        if (!spin_end.passed()) {
            pause();
            continue;
        }
        if (deadline.passed()) return Driven::kTimedOut;
        spin_.ended(false, budget);
        if (!sleep(completion, deadline)) return Driven::kCrowded;
        idle = false;
    }
}

bool TcpPeer::sleep(const Completion& completion, Deadline deadline) {
    if (bell_->sleeping.exchange(true, std::memory_order_seq_cst)) return false;
    // Who finishes our completion or leaves work in the queue after this point rings.
    if (!completion.done() && (queue_.empty() || !drive())) {
        std::array<pollfd, 1 + kLanesMax> polled{};
        size_t count = 0;
        polled[count++] = {.fd = bell_->event.fd(), .events = POLLIN, .revents = 0};
        for (const auto& slot : slots_)
            if (const short wants = slot->wants.load(std::memory_order_seq_cst); wants != 0)
                polled[count++] = {.fd = slot->fd, .events = wants, .revents = 0};
        ::poll(polled.data(), count, Deadline::after(kSleepMax).earlier(deadline).left_ms());
        uint64_t kicks = 0;
        if (polled[0].revents != 0) (void)!::read(bell_->event.fd(), &kicks, sizeof kicks);
    }
    bell_->sleeping.store(false, std::memory_order_seq_cst);
    return true;
}

void TcpPeer::Bell::ring() const noexcept {
    if (!sleeping.load(std::memory_order_seq_cst)) return;
    const uint64_t one = 1;
    (void)!::write(event.fd(), &one, sizeof one);
}

// ---- ending

void TcpPeer::break_off(const Verdict& verdict) noexcept {
    bool first = false;
    {
        Lock lock(failure_mutex_);
        first = !broken_.load(std::memory_order_relaxed);
        if (first) {
            failure_ = copy_error(verdict.error);
            // Before anybody can notice the break: who connects because of it must know of it. For numbers: must get a higher one than our
            // fence, so that this, should it come late, cannot hit the new connection.
            initiator_.fences.doubt(target_.incarnation, session_);
            fence_number_ = initiator_.next_number.fetch_add(1, std::memory_order_relaxed);
        }
        broken_.store(true, std::memory_order_release);
    }
    queue_.close();
    // Behind each mutex the lane's thread has left its system call, so local memory is quiet when the loop ends.
    for (const auto& slot : slots_) {
        Lock lock(slot->mutex);
        if (slot->lane.in_flight(nullptr).write) in_doubt_.store(true, std::memory_order_release);
        slot->lane.cut_off();
        slot->wants.store(0, std::memory_order_seq_cst);
    }
    if (in_doubt_.load(std::memory_order_acquire)) {
        initiator_.fences.outdate_others(target_.incarnation, &member_);
    } else if (first) {
        Lock lock(failure_mutex_);
        initiator_.fences.settled(target_.incarnation, {&session_, 1});
    }
    fail_all(verdict);
}

void TcpPeer::fail_all(const Verdict& verdict) noexcept {
    const auto bell = bell_;  // who hears of the last of them may destroy us
    FinishedList finished;
    while (!queue_.fail_all(verdict, finished)) finished.deliver();
    for (const auto& slot : slots_) {
        for (bool all = false; !all;) {
            {
                Lock lock(slot->mutex);
                all = slot->lane.fail_all(verdict, finished);
            }
            if (!all) finished.deliver();
        }
    }
    finished.deliver();
    bell->ring();
}

void TcpPeer::close(const Error& reason) {
    break_off({.error = reason});
    begin_farewell();
}

/// What ends our session. After it broke.
Hello TcpPeer::last_word() const {
    Hello hello = initiator_.hello(target_);
    hello.session = SessionId::random();
    hello.ended = {session_};
    hello.number = fence_number_;
    return hello;
}

void TcpPeer::begin_farewell() {
    if (!in_doubt()) return;
    Lock lock(failure_mutex_);
    if (!farewell_) farewell_.emplace(address_, last_word(), patience_);
}

bool TcpPeer::in_doubt() const {
    if (!in_doubt_.load(std::memory_order_acquire)) return false;
    if (target_.version == kNumberedSessions) return true;
    Lock lock(failure_mutex_);
    return initiator_.fences.in_doubt(target_.incarnation, session_);  // or else somebody's new connection has ended it
}

bool TcpPeer::fence(Deadline deadline) {
    Lock asking(fence_mutex_);
    if (!in_doubt()) return true;
    if (unanswered_) return false;
    Hello hello;
    {
        Lock lock(failure_mutex_);
        if (farewell_) return false;  // it is on its way, and only the destructor waits for what comes of it
        hello = last_word();
    }
    const auto greeted = greet(target_, hello, deadline);
    // kStale: the process that could have applied our bytes is gone; or, with numbers, a newer session of ours did it already.
    unanswered_ = !greeted && greeted.error().code() != Code::kStale;
    if (unanswered_) return false;
    initiator_.fences.settled(target_.incarnation, hello.ended);
    in_doubt_.store(false, std::memory_order_release);
    return true;
}

void TcpPeer::take_back(Completion& completion, const Error& reason) {
    FinishedList finished;
    queue_.remove(completion, reason, finished);
    for (const auto& slot : slots_) {
        Lock lock(slot->mutex);
        if (slot->lane.fd() >= 0) slot->lane.take_back(completion, reason, finished);
    }
    finished.deliver();
    bell_->ring();
}

void TcpPeer::withdraw(const Completion& whole, const Error& reason) {
    FinishedList finished;
    queue_.remove(whole, reason, finished);
    finished.deliver();
}

Stopped TcpPeer::cancel(Completion& completion, const Error& reason, Deadline deadline) {
    take_back(completion, reason);
    if (!wait(completion, Deadline::after(kDrainTime).earlier(deadline))) {
        Lock asking(fence_mutex_);
        replace_lanes(completion, reason, deadline);
    }
    completion.wait(Deadline::never());  // who took the last answers may still be on the way to tell it
    // Had the peer broken earlier, we cannot tell any more what was under way.
    return !in_doubt() || fence(deadline) ? Stopped::kEverywhere : Stopped::kRemoteInDoubt;
}

}  // namespace mooncake::tcp
