// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/allocator.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/futex.h"
#include "base/log.h"

namespace mooncake::cuda {

namespace {

constexpr uint64_t kUsualGranule = 2 << 20;
constexpr Duration kHungAfter = 60s;  // work of a former owner that takes longer than this: its memory is lost
constexpr Duration kNap = 100us;

uint64_t round_up(uint64_t length, uint64_t granule) { return (length + granule - 1) / granule * granule; }

bool has_attribute(const abi::Functions& functions, int device, int attribute) {
    abi::DeviceHandle handle = -1;
    int value = 0;
    return functions.get_device(&handle, device) == abi::kSuccess &&
           functions.get_device_attribute(&value, attribute, handle) == abi::kSuccess && value != 0;
}

bool can_map(const abi::Functions& f) {
    return f.vmm_create != nullptr && f.vmm_release != nullptr && f.vmm_reserve != nullptr && f.vmm_free != nullptr &&
           f.vmm_map != nullptr && f.vmm_unmap != nullptr && f.vmm_set_access != nullptr && f.vmm_granularity != nullptr;
}

}  // namespace

std::optional<Lookup> load_library() {
    if (auto loaded = find_loaded_library()) return loaded;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::nullopt;
    return [library](const char* name) { return ::dlsym(library, name); };
}

// ---- what the outside asks for

void* Allocator::allocate(uint64_t length, int device) {
    if (length == 0 || length > UINT64_MAX / 2) return nullptr;
    const auto found = [&]() -> Result<Range> {
        MC_RETURN_IF_ERROR(start(device));
        MC_ASSIGN_OR_RETURN(const Scope scope, Scope::enter(driver_, device));
        if (auto cached = take_cached(scope, length, device)) return *cached;
        return make(scope, length, device);
    }();
    if (!found) {
        // Who asked will call it "out of memory", whatever it was.
        if (!driver_.gone()) MC_LOG_WARNING_EVERY(10s, "{} bytes of GPU {} cannot be had: {}", length, device, found.error().message());
        return nullptr;
    }
    Lock lock(mutex_);
    given_[found->address] = *found;
    return reinterpret_cast<void*>(found->address);
}

void Allocator::free(void* address, abi::Stream stream) {
    // A driver that goes down with the process, or a child of the process that has the memory: nothing is left to be done.
    if (address == nullptr || driver_.silent()) return;
    Range range;
    {
        Lock lock(mutex_);
        const auto found = given_.find(reinterpret_cast<uint64_t>(address));
        if (found == given_.end()) {
            MC_LOG_WARNING_EVERY(24h, "{} is freed here and was not allocated here: it is left alone", address);
            return;
        }
        range = found->second;
        given_.erase(found);
    }
    const auto scope = Scope::enter(driver_, range.device);
    if (!scope) return;
    range.freed = mark(*scope, range.device, stream);
    if (range.freed == nullptr && ((*scope)->context_synchronize == nullptr || (*scope)->context_synchronize() != abi::kSuccess)) {
        if (!driver_.gone())
            MC_LOG_WARNING_EVERY(60s, "{} bytes of GPU {} are lost: nobody can say when the work on them is over", range.length,
                                 range.device);
        return;
    }
    keep(*scope, range);
}

Allocator::Backend Allocator::probe(int device) {
    const abi::Functions* const functions = driver_.functions();
    if (functions == nullptr || functions->init == nullptr || functions->init(0) != abi::kSuccess) return Backend::kUnknown;
    int devices = 0;
    if (functions->get_device_count(&devices) != abi::kSuccess || device < 0 || device >= devices) return Backend::kUnknown;
    if (!can_map(*functions) || !has_attribute(*functions, device, abi::kDeviceFabric)) return Backend::kMalloc;
    // No context is needed for this, and none is made; but a graph that is being captured must not notice.
    int mode = abi::kCaptureRelaxed;
    if (functions->exchange_capture_mode(&mode) != abi::kSuccess) return Backend::kUnknown;
    const abi::AllocationProperties wanted = properties(*functions, device, Kind::kFabric);
    size_t granule = 0;
    abi::Handle handle = 0;
    const bool made = functions->vmm_granularity(&granule, &wanted, 0) == abi::kSuccess &&
                      functions->vmm_create(&handle, granule, &wanted, 0) == abi::kSuccess;
    if (made) driver_.notice(functions->vmm_release(handle));
    driver_.notice(functions->exchange_capture_mode(&mode));
    return made ? Backend::kFabric : Backend::kMalloc;
}

Result<> Allocator::start(int device) {
    if (driver_.context(device)) return {};
    const abi::Functions* const functions = driver_.functions();
    if (functions == nullptr) return fail(Code::kUnavailable, "there is no CUDA driver to be used");
    if (functions->init != nullptr) MC_RETURN_IF_ERROR(driver_.check(device, "cuInit", functions->init(0)));
    abi::DeviceHandle handle = -1;
    abi::Context context = nullptr;
    MC_RETURN_IF_ERROR(driver_.check(device, "cuDeviceGet", functions->get_device(&handle, device)));
    MC_RETURN_IF_ERROR(driver_.check(device, "cuDevicePrimaryCtxRetain", functions->primary_retain(&context, handle)));
    // The driver holds it from now on, and one who does is enough.
    auto held = driver_.context(device);
    driver_.notice(functions->primary_release(handle));
    if (!held) return Unexpected(std::move(held).error());
    return {};
}

// ---- making memory

abi::AllocationProperties Allocator::properties(const abi::Functions& functions, int device, Kind kind) const {
    return {.type = abi::kAllocationPinned,
            .handle_types = kind == Kind::kFabric ? abi::kHandleFabric | abi::kHandleDescriptor : abi::kHandleDescriptor,
            .location = {.type = abi::kLocationDevice, .id = device},
            .gpu_direct_rdma = static_cast<uint8_t>(has_attribute(functions, device, abi::kDeviceRdmaWithVmm) ? 1 : 0)};
}

Allocator::Kind Allocator::best_kind(const Scope& scope, int device) {
    Lock lock(mutex_);
    std::optional<Kind>& best = pools_[static_cast<size_t>(device)].best;
    if (!best) {
        const bool mapped = can_map(*scope) && has_attribute(*scope, device, abi::kDeviceVmm);
        if (mapped && has_attribute(*scope, device, abi::kDeviceFabric)) best = Kind::kFabric;
        else if (mapped && has_attribute(*scope, device, abi::kDeviceFileDescriptors)) best = Kind::kDescriptor;
        else best = Kind::kPlain;
    }
    return *best;
}

void Allocator::rule_out(const Scope& scope, int device, Kind kind, const Error& why) {
    const bool descriptors = kind == Kind::kFabric && has_attribute(*scope, device, abi::kDeviceFileDescriptors);
    {
        Lock lock(mutex_);
        std::optional<Kind>& best = pools_[static_cast<size_t>(device)].best;
        if (best != kind) return;  // another thread was here
        best = descriptors ? Kind::kDescriptor : Kind::kPlain;
    }
    MC_LOG_WARNING("memory of GPU {} cannot be given to {}: {}", device, descriptors ? "other hosts" : "other processes by descriptor",
                   why.message());
}

Result<Allocator::Range> Allocator::make(const Scope& scope, uint64_t length, int device) {
    Kind kind = best_kind(scope, device);
    bool emptied = false;
    while (true) {
        auto made = kind == Kind::kPlain ? make_plain(scope, length, device) : make_mapped(scope, length, device, kind);
        if (made || driver_.dead(device) || driver_.silent()) return made;
        if (made.error().code() == Code::kNoSpace && !std::exchange(emptied, true)) {
            empty_cache(device);
            continue;
        }
        if (kind == Kind::kPlain) return made;
        if (made.error().code() == Code::kNoSpace) {
            kind = Kind::kPlain;  // this time: there is not enough of any
            continue;
        }
        rule_out(scope, device, kind, made.error());
        kind = best_kind(scope, device);
    }
}

Result<Allocator::Range> Allocator::make_plain(const Scope& scope, uint64_t length, int device) {
    if (scope->allocate == nullptr || scope->free == nullptr) return fail(Code::kNotSupported, "this CUDA driver gives no memory");
    Range range{.length = round_up(length, kUsualGranule), .device = device, .kind = Kind::kPlain};
    MC_RETURN_IF_ERROR(driver_.check(device, "cuMemAlloc", scope->allocate(&range.address, range.length)));
    return range;
}

Result<Allocator::Range> Allocator::make_mapped(const Scope& scope, uint64_t length, int device, Kind kind) {
    const abi::AllocationProperties wanted = properties(*scope, device, kind);
    size_t granule = 0;
    MC_RETURN_IF_ERROR(driver_.check(device, "cuMemGetAllocationGranularity", scope->vmm_granularity(&granule, &wanted, 0)));
    Range range{.length = round_up(length, std::max<uint64_t>(granule, 1)), .device = device, .kind = kind};
    MC_RETURN_IF_ERROR(driver_.check(device, "cuMemAddressReserve", scope->vmm_reserve(&range.address, range.length, granule, 0, 0)));
    auto mapped = map(scope, range);
    if (mapped) return range;
    if (!driver_.silent() && !driver_.dead(device)) driver_.notice(scope->vmm_free(range.address, range.length));
    return Unexpected(std::move(mapped).error());
}

Result<> Allocator::map(const Scope& scope, const Range& range) {
    const abi::AllocationProperties wanted = properties(*scope, range.device, range.kind);
    abi::Handle handle = 0;
    MC_RETURN_IF_ERROR(driver_.check(range.device, "cuMemCreate", scope->vmm_create(&handle, range.length, &wanted, 0)));
    auto mapped = driver_.check(range.device, "cuMemMap", scope->vmm_map(range.address, range.length, 0, handle, 0));
    // The mapping holds the memory; with a reference of ours it would stay for ever.
    if (!driver_.silent() && !driver_.dead(range.device)) driver_.notice(scope->vmm_release(handle));
    if (!mapped) return mapped;
    auto allowed = allow(scope, range);
    if (!allowed && !driver_.silent() && !driver_.dead(range.device)) driver_.notice(scope->vmm_unmap(range.address, range.length));
    return allowed;
}

Result<> Allocator::allow(const Scope& scope, const Range& range) {
    const auto access = [&](int device) {
        const abi::AccessDescription description{.location = {.type = abi::kLocationDevice, .id = device}, .flags = abi::kAccessReadWrite};
        return scope->vmm_set_access(range.address, range.length, &description, 1);
    };
    MC_RETURN_IF_ERROR(driver_.check(range.device, "cuMemSetAccess", access(range.device)));
    int devices = 0, can = 0;
    if (scope->can_access_peer == nullptr || scope->get_device_count(&devices) != abi::kSuccess) return {};
    for (int other = 0; other < devices; ++other) {
        abi::DeviceHandle one = -1, two = -1;
        if (other == range.device || scope->get_device(&one, other) != abi::kSuccess ||
            scope->get_device(&two, range.device) != abi::kSuccess || scope->can_access_peer(&can, one, two) != abi::kSuccess || can == 0)
            continue;
        driver_.notice(access(other));  // without it that one copies by way of the host
        if (driver_.silent()) return fail(Code::kUnavailable, "CUDA cannot be used any more");
    }
    return {};
}

// ---- keeping it

std::optional<Allocator::Range> Allocator::take_cached(const Scope& scope, uint64_t length, int device) {
    // Best fit, of those with nearly the length: what is beyond it nobody can use meanwhile.
    std::optional<Range> found;
    Lock lock(mutex_);
    Pool& pool = pools_[static_cast<size_t>(device)];
    for (const Range& range : pool.cached) {
        if (range.length < length || range.length - length > std::max(length / 4, kUsualGranule - 1)) continue;
        if (found && found->length <= range.length) continue;
        if (over(scope, range, Deadline(Time{}))) found = range;
    }
    if (!found) return std::nullopt;
    std::erase_if(pool.cached, [&](const Range& range) { return range.address == found->address; });
    pool.bytes -= found->length;
    if (found->freed != nullptr) driver_.notice(scope->event_destroy(std::exchange(found->freed, nullptr)));
    return found;
}

bool Allocator::over(const Scope& scope, const Range& range, Deadline deadline) {
    if (range.freed == nullptr) return true;
    while (true) {
        const abi::Status status = scope->event_query(range.freed);
        if (status == abi::kSuccess) return true;
        if (status != abi::kNotReady) {
            (void)driver_.failure(range.device, "cuEventQuery", status);
            return false;
        }
        if (deadline.passed()) return false;
        const std::atomic<uint32_t> nothing{0};
        futex_wait(nothing, 0, Deadline::after(kNap));
    }
}

abi::Event Allocator::mark(const Scope& scope, int device, abi::Stream stream) {
    if (stream == nullptr) stream = abi::legacy_stream();
    int capturing = 0;
    // An event on a stream that is being captured would become a part of the graph, and say nothing about the memory.
    if (scope->stream_is_capturing != nullptr && (scope->stream_is_capturing(stream, &capturing) != abi::kSuccess || capturing != 0))
        return nullptr;
    abi::Event event = nullptr;
    if (!driver_.check(device, "cuEventCreate", scope->event_create(&event, abi::kEventDisableTiming))) return nullptr;
    if (driver_.check(device, "cuEventRecord", scope->event_record(event, stream))) return event;
    if (!driver_.silent() && !driver_.dead(device)) driver_.notice(scope->event_destroy(event));
    return nullptr;
}

void Allocator::keep(const Scope& scope, const Range& range) {
    std::vector<Range> too_many;
    {
        Lock lock(mutex_);
        Pool& pool = pools_[static_cast<size_t>(range.device)];
        if (range.length > kLargestCached || range.length > cache_bytes_) {
            too_many.push_back(range);
        } else {
            pool.cached.push_back(range);
            pool.bytes += range.length;
        }
        size_t oldest = 0;
        while (pool.bytes > cache_bytes_) {
            pool.bytes -= pool.cached[oldest].length;
            too_many.push_back(pool.cached[oldest++]);
        }
        pool.cached.erase(pool.cached.begin(), pool.cached.begin() + static_cast<ptrdiff_t>(oldest));
    }
    for (const Range& one : too_many) release(scope, one);
}

void Allocator::empty_cache(int device) {
    std::vector<Range> all;
    {
        Lock lock(mutex_);
        Pool& pool = pools_[static_cast<size_t>(device)];
        all.swap(pool.cached);
        pool.bytes = 0;
    }
    if (all.empty()) return;
    const auto scope = Scope::enter(driver_, device);
    if (!scope) return;
    for (const Range& range : all) release(*scope, range);
}

uint64_t Allocator::cached_bytes(int device) {
    Lock lock(mutex_);
    return pools_[static_cast<size_t>(device)].bytes;
}

void Allocator::release(const Scope& scope, Range range) {
    if (driver_.silent() || driver_.dead(range.device)) return;
    const bool idle = over(scope, range, Deadline::after(kHungAfter));
    if (driver_.silent() || driver_.dead(range.device)) return;
    if (range.freed != nullptr) driver_.notice(scope->event_destroy(std::exchange(range.freed, nullptr)));
    if (idle) give_back(scope, range);
    else MC_LOG_WARNING_EVERY(60s, "{} bytes of GPU {} are lost: the work on them does not end", range.length, range.device);
}

void Allocator::give_back(const Scope& scope, const Range& range) {
    Result<> done;
    if (range.kind == Kind::kPlain) {
        done = driver_.check(range.device, "cuMemFree", scope->free(range.address));
    } else {
        done = driver_.check(range.device, "cuMemUnmap", scope->vmm_unmap(range.address, range.length));
        if (done) done = driver_.check(range.device, "cuMemAddressFree", scope->vmm_free(range.address, range.length));
    }
    if (!done && !driver_.gone()) MC_LOG_WARNING_EVERY(60s, "{} bytes are lost: {}", range.length, done.error().message());
}

}  // namespace mooncake::cuda
