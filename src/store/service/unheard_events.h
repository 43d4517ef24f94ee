// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/time.h"
#include "store/protocol/messages_events.h"
#include "store/service/byte_log.h"

namespace mooncake::store {

/// What one client was told of its memory, or should have been, and has not said that it heard. A connection that breaks takes along what is on
/// its way; the client is told again when it comes back, also if it was given up meanwhile: otherwise it would know nothing of values that
/// were put there, and report others whose place they took. Survives the client's event streams. Not thread-safe.
class UnheardEvents {
public:
    explicit UnheardEvents(size_t bytes_max) : bytes_max_(bytes_max) {}

    /// The number of the next update to the client: they go on from one event stream to the next.
    uint64_t next() noexcept { return ++sequence_; }
    uint64_t sequence() const noexcept { return sequence_; }

    /// This update was sent, with events about ranges, of which this is the first.
    void keep(uint64_t sequence, uint64_t first, std::span<const std::byte> update);
    /// For what happens while nobody follows.
    EventWriter& unsent() {
        may_hold_ = true;
        bound();
        return unsent_;
    }
    /// What was written there belongs before whatever is sent from now on.
    void seal();

    /// The client has heard everything up to that update. Returns how many that was news of.
    size_t heard(uint64_t sequence);
    /// Whether an event up to this one may be among what was not heard.
    bool concerns(uint64_t last) const noexcept { return !kept_.empty() && kept_.front().first <= last; }

    struct Missed {
        std::vector<std::vector<std::byte>> updates;  // encoded
        bool lost = false;                            // there was more than could be kept: nobody knows
    };
    /// What a client has missed that has heard everything up to that update. `remembered`: RemountRequest::remembered_update.
    Missed after(uint64_t sequence, uint64_t remembered = 0);

    /// It is too much: what was missed so far is lost.
    void give_up() noexcept;
    size_t bytes() const noexcept { return bytes_ + unsent_.bytes(); }
    /// The client lends memory in which something may lie already.
    void note_holding() noexcept { may_hold_ = true; }
    /// Who holds nothing misses nothing.
    bool may_hold() const noexcept { return may_hold_; }
    /// So many more bytes are sent; whether the client should be asked if it has heard them.
    bool asks_after(size_t bytes, size_t ask_bytes) noexcept {
        unasked_bytes_ += bytes;
        if (unasked_bytes_ < ask_bytes) return false;
        unasked_bytes_ = 0;
        return true;
    }
    Time gone_since = Time::max();  // the client was given up then

private:
    struct Kept {
        uint64_t sequence = 0, first = 0;
        uint64_t position = 0;  // in texts_
        size_t bytes = 0;
    };
    /// Gives back memory of what is not kept any more.
    void note_dropped() noexcept;
    void bound() {
        if (bytes() > bytes_max_) give_up();
    }

    const size_t bytes_max_;
    uint64_t sequence_ = 0, heard_ = 0;
    std::deque<Kept> kept_;    // by sequence
    ByteLog texts_;            // of these, encoded
    bool disordered_ = false;  // some of them lie after later ones
    EventWriter unsent_;
    size_t bytes_ = 0;  // of kept_
    size_t unasked_bytes_ = 0;
    bool may_hold_ = false;
    uint64_t lost_up_to_ = 0;  // updates up to this one were not kept; 0: all were
};

}  // namespace mooncake::store
