// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "net/socket.h"
#include "transport/tcp/policy.h"
#include "transport/tcp/work_queue.h"

namespace mooncake::tcp {

/// The initiator's end of one connection: pulls messages from the peer's queue, sends them without waiting for the answers of
/// earlier ones, and takes the answers, which come in order. Not thread-safe: its peer lets one thread at a time in.
class Lane {
public:
    Lane(net::Socket socket, bool checked) : socket_(std::move(socket)), checked_(checked) {}

    int fd() const noexcept { return socket_.fd(); }
    /// Pulls, sends and receives without blocking until nothing moves or about `budget` bytes have moved; returns how many. An
    /// error, or an exception, means that the connection is of no use any more: cut_off() and fail_all(), unless there is a culprit().
    Result<size_t> progress(WorkQueue& queue, FinishedList& finished, size_t budget);
    /// Who named local memory that is not there, in the middle of a message, whose rest the target waits for. Suspended until it is resumed
    /// without that message.
    const Completion* culprit() const noexcept { return culprit_; }
    /// The poll() events that would let it move on; 0 when nothing is outstanding.
    short wants() const noexcept;

    struct InFlight {
        bool any = false;
        bool write = false;
    };
    /// What the peer may have heard of this completion (of any: null).
    InFlight in_flight(const Completion* completion) const noexcept;
    /// Ends for this completion what can be ended on our side alone: what was not sent is taken back, and what is yet to be read will go
    /// nowhere. Only writes that the target may have heard of remain.
    void take_back(const Completion& completion, const Error& reason, FinishedList& finished);
    /// Closes the connection hard: nothing of it moves any more.
    void cut_off() noexcept { socket_.reset_hard(); }
    /// After that: fails everything. False: there is more than the list takes.
    bool fail_all(const Verdict& verdict, FinishedList& finished) noexcept;

    /// Leaves the connection as it is and keeps what is outstanding, except what is for `completion`.
    void suspend(const Completion& completion, const Error& reason, FinishedList& finished);
    bool suspended() const noexcept { return suspended_; }
    /// Takes another connection instead, in which everything outstanding is asked anew. The descriptor keeps its number. After an
    /// error it is still suspended.
    Result<> resume(net::Socket socket, bool checked);

private:
    Flight& flight(size_t index) noexcept { return flights_[(first_ + index) % kFlightsMax]; }
    const Flight& flight(size_t index) const noexcept { return flights_[(first_ + index) % kFlightsMax]; }

    void pull(WorkQueue& queue, FinishedList& finished);
    Result<size_t> send();
    Result<size_t> receive(FinishedList& finished);
    size_t ahead_bytes(size_t index) const noexcept;
    Result<> handle_inbox(FinishedList& finished);
    Result<> begin_answer(const Header& header);
    void end_answer(FinishedList& finished);
    void tell(Flight& front, FinishedList& finished);
    void ask(Flight& next);
    template <typename Condition>
    void remove_if(size_t from, const Condition& condition);

    net::Socket socket_;
    bool checked_;
    bool suspended_ = false;
    uint64_t next_id_ = 1;
    const Completion* culprit_ = nullptr;

    std::array<Flight, kFlightsMax> flights_;  // a ring: those awaiting their answer, then those not yet sent
    size_t first_ = 0;
    size_t count_ = 0;
    size_t sent_ = 0;            // of count_
    uint64_t bytes_ = 0;         // payload of all of them
    uint64_t unsent_bytes_ = 0;  // to be handed to the kernel

    Inbox inbox_;
    Incoming incoming_;       // the payload of the answer to flight(0)
    bool answering_ = false;  // incoming_ is in use
    Status answer_ = Status::kOk;
    std::array<std::byte, kTextBytesMax> text_{};
};

}  // namespace mooncake::tcp
