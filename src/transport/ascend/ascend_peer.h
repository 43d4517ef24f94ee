// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/ascend/route.h"

namespace mooncake::ascend {

/// The stations of a transport, with a buffer each.
struct Stations {
    std::vector<std::unique_ptr<Station>> all;
    std::vector<std::unique_ptr<Bounce>> bounces;
};

/// One life of a peer, over the routes between our stations and its engines. Thread-safe as Peer; lives in a shared_ptr, which its routes' tasks may hold.
class AscendPeer : public std::enable_shared_from_this<AscendPeer> {
public:
    AscendPeer(RouteShared& shared, const Stations& stations, SegmentDescriptor descriptor, std::vector<EndpointRecord> endpoints);

    /// Makes the first link. kNotSupported: none of our devices can be linked to any of theirs.
    Result<> connect(Deadline deadline);
    void submit(Direction direction, std::span<const Slice> slices);
    Stopped cancel(Completion& completion, const Error& reason);
    void close(const Error& reason);
    bool usable() const;
    void sweep();

private:
    using Key = std::pair<size_t, uint32_t>;  // our station, their engine

    bool can_link(size_t station, uint32_t engine) const;
    /// The engine that a station tries first.
    std::optional<uint32_t> first_engine(size_t station) const;
    Result<size_t> station_of(Direction direction, const Slice& slice) const;
    Result<std::shared_ptr<Route>> route(Key key);
    void move(size_t station, uint32_t engine, std::vector<Item> items);
    std::vector<std::shared_ptr<Route>> routes() const;

    RouteShared& shared_;
    const Stations& stations_;
    const SegmentDescriptor descriptor_;
    const std::vector<EndpointRecord> endpoints_;
    mutable Mutex mutex_;
    std::map<Key, std::shared_ptr<Route>> routes_ MC_GUARDED_BY(mutex_);
    std::optional<Error> closed_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::ascend
