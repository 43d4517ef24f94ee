// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "store/allocation/range_allocator.h"

namespace mooncake::store {

/// Memory in which values from a disk wait for readers elsewhere: registered with the engine, for peers to read and not to write. It is taken from the
/// system slab by slab, as it is needed, up to its limit, and given back when it was not needed for a while. Thread-safe.
class StagingArena {
public:
    struct Options {
        uint64_t bytes_max = uint64_t{1280} << 20;
        uint64_t slab_bytes = 64 << 20;
        Duration idle = 30s;  // after which a slab that nobody uses goes
    };
    struct Room {
        std::byte* data = nullptr;
        uint64_t bytes = 0;
        size_t slab = 0;
        RangeAllocator::Block block = 0;
    };
    static constexpr uint64_t kAlignment = 4096;  // a disk reads straight to it

    StagingArena(std::shared_ptr<Engine> engine, Options options) : engine_(std::move(engine)), options_(options) {}
    ~StagingArena() { close(); }

    /// The longest that take() gives in one piece.
    uint64_t piece_max() const noexcept { return std::min(options_.slab_bytes, options_.bytes_max) / 2; }
    /// Nothing: no such piece is free now. May ask the system.
    std::optional<Room> take(uint64_t bytes);
    void give_back(const Room& room, Time now);
    /// Gives slabs that were idle for long back to the system.
    void tidy(Time now);
    uint64_t slab_bytes() const;  // of all slabs
    uint64_t bytes_max() const noexcept { return options_.bytes_max; }

    /// Waits until no peer touches it any more. All rooms are void. Idempotent.
    void close();

private:
    struct Slab {
        Slab(Mapping mapping, std::byte* at, uint64_t bytes)
            : memory(std::move(mapping)), base(at), ranges(std::make_unique<RangeAllocator>(bytes, kAlignment)) {}
        Mapping memory;
        std::byte* base = nullptr;
        std::unique_ptr<RangeAllocator> ranges;
        Time idle_since = Time::max();  // in use
    };
    static std::optional<Room> take_from(Slab& slab, size_t number, uint64_t bytes);
    /// Null: no more may be used, or the system gives none.
    std::unique_ptr<Slab> make_slab(uint64_t bytes);
    void give_to_system(std::unique_ptr<Slab> slab);

    const std::shared_ptr<Engine> engine_;
    const Options options_;
    mutable Mutex mutex_;
    std::vector<std::unique_ptr<Slab>> slabs_ MC_GUARDED_BY(mutex_);  // some are null: gone
    uint64_t slab_bytes_ MC_GUARDED_BY(mutex_) = 0;                   // of all, also of those that are being made
    bool closed_ MC_GUARDED_BY(mutex_) = false;
};

}  // namespace mooncake::store
