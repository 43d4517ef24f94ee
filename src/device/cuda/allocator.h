// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "device/cuda/driver.h"

namespace mooncake::cuda {

/// As find_loaded_library(), and loads libcuda where nobody has: for who was asked for memory of a GPU.
std::optional<Lookup> load_library();

/// Memory of GPUs that other processes and other hosts can be given: what PyTorch allocates its segments from (nvlink_allocator.so). It can be
/// exported over NVLink between hosts where the machine allows that, by file descriptors on this host otherwise, and is as good as that of
/// cudaMalloc in the worst case. What is freed stays mapped for the next who asks, up to a bound for each GPU. Memory is handed out only when all work
/// is over that its former owner had on the stream it freed it on. Never destroyed by who uses it: at the end of the process nothing happens.
/// Thread-safe.
class Allocator {
public:
    /// How a GPU's memory can be exported.
    enum class Backend : uint8_t { kMalloc = 0, kFabric = 1, kUnknown = 2 };

    explicit Allocator(uint64_t cache_bytes, FindLibrary find = load_library) : cache_bytes_(cache_bytes), driver_(std::move(find)) {}
    Allocator(const Allocator&) = delete;
    Allocator& operator=(const Allocator&) = delete;

    /// Null: there is none, and the log says why.
    void* allocate(uint64_t length, int device);
    /// `stream`: what was put there before may still use it. Other addresses than ours are left alone.
    void free(void* address, abi::Stream stream);
    /// By an attempt: what a GPU says that it can do is not always allowed.
    Backend probe(int device);

    uint64_t cached_bytes(int device);
    /// Gives everything back that nobody uses. Waits for the work on it.
    void empty_cache(int device);

private:
    enum class Kind : uint8_t { kFabric, kDescriptor, kPlain };  // best first
    struct Range {
        uint64_t address = 0;
        uint64_t length = 0;
        int device = 0;
        Kind kind = Kind::kPlain;
        abi::Event freed = nullptr;  // behind the work of its former owner, while it is cached
    };
    /// Of one GPU.
    struct Pool {
        std::optional<Kind> best;   // that it has turned out to give
        std::vector<Range> cached;  // oldest first
        uint64_t bytes = 0;         // of those
    };
    static constexpr uint64_t kLargestCached = uint64_t{1} << 30;

    /// Has the device's primary context be there, for good: who allocates is about to use it.
    Result<> start(int device);
    Result<Range> make(const Scope& scope, uint64_t length, int device);
    Result<Range> make_plain(const Scope& scope, uint64_t length, int device);
    Result<Range> make_mapped(const Scope& scope, uint64_t length, int device, Kind kind);
    /// Memory at the range's addresses; those are reserved.
    Result<> map(const Scope& scope, const Range& range);
    /// This GPU may access it, and the others may that can.
    Result<> allow(const Scope& scope, const Range& range);
    abi::AllocationProperties properties(const abi::Functions& functions, int device, Kind kind) const;
    Kind best_kind(const Scope& scope, int device);
    /// One that the GPU does not give, as it has turned out.
    void rule_out(const Scope& scope, int device, Kind kind, const Error& why);

    /// A range that fits, and that nobody works on any more.
    std::optional<Range> take_cached(const Scope& scope, uint64_t length, int device);
    /// Whether the work of its former owner is over. Waits for that until the deadline.
    bool over(const Scope& scope, const Range& range, Deadline deadline);
    /// An event behind what is on the stream. Null: there is none to be had.
    abi::Event mark(const Scope& scope, int device, abi::Stream stream);
    void keep(const Scope& scope, const Range& range);
    /// Gives it back when nobody works on it any more.
    void release(const Scope& scope, Range range);
    void give_back(const Scope& scope, const Range& range);

    const uint64_t cache_bytes_;
    Driver driver_;
    Mutex mutex_;
    std::array<Pool, Driver::kDevicesMax> pools_ MC_GUARDED_BY(mutex_);
    std::unordered_map<uint64_t, Range> given_ MC_GUARDED_BY(mutex_);  // by address
};

}  // namespace mooncake::cuda
