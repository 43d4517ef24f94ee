// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/time.h"
#include "transport/fabric/api.h"
#include "transport/fabric/queue.h"

namespace mooncake::fabric {

class RailClient;
struct Route;

/// One operation under way on a rail. Taken from the rail and given back to it; everything is guarded by the rail's lock.
struct Flight final : OperationContext {
    // the rail's
    Flight* previous = nullptr;  // in the list of its endpoint, oldest first
    Flight* next = nullptr;
    bool aloft = false;   // its completion is awaited
    bool orphan = false;  // ended by us: the provider may still come back to it
    Time freed{};         // for orphans

    // its client's
    RailClient* client = nullptr;
    Route* route = nullptr;
    Piece piece;
    std::byte* bounce = nullptr;  // carries the piece in place of its own memory
    uint32_t generation = 0;      // of the path, when posted
    Time began{};                 // when posted
    bool hopeless = false;        // nobody waits for it any more, or it will not come: not worth an endpoint's patience
};

/// Flights of one endpoint, in the order of posting.
class FlightList {
public:
    FlightList() noexcept { head_.previous = head_.next = &head_; }
    FlightList(const FlightList&) = delete;
    FlightList& operator=(const FlightList&) = delete;

    bool empty() const noexcept { return head_.next == &head_; }
    Flight* first() noexcept { return empty() ? nullptr : head_.next; }
    Flight* after(const Flight* flight) noexcept { return flight->next == &head_ ? nullptr : flight->next; }
    void push(Flight& flight) noexcept {
        flight.previous = head_.previous;
        flight.next = &head_;
        head_.previous->next = &flight;
        head_.previous = &flight;
    }
    static void remove(Flight& flight) noexcept {
        flight.previous->next = flight.next;
        flight.next->previous = flight.previous;
        flight.previous = flight.next = nullptr;
    }

private:
    Flight head_;
};

}  // namespace mooncake::fabric
