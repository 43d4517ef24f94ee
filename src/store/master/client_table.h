// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/incarnation.h"
#include "store/allocation/slab.h"
#include "store/master/object.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

enum class ClientEnd : uint8_t { kGoodbye, kReplaced, kSilent };

/// One life of a client. Kept after its end for as long as objects name it as their writer.
struct Client {
    static constexpr size_t kClosedRequests = 64;

    ClientId id;
    bool alive = false;
    bool attached = false;             // it told us what it holds since we came up; others are asked to
    bool follows = false;              // its event stream is up
    Incarnation life{};                // of its process; none: not told
    bool restarted = false;            // it was another process before, whose writes to others it cannot have stopped
    std::optional<ClientEnd> leaving;  // it has ended so, and has segments that are yet to be taken away
    Time expires{};
    Time stream_down_since = Time::max();  // when its event stream broke; Time::max(): it follows, or never did
    uint32_t objects = 0;                  // whose writer it is
    uint32_t quarantined = 0;              // ranges in quarantine for fear of its late bytes
    IndexList writes;                      // that have not ended
    std::vector<SegmentNumber> segments;
    std::vector<SegmentNumber> disks;       // of these
    std::vector<uint64_t> closed_requests;  // the latest revoked ones: a late start of them is refused

    bool is_another(Incarnation process) const { return life && process && life != process; }
    /// Has ended all writes that earlier masters planned.
    bool has_stopped() const { return alive && attached && !restarted; }
    bool closed(uint64_t request_id) const {
        return request_id != 0 && std::find(closed_requests.begin(), closed_requests.end(), request_id) != closed_requests.end();
    }
};

/// The clients by id and by number. Not thread-safe.
class ClientTable {
public:
    ClientNumber find(const ClientId& id) const {
        const auto found = by_id_.find(id);
        return found == by_id_.end() ? 0 : found->second;
    }
    ClientNumber find_or_insert(const ClientId& id) {
        ClientNumber& number = by_id_[id];
        if (number == 0) {
            number = clients_.take();
            clients_[number].id = id;
        }
        return number;
    }
    /// Forgets it if it is dead and nothing refers to it.
    void drop_if_unused(ClientNumber number) {
        const Client& client = clients_[number];
        if (client.alive || client.objects != 0 || client.quarantined != 0) return;
        by_id_.erase(client.id);
        clients_.give_back(number);
    }

    Client& operator[](ClientNumber number) { return clients_[number]; }
    const Client& operator[](ClientNumber number) const { return clients_[number]; }
    bool alive(ClientNumber number) const { return number != 0 && clients_[number].alive && !clients_[number].leaving; }
    bool leaving(ClientNumber number) const { return number != 0 && clients_[number].leaving.has_value(); }
    ClientNumber limit() const noexcept { return clients_.limit(); }
    size_t size() const noexcept { return clients_.size(); }

private:
    std::unordered_map<ClientId, ClientNumber> by_id_;
    Slab<Client, 64> clients_;
};

}  // namespace mooncake::store
