// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/testing/fake_cuda.h"

#include <dlfcn.h>

#include "base/log.h"

namespace mooncake::cuda::testing {

namespace {

void* library() {
    static void* const loaded = ::dlopen(FAKE_LIBCUDA, RTLD_NOW | RTLD_GLOBAL);
    if (loaded == nullptr) MC_LOG_ERROR("{}", ::dlerror());
    MC_CHECK(loaded != nullptr);
    return loaded;
}

template <typename Return, typename... Arguments>
Return call(const char* name, Arguments... arguments) {
    auto* const function = reinterpret_cast<Return (*)(Arguments...)>(::dlsym(library(), name));
    MC_CHECK(function != nullptr);
    return function(arguments...);
}

/// What the program itself does on this thread, in a device's context.
class Application {
public:
    explicit Application(abi::Context context = nullptr) : pushed_(context != nullptr) {
        call<void>("fake_cuda_application", 1);
        if (pushed_) MC_CHECK(call<abi::Status>("cuCtxPushCurrent_v2", context) == abi::kSuccess);
    }
    ~Application() {
        abi::Context popped = nullptr;
        if (pushed_) call<abi::Status>("cuCtxPopCurrent_v2", &popped);
        call<void>("fake_cuda_application", 0);
    }
    Application(const Application&) = delete;
    Application& operator=(const Application&) = delete;

private:
    const bool pushed_;
};

template <typename... Arguments>
void must(const char* name, Arguments... arguments) {
    const auto status = call<abi::Status>(name, arguments...);
    if (status != abi::kSuccess) MC_LOG_ERROR("{} answers {}", name, status);
    MC_CHECK(status == abi::kSuccess);
}

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
std::byte* as_bytes(uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

void FakeCuda::load() { (void)library(); }
void FakeCuda::have_devices(int number) { call<void>("fake_cuda_devices", number); }

FakeCuda::FakeCuda() {
    const Application application;
    must("cuInit", uint32_t{0});
    int devices = 0;
    must("cuDeviceGetCount", &devices);
    contexts_.resize(static_cast<size_t>(devices));
    for (int i = 0; i < devices; ++i) must("cuDevicePrimaryCtxRetain", &contexts_[static_cast<size_t>(i)], abi::DeviceHandle{i});
    reset();
}

FakeCuda::~FakeCuda() {
    reset();
    const Application application;
    for (int i = 0; i < static_cast<int>(contexts_.size()); ++i) must("cuDevicePrimaryCtxRelease_v2", abi::DeviceHandle{i});
}

std::byte* FakeCuda::allocate(uint64_t length, int device) {
    const Application application(contexts_[static_cast<size_t>(device)]);
    abi::DevicePointer address = 0;
    must("cuMemAlloc_v2", &address, size_t{length});
    return as_bytes(address);
}

std::byte* FakeCuda::allocate_managed(uint64_t length) {
    const Application application(contexts_[0]);
    abi::DevicePointer address = 0;
    must("cuMemAllocManaged", &address, size_t{length}, uint32_t{1});
    return as_bytes(address);
}

std::byte* FakeCuda::allocate_from_pool(uint64_t length, abi::Pool pool) {
    const Application application(contexts_[0]);
    abi::DevicePointer address = 0;
    if (pool == nullptr) must("cuMemAllocAsync", &address, size_t{length}, abi::Stream{nullptr});
    else must("cuMemAllocFromPoolAsync", &address, size_t{length}, pool, abi::Stream{nullptr});
    return as_bytes(address);
}

abi::Pool FakeCuda::make_pool(uint32_t handle_types) {
    const Application application(contexts_[0]);
    const abi::PoolProperties properties{
        .type = abi::kAllocationPinned, .handle_types = handle_types, .location = {.type = abi::kLocationDevice, .id = 0}};
    abi::Pool pool = nullptr;
    must("cuMemPoolCreate", &pool, &properties);
    return pool;
}

void FakeCuda::destroy(abi::Pool pool) {
    const Application application(contexts_[0]);
    must("cuMemPoolDestroy", pool);
}

void FakeCuda::free(std::byte* address, int device) {
    wait_for_streams(device);  // as the driver does: what a lost device left on its streams would meet memory of others there
    const Application application(contexts_[static_cast<size_t>(device)]);
    must("cuMemFree_v2", abi::DevicePointer{address_of(address)});
}

void FakeCuda::wait_for_streams(int device) {
    const Application application(contexts_[static_cast<size_t>(device)]);
    (void)call<abi::Status>("cuCtxSynchronize");
}

void* FakeCuda::allocate_pinned(uint64_t length) {
    const Application application(contexts_[0]);
    void* address = nullptr;
    must("cuMemHostAlloc", &address, size_t{length}, uint32_t{abi::kHostPortable});
    return address;
}

void FakeCuda::free_pinned(void* address) {
    const Application application(contexts_[0]);
    must("cuMemFreeHost", address);
}

void FakeCuda::pin(void* address, uint64_t length) {
    const Application application(contexts_[0]);
    must("cuMemHostRegister_v2", address, size_t{length}, uint32_t{0});
}

void FakeCuda::unpin(void* address) {
    const Application application(contexts_[0]);
    must("cuMemHostUnregister", address);
}

std::byte* FakeCuda::reserve(size_t chunks, const std::set<size_t>& mapped, uint32_t handle_types) {
    const Application application(contexts_[0]);
    abi::DevicePointer start = 0;
    must("cuMemAddressReserve", &start, size_t{chunks * kChunkBytes}, size_t{0}, abi::DevicePointer{0}, uint64_t{0});
    for (const size_t chunk : mapped) map(as_bytes(start), chunk, handle_types);
    return as_bytes(start);
}

void FakeCuda::map(std::byte* start, size_t chunk, uint32_t handle_types) {
    const Application application(contexts_[0]);
    const abi::AllocationProperties properties{
        .type = abi::kAllocationPinned, .handle_types = handle_types, .location = {.type = abi::kLocationDevice, .id = 0}};
    const abi::AccessDescription access{.location = {.type = abi::kLocationDevice, .id = 0}, .flags = abi::kAccessReadWrite};
    const abi::DevicePointer address = address_of(start) + chunk * kChunkBytes;
    abi::Handle handle = 0;
    must("cuMemCreate", &handle, size_t{kChunkBytes}, &properties, uint64_t{0});
    must("cuMemMap", address, size_t{kChunkBytes}, size_t{0}, handle, uint64_t{0});
    must("cuMemSetAccess", address, size_t{kChunkBytes}, &access, size_t{1});
    must("cuMemRelease", handle);
}

void FakeCuda::unmap(std::byte* start, size_t chunk) {
    const Application application(contexts_[0]);
    must("cuMemUnmap", abi::DevicePointer{address_of(start) + chunk * kChunkBytes}, size_t{kChunkBytes});
}

void FakeCuda::release(std::byte* start, size_t chunks, const std::set<size_t>& mapped) {
    for (const size_t chunk : mapped) unmap(start, chunk);
    const Application application(contexts_[0]);
    must("cuMemAddressFree", abi::DevicePointer{address_of(start)}, size_t{chunks * kChunkBytes});
}

void FakeCuda::write(std::byte* to, std::span<const std::byte> from) {
    const Application application(contexts_[0]);
    must("cuMemcpyHtoD_v2", abi::DevicePointer{address_of(to)}, static_cast<const void*>(from.data()), size_t{from.size()});
}

std::vector<std::byte> FakeCuda::read(const std::byte* from, uint64_t length) {
    const Application application(contexts_[0]);
    std::vector<std::byte> bytes(length);
    must("cuMemcpyDtoH_v2", static_cast<void*>(bytes.data()), abi::DevicePointer{address_of(from)}, size_t{length});
    return bytes;
}

void FakeCuda::write_later(std::byte* to, std::span<const std::byte> from) {
    const Application application(contexts_[0]);
    must("cuMemcpyHtoDAsync_v2", abi::DevicePointer{address_of(to)}, static_cast<const void*>(from.data()), size_t{from.size()},
         abi::legacy_stream());
}

abi::Stream FakeCuda::make_stream(int device) {
    const Application application(contexts_[static_cast<size_t>(device)]);
    abi::Stream stream = nullptr;
    must("cuStreamCreate", &stream, uint32_t{abi::kStreamNonBlocking});
    return stream;
}

void FakeCuda::destroy_stream(abi::Stream stream) {
    const Application application(contexts_[0]);
    must("cuStreamDestroy_v2", stream);
}

abi::Event FakeCuda::make_event(int device) {
    const Application application(contexts_[static_cast<size_t>(device)]);
    abi::Event event = nullptr;
    must("cuEventCreate", &event, uint32_t{abi::kEventDisableTiming});
    return event;
}

void FakeCuda::record(abi::Event event, abi::Stream stream) {
    const Application application(contexts_[0]);
    must("cuEventRecord", event, stream);
}

void FakeCuda::destroy_event(abi::Event event) {
    const Application application(contexts_[0]);
    must("cuEventDestroy_v2", event);
}

void FakeCuda::drain(abi::Stream stream) {
    const Application application(contexts_[0]);
    must("cuStreamSynchronize", stream);
}

void FakeCuda::write_on(abi::Stream stream, std::byte* to, std::span<const std::byte> from) {
    const Application application(contexts_[0]);
    must("cuMemcpyHtoDAsync_v2", abi::DevicePointer{address_of(to)}, static_cast<const void*>(from.data()), size_t{from.size()}, stream);
}

void FakeCuda::capture_on(abi::Stream stream, bool on) {
    const Application application(contexts_[0]);
    void* graph = nullptr;
    if (on) must("cuStreamBeginCapture_v2", stream, int{abi::kCaptureThreadLocal});
    else must("cuStreamEndCapture", stream, &graph);
}

void FakeCuda::fail(const char* name, int nth, abi::Status status) { call<void>("fake_cuda_fail", name, nth, status); }
void FakeCuda::fail_async(int nth, abi::Status status) { call<void>("fake_cuda_fail_async", nth, status); }
void FakeCuda::reset() { call<void>("fake_cuda_reset"); }
void FakeCuda::hold_streams(bool hold) { call<void>("fake_cuda_hold", 0, hold ? 1 : 0); }
void FakeCuda::hold_default_stream(bool hold) { call<void>("fake_cuda_hold", 1, hold ? 1 : 0); }
void FakeCuda::poison(int device, abi::Status status) { call<void>("fake_cuda_poison", device, status); }
void FakeCuda::capture(bool on) { call<void>("fake_cuda_capture", on ? 1 : 0); }
void FakeCuda::replace(std::byte* address) { call<void>("fake_cuda_replace", uint64_t{address_of(address)}); }
void FakeCuda::attribute(int device, int number, int value) { call<void>("fake_cuda_attribute", device, number, value); }
uint64_t FakeCuda::handle_types(const std::byte* address) {
    const Application application;
    uint64_t types = 0;
    must("cuPointerGetAttribute", static_cast<void*>(&types), int{abi::kAttributeAllowedHandleTypes},
         abi::DevicePointer{address_of(address)});
    return types;
}
void FakeCuda::limit_memory(uint64_t bytes) { call<void>("fake_cuda_memory", bytes); }
void FakeCuda::let_peers_reach(bool reach) { call<void>("fake_cuda_peers", reach ? 1 : 0); }
void FakeCuda::ipc_error(abi::Status status) { call<void>("fake_cuda_ipc_error", status); }
uint64_t FakeCuda::count(const std::string& what) { return call<uint64_t>("fake_cuda_count", what.c_str()); }

FindLibrary FakeCuda::without(std::set<std::string> names) {
    return [names = std::move(names)]() -> std::optional<Lookup> {
        auto lookup = find_loaded_library();
        if (!lookup) return std::nullopt;
        return [names, found = std::move(*lookup)](const char* name) { return names.contains(name) ? nullptr : found(name); };
    };
}

}  // namespace mooncake::cuda::testing
