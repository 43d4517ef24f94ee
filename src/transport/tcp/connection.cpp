// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/log.h"
#include "base/other_processes.h"
#include "transport/tcp/server.h"

namespace mooncake::tcp {

Connection::Connection(Server& server, IoThread& io, net::Socket socket)
    : server_(server), io_(io), socket_(std::move(socket)), accepted_at_(Clock::now()), received_at_(accepted_at_), sent_at_(accepted_at_) {
}

Result<> Connection::start() {
    Lock lock(mutex_);  // the first event waits for us
    interest_ = EPOLLIN;
    MC_ASSIGN_OR_RETURN(token_, io_.add(socket_.fd(), *this, interest_));
    ticking_ = true;
    io_.want_ticks(1);
    return {};
}

Connection::~Connection() {
    Lock lock(mutex_);
    if (!gate_) return;
    gate_->forget();
    if (write_) server_.staging().withdraw(*write_);
    for (const Reply& one : replies_)
        if (one.device) server_.staging().withdraw(*one.device);
    gate_->wait_until_left();
}

void Connection::shut() {
    std::shared_ptr<DeviceGate> gate;
    {
        Lock lock(mutex_);
        phase_ = Phase::kClosed;
        ::shutdown(socket_.fd(), SHUT_RDWR);  // wakes the I/O thread, which retires us
        gate = gate_;
    }
    if (!gate) return;
    gate->close();
    gate->wait_until_left();
}

void Connection::retire() {
    {
        Lock lock(mutex_);
        phase_ = Phase::kClosed;
        if (gate_) gate_->close();
        if (gate_ && gate_->copying()) {
            // Our session must not be forgotten before. Who copies wakes us when it is over, and we come here again.
            socket_.reset_hard();
            return;
        }
        if (ticking_) io_.want_ticks(-1);
        ticking_ = false;
        io_.remove(token_, socket_.fd());
        socket_.reset_hard();
        if (gate_) gate_->forget();
    }
    server_.forget(*this);  // destroys us
}

void Connection::on_ready(uint32_t) {
    bool alive = false;
    std::optional<Hello> hello;
    {
        Lock lock(mutex_);
        if (phase_ == Phase::kHello) alive = receive_hello(hello);
        else alive = phase_ != Phase::kClosed && work();
        if (alive) update_interest();
    }
    if (alive && hello) {
        const HelloReply answer = server_.greet(*this, *hello);  // takes the mutex that comes before ours
        Lock lock(mutex_);
        alive = phase_ != Phase::kClosed && welcome(answer) && work();
        if (alive) update_interest();
    }
    if (!alive) retire();
}

bool Connection::poll() {
    bool alive = false;
    size_t done = 0;
    {
        Lock lock(mutex_);
        if (phase_ != Phase::kOpen || !conversing_) return false;
        alive = work(done);
        if (alive && done > 0) update_interest();
    }
    if (!alive) retire();
    return !alive || done > 0;
}

void Connection::on_tick(Time now) {
    bool late = false;
    {
        Lock lock(mutex_);
        late = overdue(now);
    }
    if (late) retire();
}

bool Connection::overdue(Time now) {
    if (std::exchange(received_, false)) received_at_ = now;
    if (std::exchange(sent_, false)) sent_at_ = now;
    if (phase_ == Phase::kClosed) return true;
    if (phase_ != Phase::kOpen) return now - accepted_at_ > kHelloTimeout;
    if ((writing_ || !inbox_.bytes().empty()) && now - received_at_ > kMessageTimeout) return true;
    return reply_count_ > 0 && !replies_[first_reply_].waiting && now - sent_at_ > kReplyTimeout;
}

void Connection::update_interest() {
    uint32_t wanted = 0;
    if (may_receive()) wanted |= EPOLLIN;
    if (reply_count_ > 0 && !reply(0).waiting) wanted |= EPOLLOUT;
    if (wanted != interest_) {
        interest_ = wanted;
        io_.change(token_, socket_.fd(), wanted);
    }
    const bool pending = phase_ != Phase::kOpen || writing_ || !inbox_.bytes().empty() || reply_count_ > 0;
    if (pending != ticking_) {
        ticking_ = pending;
        io_.want_ticks(pending ? 1 : -1);
    }
}

bool Connection::may_receive() const {
    return answers_owed_ < kAnswersMax && reply_descriptors_ < kReplyDescriptorsMax && !waiting_for_slots_ &&
           (writing_ || device_messages_ < kDeviceMessagesMax);
}

bool Connection::work() {
    size_t done = 0;
    return work(done);
}

bool Connection::work(size_t& done) {
    const bool conversed = std::exchange(conversing_, false);
    one_question_ = conversed && std::exchange(paused_, false);
    if (device_messages_ > 0 && phase_ == Phase::kOpen && !collect()) return false;
    while (done < kConnectionStepBytes) {
        IoResult received;
        size_t sent = 0;
        if (may_receive() && !receive(received)) return false;
        if (!flush(sent)) return false;
        // Answers that left make room for requests that are here already: perhaps nothing more will come in to remind us of them.
        if (sent > 0 && phase_ == Phase::kOpen && !inbox_.bytes().empty() && !handle_inbox()) return false;
        if (received.bytes + sent == 0) {
            conversing_ = paused_ = conversed && done == 0;
            break;
        }
        done += received.bytes + sent;
        // All that came was one question, and it is answered. Asking whether there is more would cost as much as being told.
        const bool answered = (received.drained || one_question_) && !writing_ && inbox_.bytes().empty() && reply_count_ == 0;
        conversing_ = answered && done <= kConversationBytes;
        if (answered) break;
    }
    return true;
}

// ---- receiving

bool Connection::receive(IoResult& result) {
    // Who has sent a part of a head may send a longer one than before.
    result = writing_ ? receive_payload() : inbox_.receive(socket_.fd(), inbox_.bytes().empty() ? ahead_bytes_ : kAheadBytes);
    if (result.error != 0) return false;
    if (result.bytes > 0) received_ = true;
    note_asked_by_others();
    if (phase_ == Phase::kParting) {
        inbox_.drop(inbox_.bytes().size());
        return true;
    }
    return result.bytes == 0 || handle_inbox();
}

bool Connection::receive_hello(std::optional<Hello>& hello) {
    if (inbox_.receive(socket_.fd(), kAheadBytes).error != 0) return false;
    const auto bytes = inbox_.bytes();
    if (!may_be_hello(bytes)) return false;
    const size_t length = hello_bytes(bytes);
    if (length == 0 || bytes.size() < length) return true;
    auto decoded = decode_hello(bytes.first(length));
    if (!decoded) return false;
    hello = std::move(*decoded);
    inbox_.drop(length);
    return true;
}

bool Connection::welcome(const HelloReply& answer) {
    checked_ = (answer.features & kFeatureChecksum) != 0;
    knows_kinds_ = (answer.features & kFeatureKinds) != 0;
    knows_devices_ = (answer.features & kFeatureDevices) != 0;
    new_reply(0).out.head() = encode(answer);
    phase_ = answer.status == Status::kOk ? Phase::kOpen : Phase::kParting;
    return phase_ == Phase::kParting || handle_inbox();
}

bool Connection::handle_inbox() {
    while (may_receive()) {
        if (writing_) {
            take_payload();
            if (!incoming_.done()) return true;
            end_write();
            continue;
        }
        bool complete = false;
        if (!handle_head(complete)) return false;
        if (!complete) return true;
    }
    return true;
}

bool Connection::handle_head(bool& complete) {
    const auto bytes = inbox_.bytes();
    if (bytes.size() < kHeaderBytes) return true;
    const auto header = decode_header(bytes.first<kHeaderBytes>());
    if (!header || (header->kind != Kind::kWrite && header->kind != Kind::kRead)) return server_.complain(*this, "a header makes no sense");
    const size_t head = head_bytes(*header);
    if (bytes.size() < head) return true;
    if (auto decoded = decode_descriptors(*header, bytes.first(head), checked_, ranges_); !decoded)
        return server_.complain(*this, decoded.error().message());
    inbox_.drop(head);
    complete = true;
    // Like follows like. What is read of a payload together with its head is copied once more, by one more call.
    ahead_bytes_ = header->kind == Kind::kWrite ? head : kAheadBytes;
    if (header->kind == Kind::kWrite) begin_write(*header);
    else begin_read(*header);
    return true;
}

Status Connection::refusal_status(AddressRange range, Access access) const {
    const bool device = server_.access().refusal_code(range, access) == Code::kNotSupported;
    return device && knows_kinds_ ? Status::kNotSupported : Status::kNotRegistered;
}

void Connection::refuse_write(AddressRange range) {
    refusal_ = refusal_status(range, Access::kWrite);
    refusal_text_ = server_.access().refusal(range, Access::kWrite);
    incoming_.discard();
}

void Connection::begin_write(const Header& header) {
    writing_ = true;
    write_id_ = header.id;
    refusal_ = Status::kOk;
    incoming_.start(header.payload_bytes, checked_);
    checked_version_ = server_.access().version();
    const size_t bad = server_.access().first_not_covered(ranges_, Access::kWrite);
    if (bad != ranges_.size()) {
        if (!begin_device_write(header)) refuse_write(ranges_[bad]);
        return;
    }
    for (const AddressRange& range : moved_ranges(header))
        incoming_.into().append(reinterpret_cast<std::byte*>(range.address), range.length);
}

/// Inside a Section. Stops the write if memory it has yet to touch was revoked meanwhile.
void Connection::recheck_write() {
    const uint64_t version = server_.access().version();
    if (version == checked_version_ || incoming_.discarding() || write_) return;
    for (const iovec& piece : incoming_.into().rest()) {
        const AddressRange range{.address = reinterpret_cast<uint64_t>(piece.iov_base), .length = piece.iov_len};
        if (!server_.access().covers(range, Access::kWrite)) return refuse_write(range);
    }
    checked_version_ = version;
}

IoResult Connection::receive_payload() {
    const auto section = server_.access().section();
    recheck_write();
    // To read a head as well makes it a longer call, also where none comes.
    return incoming_.receive(socket_.fd(), inbox_, one_question_ ? 0 : ahead_bytes_);
}

void Connection::take_payload() {
    if (inbox_.bytes().empty()) return;
    const auto section = server_.access().section();
    recheck_write();
    incoming_.take(inbox_);
}

void Connection::end_write() {
    writing_ = false;
    if (write_ && end_device_write(std::exchange(write_, nullptr))) return;
    if (incoming_.faulted()) return answer_error(write_id_, Status::kNotRegistered, "registered memory is not writable (unmapped?)");
    if (refusal_ != Status::kOk) return answer_error(write_id_, refusal_, refusal_text_);
    if (!incoming_.intact()) return answer_error(write_id_, Status::kCorrupt, "the checksum of what was written is wrong");
    append_head({.kind = Kind::kWritten, .id = write_id_}, {}, checked_, head_for_answer(write_id_));
}

void Connection::begin_read(const Header& header) {
    const uint64_t version = server_.access().version();
    const size_t bad = server_.access().first_not_covered(ranges_, Access::kRead);
    if (bad != ranges_.size() && begin_device_read(header)) return;
    if (bad != ranges_.size())
        return answer_error(header.id, refusal_status(ranges_[bad], Access::kRead), server_.access().refusal(ranges_[bad], Access::kRead));
    Reply& answer = new_reply(header.id);
    answer.out.start(checked_);
    answer.checked_version = version;
    append_head({.kind = Kind::kData, .payload_bytes = header.payload_bytes, .id = header.id}, {}, checked_, answer.out.head());
    for (const AddressRange& range : moved_ranges(header))
        answer.out.payload().append(reinterpret_cast<std::byte*>(range.address), range.length);
    reply_descriptors_ += answer.out.payload().rest().size();
}

// ---- answering

Connection::Reply& Connection::new_reply(uint64_t id) {
    if (reply_count_ == 0) sent_ = true;
    Reply& fresh = reply(reply_count_++);
    fresh.out.start(false);
    fresh.id = id;
    fresh.answers = 1;
    fresh.device.reset();
    fresh.waiting = false;
    ++answers_owed_;
    return fresh;
}

/// Short answers in a row become one piece.
std::vector<std::byte>& Connection::head_for_answer(uint64_t id) {
    if (reply_count_ == 0 || !reply(reply_count_ - 1).out.head_only() || reply(reply_count_ - 1).waiting) return new_reply(id).out.head();
    Reply& last = reply(reply_count_ - 1);
    ++last.answers;
    ++answers_owed_;
    return last.out.head();
}

void Connection::answer_error(uint64_t id, Status status, const std::string& text) { append_error(head_for_answer(id), id, status, text); }

void Connection::append_error(std::vector<std::byte>& head, uint64_t id, Status status, std::string_view text) const {
    const size_t length = std::min(text.size(), kTextBytesMax);
    append_head({.kind = Kind::kError, .status = status, .payload_bytes = static_cast<uint32_t>(length), .id = id}, {}, checked_, head);
    const auto bytes = std::as_bytes(std::span(text)).first(length);
    head.insert(head.end(), bytes.begin(), bytes.end());
}

/// Inside a Section. False when an answer that has begun cannot be continued.
bool Connection::recheck_reads() {
    const uint64_t version = server_.access().version();
    for (size_t i = 0; i < reply_count_; ++i) {
        Reply& answer = reply(i);
        if (answer.out.payload().left() == 0 || answer.checked_version == version || answer.device) continue;
        answer.checked_version = version;
        for (const iovec& piece : answer.out.payload().rest()) {
            const AddressRange range{.address = reinterpret_cast<uint64_t>(piece.iov_base), .length = piece.iov_len};
            if (server_.access().covers(range, Access::kRead)) continue;
            if (answer.out.started()) return server_.complain(*this, "memory was unregistered in the middle of a read");
            const uint64_t id = answer.id;
            reply_descriptors_ -= answer.out.payload().rest().size();
            answer.out.start(false);
            append_error(answer.out.head(), id, refusal_status(range, Access::kRead), server_.access().refusal(range, Access::kRead));
            break;
        }
    }
    return true;
}

bool Connection::flush(size_t& moved) {
    if (reply_count_ == 0 || reply(0).waiting) return true;
    if (reply_descriptors_ == 0 && device_messages_ == 0) return send_answers(moved);  // none has a payload
    const auto section = server_.access().section();
    return recheck_reads() && send_answers(moved);
}

bool Connection::send_answers(size_t& moved) {
    IovList list;
    for (size_t i = 0; i < reply_count_ && list.bytes() < kSendBytes && !reply(i).waiting; ++i)
        if (!reply(i).out.gather(list)) break;
    note_answering_others();
    const IoResult result = list.send(socket_.fd());
    if (result.error == EFAULT) return server_.complain(*this, "registered memory is not readable (unmapped?)");
    if (result.error != 0) return false;
    moved = result.bytes;
    if (moved > 0) sent_ = true;
    for (size_t left = result.bytes; left > 0;) {
        Outgoing& out = reply(0).out;
        const size_t before = out.payload().rest().size();
        left = out.consume(left, list);
        reply_descriptors_ -= before - out.payload().rest().size();
        if (!out.done()) break;
        if (reply(0).device) {
            reply(0).device.reset();
            --device_messages_;
        }
        answers_owed_ -= reply(0).answers;
        first_reply_ = (first_reply_ + 1) % kAnswersMax;
        --reply_count_;
    }
    if (reply_count_ == 0 && phase_ == Phase::kParting) ::shutdown(socket_.fd(), SHUT_WR);
    return true;
}

}  // namespace mooncake::tcp
