// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream.h"

#include <sys/socket.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/other_processes.h"

#if defined(MC_TSAN)
#include <sys/syscall.h>
#include <unistd.h>

#include "net/address.h"
extern "C" void __tsan_read_range(void* at, size_t size);
extern "C" void __tsan_write_range(void* at, size_t size);
#endif

namespace mooncake::tcp {

namespace {

// ThreadSanitizer does not know that a byte is sent before it is received. Tests with both ends in one process need it told;
// each connection has a clock of its own, so that no more is taken as ordered than really is.
#if defined(MC_TSAN)
void* clock_of(int fd) noexcept {
    static constinit std::array<char, 65536> clocks{};
    net::SocketAddress ours, theirs;
    ours.length = theirs.length = sizeof ours.storage;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&ours.storage), &ours.length);
    ::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs.storage), &theirs.length);
    return &clocks[ours.port() ^ theirs.port()];
}

ssize_t send_pieces(int fd, iovec* pieces, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) __tsan_read_range(pieces[i].iov_base, pieces[i].iov_len);
    __tsan_release(clock_of(fd));
    const msghdr message{.msg_iov = pieces, .msg_iovlen = count};
    return ::syscall(SYS_sendmsg, fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);  // past the interceptor
}

ssize_t receive_pieces(int fd, iovec* pieces, size_t count) noexcept {
    const msghdr message{.msg_iov = pieces, .msg_iovlen = count};
    const ssize_t received = ::syscall(SYS_recvmsg, fd, &message, MSG_DONTWAIT);
    const int error = errno;
    __tsan_acquire(clock_of(fd));
    size_t left = received > 0 ? static_cast<size_t>(received) : 0;
    for (size_t i = 0; left > 0; ++i) {
        const size_t here = std::min(left, pieces[i].iov_len);
        __tsan_write_range(pieces[i].iov_base, here);
        left -= here;
    }
    errno = error;
    return received;
}
#else
ssize_t send_pieces(int fd, iovec* pieces, size_t count) noexcept {
    // The kernel has less to look at.
    if (count == 1) return ::send(fd, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    const msghdr message{.msg_iov = pieces, .msg_iovlen = count};
    return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t receive_pieces(int fd, iovec* pieces, size_t count) noexcept {
    if (count == 1) return ::recv(fd, pieces->iov_base, pieces->iov_len, MSG_DONTWAIT);
    msghdr message{.msg_iov = pieces, .msg_iovlen = count};
    return ::recvmsg(fd, &message, MSG_DONTWAIT);
}
#endif

IoResult result_of(ssize_t count) noexcept {
    if (count > 0) return {.bytes = static_cast<size_t>(count)};
    if (count == 0) return {.error = IoResult::kStreamEnd};
    if (errno == EAGAIN || errno == EINTR) return {};
    return {.error = errno};
}

}  // namespace

void note_sent([[maybe_unused]] int fd) noexcept {
#if defined(MC_TSAN)
    __tsan_release(clock_of(fd));
#endif
}

void note_received([[maybe_unused]] int fd) noexcept {
#if defined(MC_TSAN)
    __tsan_acquire(clock_of(fd));
#endif
}

void IovList::add(const void* at, size_t length) noexcept {
    pieces_[count_++] = {.iov_base = const_cast<void*>(at), .iov_len = length};
    bytes_ += length;
}

bool IovList::add(std::span<const iovec> pieces) noexcept {
    const size_t fitting = std::min(pieces.size(), kMax - count_);
    for (size_t i = 0; i < fitting; ++i) {
        pieces_[count_ + i] = pieces[i];
        bytes_ += pieces[i].iov_len;
    }
    count_ += fitting;
    return fitting == pieces.size();
}

void IovList::add_copy(std::span<const iovec> pieces, uint64_t bytes) {
    scratch_.emplace();
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(bytes, Scratch::kBytes));
    // Where not even one byte is readable the piece itself is added, for the kernel to say so when it is its turn.
    if (const size_t loaded = scratch_->load(pieces, wanted); loaded > 0) add(scratch_->data(), loaded);
    else add(pieces.front().iov_base, 1);
}

