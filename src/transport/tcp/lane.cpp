// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/lane.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace mooncake::tcp {

namespace {

Unexpected connection_error(const char* stage, int error) {
    if (error == IoResult::kStreamEnd) return fail(Code::kUnavailable, "{}: the peer closed the connection", stage);
    return fail_errno(Code::kUnavailable, error, "{}: the connection failed", stage);
}

/// False when memory is not there at all, or ends too early: it is looked at where its pieces begin and end. What is missing in between
/// is found while it is sent.
bool seems_readable(std::span<const iovec> pieces) {
    std::array<iovec, 64> ends;
    Scratch scratch;
    for (; !pieces.empty(); pieces = pieces.subspan(std::min(pieces.size(), ends.size() / 2))) {
        size_t count = 0;
        for (const iovec& piece : pieces.first(std::min(pieces.size(), ends.size() / 2))) {
            ends[count++] = {.iov_base = piece.iov_base, .iov_len = 1};
            ends[count++] = {.iov_base = static_cast<std::byte*>(piece.iov_base) + piece.iov_len - 1, .iov_len = 1};
        }
        if (scratch.load(std::span(ends).first(count), count) != count) return false;
    }
    return true;
}

Error no_local_memory() { return error(Code::kNotRegistered, "tcp: local memory is not accessible"); }

}  // namespace

short Lane::wants() const noexcept {
    if (count_ == 0 || suspended_) return 0;
    return static_cast<short>(sent_ < count_ ? POLLIN | POLLOUT : POLLIN);
}

void Lane::pull(WorkQueue& queue, FinishedList& finished) {
    while (count_ < kFlightsMax && bytes_ < kWindowBytes && unsent_bytes_ < kUnsentBytes) {
        Flight& next = flight(count_);
        if (!queue.pull(next, checked_, finished)) return;
        ++count_;  // first: from now on it ends with us, whatever may throw
        bytes_ += next.bytes;
        if (next.direction == Direction::kWrite && !next.mapped && !seems_readable(next.out.payload().rest())) {
            finished.fail(next.completion, next.operations, no_local_memory());
            --count_;
            bytes_ -= next.bytes;
            continue;
        }
        ask(next);
    }
}

void Lane::ask(Flight& next) {
    next.id = next_id_++;
    const Kind kind = next.direction == Direction::kWrite ? Kind::kWrite : Kind::kRead;
    append_head({.kind = kind, .payload_bytes = next.bytes, .id = next.id, .part = next.part}, next.remote, checked_, next.out.head());
    unsent_bytes_ += next.out.left();
}

Result<size_t> Lane::send() {
    if (sent_ == count_) return 0;
    IovList list;
    for (size_t i = sent_; i < count_ && list.bytes() < kSendBytes; ++i)
        if (!flight(i).out.gather(list)) break;
    const IoResult result = list.send(fd());
    if (result.error == EFAULT) {
        // The target expects the rest, and would apply whatever we sent instead.
        culprit_ = flight(sent_).completion;
        suspended_ = true;
        return Unexpected(no_local_memory());
    }
    if (result.error != 0) return connection_error("send", result.error);
    unsent_bytes_ -= result.bytes;
    for (size_t left = result.bytes; left > 0;) {
        Outgoing& out = flight(sent_).out;
        left = out.consume(left, list);
        if (!out.done()) break;
        // It is in the cache, and the target has enough to do meanwhile.
        if (flight(sent_).direction == Direction::kWrite) flight(sent_).show();
        ++sent_;
    }
    return result.bytes;
}

/// How much to read where the answer to a flight begins. What is read of a payload together with its head is copied once more, by one more
/// call; answers without payload come in crowds.
size_t Lane::ahead_bytes(size_t index) const noexcept {
    return index < sent_ && flight(index).direction == Direction::kRead ? kHeaderBytes : kAheadBytes;
}

Result<size_t> Lane::receive(FinishedList& finished) {
    if (count_ == 0) return 0;
    const IoResult result = answering_ ? incoming_.receive(fd(), inbox_, ahead_bytes(1))
                                       : inbox_.receive(fd(), inbox_.bytes().empty() ? ahead_bytes(0) : kAheadBytes);
    if (result.error != 0) return connection_error("receive", result.error);
    if (result.bytes > 0) MC_RETURN_IF_ERROR(handle_inbox(finished));
    return result.bytes;
}

Result<> Lane::handle_inbox(FinishedList& finished) {
    for (;;) {
        if (answering_) {
            incoming_.take(inbox_);
            if (!incoming_.done()) return {};
            end_answer(finished);
            continue;
        }
        const auto bytes = inbox_.bytes();
        if (bytes.size() < kHeaderBytes) return {};
        const auto head = bytes.first<kHeaderBytes>();
        if (checked_ && !head_intact(head)) return fail(Code::kCorrupt, "receive: the checksum of an answer is wrong");
        MC_ASSIGN_OR_RETURN(const Header header, decode_header(head));
        MC_RETURN_IF_ERROR(begin_answer(header));
        inbox_.drop(kHeaderBytes);
    }
}

