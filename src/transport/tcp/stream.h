// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/tcp/scratch.h"
#include "transport/tcp/wire.h"

struct XXH3_state_s;

// How messages enter and leave a non-blocking socket: payload goes straight between the kernel and the memory it belongs to,
// many pieces per system call. Memory of a payload is touched by the kernel only, which survives its not being there. What has a checksum
// goes through a copy: others may change the memory meanwhile, and the checksum is of what was sent or came in. Nothing here is
// thread-safe.
namespace mooncake::tcp {

/// What one system call did: moved bytes, or would have blocked (neither bytes nor error), or failed. The end of the stream is
/// an error as well (kStreamEnd).
struct IoResult {
    static constexpr int kStreamEnd = -1;
    size_t bytes = 0;
    int error = 0;
    bool drained = false;  // received less than there was room for: probably there is no more for now
};

/// Tells ThreadSanitizer that something will be sent, or was received, by other means than the classes here.
void note_sent(int fd) noexcept;
void note_received(int fd) noexcept;

/// The argument of one sendmsg() or recvmsg().
class IovList {
public:
    static constexpr size_t kMax = 1024;  // IOV_MAX

    bool full() const noexcept { return count_ == kMax; }
    size_t bytes() const noexcept { return bytes_; }
    size_t count() const noexcept { return count_; }
    void add(const void* at, size_t length) noexcept;
    /// As many as fit; false when some did not.
    bool add(std::span<const iovec> pieces) noexcept;
    /// A copy of the first of so many bytes; once per list.
    void add_copy(std::span<const iovec> pieces, uint64_t bytes);
    /// What add_copy() added.
    const std::byte* copied() noexcept { return scratch_->data(); }

    IoResult send(int fd) noexcept;
    IoResult receive(int fd) noexcept;

private:
    iovec pieces_[kMax];
    size_t count_ = 0;
    size_t bytes_ = 0;
    std::optional<Scratch> scratch_;
};

/// A running XXH3; costs nothing until switched on.
class Checksum {
public:
    void start(bool on);
    bool on() const noexcept { return on_; }
    void update(const void* at, size_t length) noexcept;
    uint64_t value() const noexcept;

private:
    struct Free {
        void operator()(XXH3_state_s* state) const noexcept;
    };
    std::unique_ptr<XXH3_state_s, Free> state_;
    bool on_ = false;
};

/// Pieces of memory that bytes of a stream come from or go to, used up from the front.
class Pieces {
public:
    void clear() noexcept;
    /// A piece that continues the last one is merged with it.
    void append(std::byte* at, size_t length);
    uint64_t left() const noexcept { return left_; }
    std::span<const iovec> rest() const noexcept { return std::span(pieces_).subspan(next_); }
    /// Uses up the first `bytes` bytes.
    void consume(size_t bytes) noexcept;

private:
    std::vector<iovec> pieces_;
    size_t next_ = 0;
    uint64_t left_ = 0;
};

/// One message on its way out: its head, its payload, and the trailer if it has one.
class Outgoing {
public:
    /// Empties it; then head() and payload() are filled by the owner.
    void start(bool trailer);
    std::vector<std::byte>& head() noexcept { return head_; }
    Pieces& payload() noexcept { return payload_; }
    const Pieces& payload() const noexcept { return payload_; }

    bool started() const noexcept { return head_sent_ > 0; }
    /// Nothing but a head, so another message without payload may follow in it.
    bool head_only() const noexcept { return payload_.rest().empty() && trailer_left_ == 0; }
    bool done() const noexcept { return head_sent_ == head_.size() && payload_.left() == 0 && trailer_left_ == 0; }
    uint64_t left() const noexcept { return head_.size() - head_sent_ + payload_.left() + trailer_left_; }
    /// Adds what is left. False when not all of it could be: the list is full, or the trailer is not known yet.
    bool gather(IovList& list);
    /// Notes that bytes of what gather() added to the list were sent; returns those that belong to the next message.
    size_t consume(size_t bytes, IovList& list) noexcept;

private:
    std::vector<std::byte> head_;
    size_t head_sent_ = 0;
    Pieces payload_;
    Checksum checksum_;
    std::array<std::byte, kTrailerBytes> trailer_{};
    size_t trailer_left_ = 0;
};

/// Bytes received ahead of need: heads, and what came along of a payload.
class Inbox {
public:
    static constexpr size_t kCapacity = 2 * kHeadBytesMax;

    std::span<const std::byte> bytes() const noexcept { return {buffer_.get() + begin_, end_ - begin_}; }
    void drop(size_t count) noexcept;
    /// Room for at least kHeadBytesMax minus what is there already.
    std::span<std::byte> room() noexcept;
    void filled(size_t count) noexcept { end_ += count; }
    /// One recv() of at most `ahead` bytes.
    IoResult receive(int fd, size_t ahead) noexcept;

private:
    std::unique_ptr<std::byte[]> buffer_ = std::make_unique_for_overwrite<std::byte[]>(kCapacity);  // pages nobody needs are not there
    size_t begin_ = 0;
    size_t end_ = 0;
};

/// One payload on its way in, with its trailer if it has one.
class Incoming {
public:
    /// Empties it; then into() is filled by the owner, unless the payload shall be thrown away.
    void start(uint64_t bytes, bool trailer);
    Pieces& into() noexcept { return into_; }
    const Pieces& into() const noexcept { return into_; }
    /// From here on the payload goes nowhere.
    void discard() noexcept;
    bool discarding() const noexcept { return discarding_; }
    /// Memory of into() turned out not to be writable. The rest of the payload is discarded.
    bool faulted() const noexcept { return faulted_; }

    bool done() const noexcept { return left_ == 0 && trailer_left_ == 0; }
    uint64_t left() const noexcept { return left_; }
    /// After done(). What was discarded counts as intact.
    bool intact() const noexcept { return intact_; }
    /// Takes what the inbox has of it.
    void take(Inbox& inbox);
    /// One recvmsg(): the rest of the payload, then at most `ahead` bytes of what follows it into the inbox.
    IoResult receive(int fd, Inbox& inbox, size_t ahead);

private:
    void arrived(size_t bytes) noexcept;
    void store(Scratch& scratch, size_t bytes) noexcept;
    void fault() noexcept;
    IoResult receive_once(int fd, Inbox& inbox, size_t ahead);

    Pieces into_;
    Checksum checksum_;
    uint64_t left_ = 0;
    size_t trailer_left_ = 0;
    bool discarding_ = false;
    bool faulted_ = false;
    bool intact_ = true;
};

}  // namespace mooncake::tcp
