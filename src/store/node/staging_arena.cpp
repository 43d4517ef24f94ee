// SPDX-License-Identifier: Apache-2.0
#include "store/node/staging_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mooncake::store {

std::optional<StagingArena::Room> StagingArena::take_from(Slab& slab, size_t number, uint64_t bytes) {
    const auto offset = slab.ranges->find(bytes);
    if (!offset) return std::nullopt;
    const RangeAllocator::Block block = slab.ranges->take(*offset, bytes, 1);
    if (block == 0) return std::nullopt;
    slab.idle_since = Time::max();
    return Room{.data = slab.base + *offset, .bytes = bytes, .slab = number, .block = block};
}

std::optional<StagingArena::Room> StagingArena::take(uint64_t bytes) {
    if (bytes == 0 || bytes > piece_max()) return std::nullopt;
    uint64_t more = 0;
    {
        Lock lock(mutex_);
        if (closed_) return std::nullopt;
        for (size_t i = 0; i < slabs_.size(); ++i)
            if (slabs_[i])
                if (auto room = take_from(*slabs_[i], i, bytes)) return room;
        more = std::min(options_.slab_bytes, options_.bytes_max - slab_bytes_);
        more = more / kAlignment * kAlignment;
        if (more < bytes) return std::nullopt;
        slab_bytes_ += more;
    }
    auto slab = make_slab(more);
    std::optional<Room> room;
    {
        Lock lock(mutex_);
        if (slab && !closed_) {
            const auto gap = std::find(slabs_.begin(), slabs_.end(), nullptr);
            const auto number = static_cast<size_t>(gap - slabs_.begin());
            room = take_from(*slab, number, bytes);
            if (gap == slabs_.end()) slabs_.push_back(std::move(slab));
            else *gap = std::move(slab);
            return room;
        }
        slab_bytes_ -= more;
    }
    if (slab) give_to_system(std::move(slab));
    return std::nullopt;
}

std::unique_ptr<StagingArena::Slab> StagingArena::make_slab(uint64_t bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        MC_LOG_WARNING_EVERY(10s, "no memory for {} bytes of staging", bytes);
        return nullptr;
    }
    Mapping mapping(memory, bytes);
    if (auto registered = engine_->register_memory(memory, bytes, "*", true, Access::kRead); !registered) {
        MC_LOG_WARNING_EVERY(10s, "staging memory cannot be registered: {}", registered.error().to_string());
        return nullptr;
    }
    return std::make_unique<Slab>(std::move(mapping), static_cast<std::byte*>(memory), bytes);
}

void StagingArena::give_to_system(std::unique_ptr<Slab> slab) {
    const auto fenced = engine_->unregister_memory(slab->base);
    if (fenced || fenced.error().code() == Code::kUnavailable || fenced.error().code() == Code::kNotRegistered) return;
    MC_LOG_WARNING("staging memory is not given back: {}", fenced.error().to_string());
    (void)slab.release();  // some process may still be about to read it
}

void StagingArena::give_back(const Room& room, Time now) {
    Lock lock(mutex_);
    if (closed_) return;
    Slab& slab = *slabs_[room.slab];
    slab.ranges->free(room.block);
    if (slab.ranges->used_bytes() == 0) slab.idle_since = now;
}

void StagingArena::tidy(Time now) {
    std::vector<std::unique_ptr<Slab>> idle;
    {
        Lock lock(mutex_);
        for (auto& slab : slabs_)
            if (slab && slab->idle_since != Time::max() && now - slab->idle_since > options_.idle) {
                slab_bytes_ -= slab->ranges->capacity();
                idle.push_back(std::move(slab));
            }
        while (!slabs_.empty() && !slabs_.back()) slabs_.pop_back();
    }
    for (auto& slab : idle) give_to_system(std::move(slab));
}

uint64_t StagingArena::slab_bytes() const {
    Lock lock(mutex_);
    return slab_bytes_;
}

void StagingArena::close() {
    std::vector<std::unique_ptr<Slab>> slabs;
    {
        Lock lock(mutex_);
        closed_ = true;
        slabs.swap(slabs_);
        slab_bytes_ = 0;
    }
    for (auto& slab : slabs)
        if (slab) give_to_system(std::move(slab));
}

}  // namespace mooncake::store