Result<> Lane::begin_answer(const Header& header) {
    if (sent_ == 0 || header.id != flight(0).id) return fail(Code::kCorrupt, "receive: an answer to nothing we asked");
    Flight& front = flight(0);
    const Kind expected = front.direction == Direction::kWrite ? Kind::kWritten : Kind::kData;
    if (header.kind != Kind::kError && (header.kind != expected || (expected == Kind::kData && header.payload_bytes != front.bytes)))
        return fail(Code::kCorrupt, "receive: an answer that does not fit the question");
    answering_ = true;
    answer_ = header.status;
    incoming_.start(header.payload_bytes, checked_ && header.kind == Kind::kData);
    if (header.kind == Kind::kData && front.completion == nullptr) incoming_.discard();
    else if (header.kind == Kind::kData) std::swap(incoming_.into(), front.local);
    else if (header.kind == Kind::kError) incoming_.into().append(text_.data(), header.payload_bytes);
    return {};
}

void Lane::tell(Flight& front, FinishedList& finished) {
    if (front.completion == nullptr) return;
    if (incoming_.faulted()) {
        finished.fail(front.completion, front.operations, no_local_memory());
    } else if (answer_ != Status::kOk) {
        const std::string_view text(reinterpret_cast<const char*>(text_.data()), text_.size());
        finished.fail(front.completion, front.operations,
                      error(code_of(answer_), "tcp: the peer refused: {}", text.substr(0, text.find('\0'))));
    } else if (!incoming_.intact()) {
        finished.fail(front.completion, front.operations, error(Code::kCorrupt, "tcp: the checksum of what was read is wrong"));
    } else {
        if (front.direction == Direction::kRead) front.show();
        finished.succeed(front.completion, front.operations, front.bytes);
    }
}

void Lane::end_answer(FinishedList& finished) {
    Flight& front = flight(0);
    tell(front, finished);
    if (answer_ != Status::kOk) text_.fill(std::byte{0});
    bytes_ -= front.bytes;
    first_ = (first_ + 1) % kFlightsMax;
    --count_;
    --sent_;
    answering_ = false;
}

Result<size_t> Lane::progress(WorkQueue& queue, FinishedList& finished, size_t budget) {
    size_t moved = 0;
    if (suspended_) return moved;
    while (moved < budget) {
        pull(queue, finished);
        MC_ASSIGN_OR_RETURN(const size_t sent, send());
        MC_ASSIGN_OR_RETURN(const size_t received, receive(finished));
        if (sent + received == 0) return moved;
        moved += sent + received;
    }
    // The queue must not be left alone with idle lanes: what we take now is what wants() will speak of.
    pull(queue, finished);
    return moved;
}

Lane::InFlight Lane::in_flight(const Completion* completion) const noexcept {
    InFlight found;
    for (size_t i = 0; i < count_; ++i) {
        if (completion != nullptr && flight(i).completion != completion) continue;
        found.any = true;
        found.write = found.write || (flight(i).direction == Direction::kWrite && flight(i).out.started());
    }
    return found;
}

bool Lane::fail_all(const Verdict& verdict, FinishedList& finished) noexcept {
    for (; count_ > 0; --count_) {
        const Flight& last = flight(count_ - 1);
        if (last.completion != nullptr && !finished.try_fail(last.completion, last.operations, verdict.on(last.completion))) return false;
    }
    first_ = sent_ = 0;
    return true;
}

/// Takes flights from the `from`-th on out of the ring.
template <typename Condition>
void Lane::remove_if(size_t from, const Condition& condition) {
    size_t kept = from;
    for (size_t i = from; i < count_; ++i) {
        if (condition(flight(i))) {
            bytes_ -= flight(i).bytes;
            continue;
        }
        if (kept != i) std::swap(flight(kept), flight(i));
        ++kept;
    }
    count_ = kept;
}

void Lane::take_back(const Completion& completion, const Error& reason, FinishedList& finished) {
    const auto mine = [&](const Flight& one) { return one.completion == &completion; };
    const size_t unsent = sent_ < count_ && flight(sent_).out.started() ? sent_ + 1 : sent_;
    remove_if(unsent, [&](const Flight& one) {
        if (!mine(one)) return false;
        unsent_bytes_ -= one.out.left();
        finished.fail(one.completion, one.operations, reason);
        return true;
    });
    for (size_t i = 0; i < count_; ++i) {
        Flight& one = flight(i);
        if (!mine(one) || one.direction == Direction::kWrite) continue;
        finished.fail(one.completion, one.operations, reason);
        one.completion = nullptr;
        if (i == 0 && answering_ && answer_ == Status::kOk) incoming_.discard();
    }
}

void Lane::suspend(const Completion& completion, const Error& reason, FinishedList& finished) {
    suspended_ = true;
    sent_ = 0;
    remove_if(0, [&](const Flight& one) {
        if (one.completion == &completion) finished.fail(one.completion, one.operations, reason);
        return one.completion == &completion || one.completion == nullptr;
    });
}

Result<> Lane::resume(net::Socket socket, bool checked) {
    MC_RETURN_IF_ERROR(socket_.replace_hard(std::move(socket)));
    checked_ = checked;
    suspended_ = false;
    culprit_ = nullptr;
    answering_ = false;
    text_.fill(std::byte{0});
    inbox_ = Inbox();
    sent_ = 0;
    unsent_bytes_ = 0;
    for (size_t i = 0; i < count_; ++i) {
        flight(i).build(checked_);
        ask(flight(i));
    }
    return {};
}

}  // namespace mooncake::tcp
