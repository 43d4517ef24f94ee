// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/ascend_memory.h"

#include <algorithm>

namespace mooncake::ascend {

/// One region, at one or several stations.
class AscendMemory::Held final : public Registration {
public:
    struct Place {
        size_t station = 0;
        uint64_t handle = 0;
        std::shared_ptr<Area> area;  // null: not for peers
    };
    Held(AscendMemory& owner, const MemoryRegion& region) : owner_(owner), region_(&region) {}
    ~Held() override { (void)owner_.take_back(*this); }
    Result<> revoke(Deadline) override { return owner_.take_back(*this); }

    AscendMemory& owner_;
    const MemoryRegion* const region_;
    std::vector<Place> places_;
};

Result<std::unique_ptr<Registration>> AscendMemory::add(const MemoryRegion& region) {
    auto held = std::make_unique<Held>(*this, region);
    const bool host = region.kind == MemoryKind::kHost;
    const auto address = reinterpret_cast<uint64_t>(region.address);
    for (size_t i = 0; i < stations_.size(); ++i) {
        if (!host && (region.kind != MemoryKind::kAscend || stations_[i]->device() != region.device)) continue;
        MC_ASSIGN_OR_RETURN(const uint64_t handle, stations_[i]->add(address, region.length, host));
        held->places_.push_back({.station = i, .handle = handle, .area = nullptr});
    }
    // Memory that we cannot reach is no reason to refuse it: another transport carries it.
    if (held->places_.empty()) return nullptr;
    Lock lock(mutex_);
    const uint64_t version = version_.load(std::memory_order_relaxed) + 1;
    since_[&region] = version;
    for (Held::Place& place : held->places_) {
        if (!region.remote_accessible) continue;
        place.area = std::make_shared<Area>(Area{.record = {.address = address,
                                                            .length = region.length,
                                                            .since = version,
                                                            .engine = static_cast<uint32_t>(place.station),
                                                            .writable = region.writable}});
        areas_.emplace(address, place.area);
        longest_ = std::max(longest_, region.length);
    }
    version_.store(version, std::memory_order_release);
    return held;
}

uint64_t AscendMemory::since(const MemoryRegion& region) const {
    Lock lock(mutex_);
    const auto found = since_.find(&region);
    return found == since_.end() ? 0 : found->second;
}

Result<> AscendMemory::take_back(Held& held) {
    bool reached = false;
    {
        Lock lock(mutex_);
        since_.erase(held.region_);
        for (const Held::Place& place : held.places_) {
            if (place.area == nullptr) continue;
            reached = reached || place.area->told;
            for (auto [at, end] = areas_.equal_range(place.area->record.address); at != end; ++at) {
                if (at->second != place.area) continue;
                areas_.erase(at);
                break;
            }
        }
    }
    while (!held.places_.empty()) {
        const Held::Place& place = held.places_.back();
        MC_RETURN_IF_ERROR(stations_[place.station]->remove(place.handle, reached));
        held.places_.pop_back();
    }
    return {};
}

ResolveAnswer AscendMemory::resolve(const ResolveRequest& request) {
    Lock lock(mutex_);
    ResolveAnswer answer{.version = version_.load(std::memory_order_relaxed), .regions = {}};
    std::vector<Area*> found;
    for (const AddressRange& range : request.ranges) {
        if (range.length == 0 || range.length > UINT64_MAX - range.address) continue;
        // Regions lie apart, but for a moment when one takes the place of a wider one.
        for (auto at = areas_.lower_bound(range.address - std::min(range.address, longest_));
             at != areas_.end() && at->first < range.address + range.length; ++at)
            if (at->second->record.end() > range.address) found.push_back(at->second.get());
    }
    std::sort(found.begin(), found.end(), [](const Area* one, const Area* other) {
        return std::pair(one->record.address, one->record.engine) < std::pair(other->record.address, other->record.engine);
    });
    found.erase(std::unique(found.begin(), found.end()), found.end());
    if (found.size() > kRecordsMax) found.resize(kRecordsMax);
    for (Area* const area : found) {
        area->told = true;
        answer.regions.push_back(area->record);
    }
    return answer;
}

}  // namespace mooncake::ascend