IoResult IovList::send(int fd) noexcept {
    const IoResult result = result_of(send_pieces(fd, pieces_, count_));
    // A fault anywhere in the list may hide how far the kernel could have come: go on in the smallest steps.
    return result.error == EFAULT && count_ > 1 ? result_of(send_pieces(fd, pieces_, 1)) : result;
}

IoResult IovList::receive(int fd) noexcept {
    IoResult result = result_of(receive_pieces(fd, pieces_, count_));
    if (result.error == EFAULT && count_ > 1) return result_of(receive_pieces(fd, pieces_, 1));
    result.drained = result.bytes < bytes_;
    return result;
}

void Checksum::Free::operator()(XXH3_state_s* state) const noexcept { XXH3_freeState(state); }

void Checksum::start(bool on) {
    on_ = on;
    if (!on) return;
    if (!state_) state_.reset(XXH3_createState());
    if (!state_) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
}

void Checksum::update(const void* at, size_t length) noexcept {
    if (on_) XXH3_64bits_update(state_.get(), at, length);
}

uint64_t Checksum::value() const noexcept { return XXH3_64bits_digest(state_.get()); }

void Pieces::clear() noexcept {
    pieces_.clear();
    next_ = 0;
    left_ = 0;
}

void Pieces::append(std::byte* at, size_t length) {
    left_ += length;
    if (!pieces_.empty()) {
        iovec& last = pieces_.back();
        if (static_cast<std::byte*>(last.iov_base) + last.iov_len == at) {
            last.iov_len += length;
            return;
        }
    }
    pieces_.push_back({.iov_base = at, .iov_len = length});
}

void Pieces::consume(size_t bytes) noexcept {
    left_ -= bytes;
    while (bytes > 0) {
        iovec& piece = pieces_[next_];
        const size_t taken = std::min(bytes, piece.iov_len);
        bytes -= taken;
        piece.iov_base = static_cast<std::byte*>(piece.iov_base) + taken;
        piece.iov_len -= taken;
        if (piece.iov_len == 0) ++next_;
    }
}

void Outgoing::start(bool trailer) {
    head_.clear();
    head_sent_ = 0;
    payload_.clear();
    checksum_.start(trailer);
    trailer_left_ = trailer ? kTrailerBytes : 0;
}

bool Outgoing::gather(IovList& list) {
    if (list.full()) return false;
    if (head_sent_ < head_.size()) list.add(head_.data() + head_sent_, head_.size() - head_sent_);
    if (payload_.left() > 0) {
        if (trailer_left_ == 0) return list.add(payload_.rest());
        if (!list.full()) list.add_copy(payload_.rest(), payload_.left());
        return false;
    }
    if (trailer_left_ > 0) {
        if (list.full()) return false;
        list.add(trailer_.data() + kTrailerBytes - trailer_left_, trailer_left_);
    }
    return true;
}

size_t Outgoing::consume(size_t bytes, IovList& list) noexcept {
    const size_t head = std::min(bytes, head_.size() - head_sent_);
    head_sent_ += head;
    bytes -= head;
    if (payload_.left() > 0) {
        const size_t payload = static_cast<size_t>(std::min<uint64_t>(bytes, payload_.left()));
        if (checksum_.on() && payload > 0) checksum_.update(list.copied(), payload);
        payload_.consume(payload);
        bytes -= payload;
        if (payload_.left() == 0 && checksum_.on()) {
            const uint64_t value = checksum_.value();
            std::memcpy(trailer_.data(), &value, sizeof value);
        }
        return bytes;  // the trailer was not known when these were gathered
    }
    const size_t trailer = std::min(bytes, trailer_left_);
    trailer_left_ -= trailer;
    return bytes - trailer;
}

