// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/ascend_peer.h"

#include <algorithm>

#include "base/incarnation.h"

namespace mooncake::ascend {

AscendPeer::AscendPeer(RouteShared& shared, const Stations& stations, SegmentDescriptor descriptor, std::vector<EndpointRecord> endpoints)
    : shared_(shared), stations_(stations), descriptor_(std::move(descriptor)), endpoints_(std::move(endpoints)) {}

/// The library links no device to itself, but for its newer kind of engine.
bool AscendPeer::can_link(size_t station, uint32_t engine) const {
    const EndpointRecord ours = stations_.all[station]->endpoint();
    const EndpointRecord& theirs = endpoints_[engine];
    if (ours.name == theirs.name) return false;
    return descriptor_.boot_id != boot_id() || ours.physical != theirs.physical || (ours.client_server && theirs.client_server);
}

std::optional<uint32_t> AscendPeer::first_engine(size_t station) const {
    for (size_t i = 0; i < endpoints_.size(); ++i)
        if (const auto engine = static_cast<uint32_t>((station + i) % endpoints_.size()); can_link(station, engine)) return engine;
    return std::nullopt;
}

Result<> AscendPeer::connect(Deadline deadline) {
    for (size_t station = 0; station < stations_.all.size(); ++station) {
        const auto engine = first_engine(station);
        if (!engine) continue;
        MC_ASSIGN_OR_RETURN(const auto first, route({station, *engine}));
        return first->connect(deadline);
    }
    return fail(Code::kNotSupported, "{} is on the same NPU, which cannot be linked to itself", descriptor_.name);
}

Result<std::shared_ptr<Route>> AscendPeer::route(Key key) {
    if (key.second >= endpoints_.size()) return fail(Code::kCorrupt, "{} has no engine {}", descriptor_.name, key.second);
    if (!can_link(key.first, key.second))
        return fail(Code::kNotSupported, "the memory at {} is on the same NPU, which cannot be linked to itself", descriptor_.name);
    Lock lock(mutex_);
    if (closed_) return Unexpected(copy_error(*closed_));
    auto& route = routes_[key];
    if (route == nullptr)
        route = std::make_shared<Route>(shared_, *stations_.all[key.first], *stations_.bounces[key.first],
                                        Route::Target{.descriptor = descriptor_, .engine = key.second, .name = endpoints_[key.second].name},
                                        [weak = weak_from_this(), station = key.first](uint32_t engine, std::vector<Item> items) {
                                            if (const auto self = weak.lock()) return self->move(station, engine, std::move(items));
                                            for (const Item& item : items)
                                                item.slice->completion->fail(Error(Code::kCancelled, "the connection is closed"));
                                        });
    return route;
}

void AscendPeer::move(size_t station, uint32_t engine, std::vector<Item> items) {
    if (auto next = route({station, engine})) return (*next)->submit(std::move(items));
    else
        for (const Item& item : items) item.slice->completion->fail(copy_error(next.error()));
}

Result<size_t> AscendPeer::station_of(Direction direction, const Slice& slice) const {
    if (slice.length > UINT64_MAX - slice.remote || slice.remote == 0)
        return fail(Code::kNotRegistered, "[{:#x}, +{}) is no memory", slice.remote, slice.length);
    const MemoryRegion* const region = slice.region;
    if (region != nullptr && direction == Direction::kRead && !region->writable)
        return fail(Code::kNotRegistered, "local memory at {} is registered for reading only", static_cast<void*>(slice.local));
    if (region != nullptr && region->kind != MemoryKind::kHost && region->kind != MemoryKind::kAscend)
        return fail(Code::kNotSupported, "{} memory is not moved by this transport", to_string(region->kind));
    for (size_t i = 0; i < stations_.all.size(); ++i) {
        const bool near = region == nullptr || region->kind == MemoryKind::kHost || stations_.all[i]->device() == region->device;
        if (near && first_engine(i)) return i;
    }
    return fail(Code::kNotSupported, "NPU {} has no link to {}", region == nullptr ? -1 : region->device, descriptor_.name);
}

void AscendPeer::submit(Direction direction, std::span<const Slice> slices) {
    std::map<size_t, std::vector<Item>> by_station;
    std::vector<std::pair<const Slice*, Error>> refused;
    for (const Slice& slice : slices) {
        auto station = station_of(direction, slice);
        if (station) by_station[*station].push_back({.slice = &slice, .direction = direction, .length = slice.length, .whole = nullptr});
        else refused.emplace_back(&slice, std::move(station).error());
    }
    // With the last of them the slices may go.
    for (auto& [slice, error] : refused) slice->completion->fail(std::move(error));
    for (auto& [station, items] : by_station) move(station, *first_engine(station), std::move(items));
}

std::vector<std::shared_ptr<Route>> AscendPeer::routes() const {
    Lock lock(mutex_);
    std::vector<std::shared_ptr<Route>> all;
    for (const auto& [key, route] : routes_) all.push_back(route);
    return all;
}

Stopped AscendPeer::cancel(Completion& completion, const Error& reason) {
    bool certain = true;
    // What moves from one route to another meanwhile is found there the next time.
    while (!completion.done())
        for (const auto& route : routes()) certain = route->cancel(completion, reason) && certain;
    return certain ? Stopped::kEverywhere : Stopped::kRemoteInDoubt;
}

void AscendPeer::close(const Error& reason) {
    {
        Lock lock(mutex_);
        if (!closed_) closed_ = copy_error(reason);
    }
    for (const auto& route : routes()) route->close(reason);
}

bool AscendPeer::usable() const {
    {
        Lock lock(mutex_);
        if (closed_) return false;
    }
    const auto all = routes();
    return std::all_of(all.begin(), all.end(), [](const auto& route) { return route->usable(); });
}

void AscendPeer::sweep() {
    for (const auto& route : routes()) route->sweep();
}

}  // namespace mooncake::ascend
