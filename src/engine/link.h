// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/peer_memory.h"
#include "metrics/metrics.h"
#include "transport/descriptor.h"
#include "transport/transport.h"

namespace mooncake {

/// What one path (transport) moved, per direction; shared by all links over it.
struct PathMetrics {
    struct PerDirection {
        metrics::Counter* bytes = nullptr;
        metrics::Counter* transfers = nullptr;
        metrics::Counter* failures = nullptr;
        metrics::Histogram* latency_ns = nullptr;
    };
    std::array<PerDirection, 2> by_direction;

    PerDirection& of(Direction direction) noexcept { return by_direction[static_cast<size_t>(direction)]; }
};

/// Transports that turned out unable to carry the memory of one transfer.
using Unfit = std::vector<const Transport*>;

/// What some bytes need of a link.
struct Need {
    KindPair pair = {};
    Unfit unfit = {};  // these refused them, whatever their capabilities say

    /// What every link does.
    bool plain() const noexcept { return pair.host() && unfit.empty(); }
    bool met_by(const Transport& transport) const noexcept {
        return transport.capabilities().pairs.has(pair) && std::find(unfit.begin(), unfit.end(), &transport) == unfit.end();
    }
};

/// One live connection to one incarnation of a segment, over the transport the router chose. Constant after construction, except for what
/// is atomic. Held by every session and transfer that uses it, under whatever name of the segment; the last holder lets the peer end.
struct Link : std::enable_shared_from_this<Link> {
    SegmentDescriptor descriptor;
    std::string rpc_address;  // "host:port" of the peer's control port
    const Transport* transport = nullptr;
    PathMetrics* metrics = nullptr;
    std::shared_ptr<PeerMemory> memory;  // of that life; never null
    std::unique_ptr<Peer> peer;
    Need opened_for;                       // nearer transports that do not meet this have not been tried
    std::atomic<bool> second_best{false};  // a nearer transport failed, and may work again later

    std::string_view path() const noexcept { return transport->capabilities().name; }
    /// "10.0.0.1:15123 over tcp", for error texts.
    std::string to_string() const { return format_text("{} over {}", descriptor.name, path()); }
};

}  // namespace mooncake