void Inbox::drop(size_t count) noexcept {
    begin_ += count;
    if (begin_ == end_) begin_ = end_ = 0;
}

std::span<std::byte> Inbox::room() noexcept {
    if (begin_ > 0 && kCapacity - end_ < kHeadBytesMax) {
        std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
    }
    return {buffer_.get() + end_, kCapacity - end_};
}

IoResult Inbox::receive(int fd, size_t ahead) noexcept {
    const auto space = room();
    iovec piece{.iov_base = space.data(), .iov_len = std::min(space.size(), ahead)};
    IoResult result = result_of(receive_pieces(fd, &piece, 1));
    result.drained = result.bytes < piece.iov_len;
    end_ += result.bytes;
    return result;
}

void Incoming::start(uint64_t bytes, bool trailer) {
    into_.clear();
    checksum_.start(trailer);
    left_ = bytes;
    trailer_left_ = trailer ? kTrailerBytes : 0;
    discarding_ = false;
    faulted_ = false;
    intact_ = true;
}

void Incoming::discard() noexcept {
    discarding_ = true;
    into_.clear();
}

void Incoming::fault() noexcept {
    faulted_ = true;
    discard();
}

void Incoming::arrived(size_t bytes) noexcept {
    left_ -= bytes;
    if (!discarding_) into_.consume(bytes);
}

void Incoming::store(Scratch& scratch, size_t bytes) noexcept {
    checksum_.update(scratch.data(), bytes);
    if (scratch.store(into_.rest(), bytes) < bytes) fault();
    arrived(bytes);
}

void Incoming::take(Inbox& inbox) {
    while (left_ > 0 && !inbox.bytes().empty()) {
        const auto bytes = inbox.bytes();
        const size_t taken = static_cast<size_t>(std::min<uint64_t>({left_, bytes.size(), Scratch::kBytes}));
        if (discarding_) {
            arrived(taken);
        } else {
            Scratch scratch;
            std::memcpy(scratch.data(), bytes.data(), taken);
            store(scratch, taken);
        }
        inbox.drop(taken);
    }
    if (left_ > 0 || trailer_left_ == 0 || inbox.bytes().size() < kTrailerBytes) return;
    uint64_t expected = 0;
    std::memcpy(&expected, inbox.bytes().data(), sizeof expected);
    intact_ = discarding_ || expected == checksum_.value();
    inbox.drop(kTrailerBytes);
    trailer_left_ = 0;
}

IoResult Incoming::receive(int fd, Inbox& inbox, size_t ahead) {
    const IoResult result = receive_once(fd, inbox, ahead);
    if (result.error != EFAULT || discarding_) return result;
    fault();
    return receive_once(fd, inbox, ahead);
}

IoResult Incoming::receive_once(int fd, Inbox& inbox, size_t ahead) {
    std::optional<Scratch> scratch;
    IovList list;
    bool whole = true;
    if (left_ > 0 && (discarding_ || checksum_.on())) {
        scratch.emplace();
        const auto length = static_cast<size_t>(std::min<uint64_t>(left_, Scratch::kBytes));
        list.add(scratch->data(), length);
        whole = length == left_;
    } else if (left_ > 0) {
        whole = list.add(into_.rest());
    }
    // The trailer comes through the inbox as well.
    const auto space = inbox.room();
    const size_t wanted = std::min(space.size(), trailer_left_ + ahead);
    if (whole && wanted > 0 && !list.full()) list.add(space.data(), wanted);
    const IoResult result = list.receive(fd);
    const size_t payload = static_cast<size_t>(std::min<uint64_t>(result.bytes, left_));
    if (payload > 0 && scratch && !discarding_) store(*scratch, payload);
    else if (payload > 0) arrived(payload);
    inbox.filled(result.bytes - payload);
    return result;
}

}  // namespace mooncake::tcp
