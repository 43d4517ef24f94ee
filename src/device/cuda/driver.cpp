// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <memory>
#include <new>

#include "base/error_copy.h"
#include "base/fork.h"
#include "base/log.h"

namespace mooncake::cuda {

namespace {

template <typename Function>
bool bind(const Lookup& lookup, const char* name, Function& function) {
    function = reinterpret_cast<Function>(lookup(name));
    return function != nullptr;
}

/// Those without which nothing works. The name of the first that is missing; null: all are there.
const char* bind_needed(const Lookup& lookup, abi::Functions& f) {
    const char* missing = nullptr;
    const auto need = [&](const char* name, auto& function) {
        if (!bind(lookup, name, function) && missing == nullptr) missing = name;
    };
    need("cuDeviceGetCount", f.get_device_count);
    need("cuDeviceGet", f.get_device);
    need("cuDeviceGetAttribute", f.get_device_attribute);
    need("cuDevicePrimaryCtxGetState", f.primary_state);
    need("cuDevicePrimaryCtxRetain", f.primary_retain);
    need("cuDevicePrimaryCtxRelease_v2", f.primary_release);
    need("cuCtxPushCurrent_v2", f.push);
    need("cuCtxPopCurrent_v2", f.pop);
    need("cuThreadExchangeStreamCaptureMode", f.exchange_capture_mode);
    need("cuPointerGetAttributes", f.get_pointer_attributes);
    need("cuMemGetAddressRange_v2", f.get_address_range);
    need("cuMemHostAlloc", f.host_allocate);
    need("cuMemFreeHost", f.host_free);
    need("cuMemcpyAsync", f.copy_async);
    need("cuStreamCreate", f.stream_create);
    need("cuStreamDestroy_v2", f.stream_destroy);
    need("cuEventCreate", f.event_create);
    need("cuEventRecord", f.event_record);
    need("cuEventQuery", f.event_query);
    need("cuEventDestroy_v2", f.event_destroy);
    return missing;
}

void bind_wanted(const Lookup& lookup, abi::Functions& f) {
    bind(lookup, "cuInit", f.init);
    bind(lookup, "cuGetErrorName", f.get_error_name);
    bind(lookup, "cuDriverGetVersion", f.get_driver_version);
    bind(lookup, "cuDeviceGetUuid_v2", f.get_device_uuid);
    bind(lookup, "cuDeviceGetPCIBusId", f.get_device_bus_id);
    bind(lookup, "cuStreamIsCapturing", f.stream_is_capturing);
    bind(lookup, "cuStreamQuery", f.stream_query);
    bind(lookup, "cuStreamGetCtx", f.stream_context);
    bind(lookup, "cuStreamWaitEvent", f.stream_wait_event);
    bind(lookup, "cuStreamWaitValue64_v2", f.stream_wait_value);
    bind(lookup, "cuLaunchHostFunc", f.launch_host_function);
    bind(lookup, "cuMemHostGetDevicePointer_v2", f.host_device_pointer);
    bind(lookup, "cuMemcpyBatchAsync_v2", f.copy_batch);
    bind(lookup, "cuMemcpyBatchAsync", f.copy_batch_old);
    bind(lookup, "cuModuleLoadData", f.module_load);
    bind(lookup, "cuModuleGetFunction", f.module_function);
    bind(lookup, "cuModuleUnload", f.module_unload);
    bind(lookup, "cuLaunchKernel", f.launch);
    bind(lookup, "cuMemHostRegister_v2", f.host_register);
    bind(lookup, "cuMemHostUnregister", f.host_unregister);
    bind(lookup, "cuMemAlloc_v2", f.allocate);
    bind(lookup, "cuMemFree_v2", f.free);
    bind(lookup, "cuCtxSynchronize", f.context_synchronize);
    bind(lookup, "cuDeviceCanAccessPeer", f.can_access_peer);
    bind(lookup, "cuIpcGetMemHandle", f.ipc_get);
    bind(lookup, "cuIpcOpenMemHandle_v2", f.ipc_open);
    bind(lookup, "cuIpcCloseMemHandle", f.ipc_close);
    bind(lookup, "cuMemCreate", f.vmm_create);
    bind(lookup, "cuMemRelease", f.vmm_release);
    bind(lookup, "cuMemAddressReserve", f.vmm_reserve);
    bind(lookup, "cuMemAddressFree", f.vmm_free);
    bind(lookup, "cuMemMap", f.vmm_map);
    bind(lookup, "cuMemUnmap", f.vmm_unmap);
    bind(lookup, "cuMemSetAccess", f.vmm_set_access);
    bind(lookup, "cuMemGetAllocationGranularity", f.vmm_granularity);
    bind(lookup, "cuMemRetainAllocationHandle", f.vmm_retain);
    bind(lookup, "cuMemExportToShareableHandle", f.vmm_export);
    bind(lookup, "cuMemImportFromShareableHandle", f.vmm_import);
    bind(lookup, "cuMemFree_v2", f.memory_free);
    bind(lookup, "cuMemPoolDestroy", f.pool_destroy);
    bind(lookup, "cuMemPoolSetAccess", f.pool_set_access);
    bind(lookup, "cuMemPoolExportToShareableHandle", f.pool_export);
    bind(lookup, "cuMemPoolImportFromShareableHandle", f.pool_import);
    bind(lookup, "cuMemPoolExportPointer", f.pool_export_pointer);
    bind(lookup, "cuMemPoolImportPointer", f.pool_import_pointer);
}

bool is_sticky(abi::Status status) noexcept {
    return std::find(abi::kStickyErrors.begin(), abi::kStickyErrors.end(), status) != abi::kStickyErrors.end();
}

Code code_of(abi::Status status) noexcept {
    switch (status) {
        case abi::kInvalidValue:
        case abi::kInvalidHandle: return Code::kInvalidArgument;
        case abi::kOutOfMemory: return Code::kNoSpace;
        default: return Code::kUnavailable;
    }
}

}  // namespace

std::optional<Lookup> find_loaded_library() {
    // Looking for a library that is not there searches the disk. Where nothing has been loaded since, nothing has changed.
    static constinit std::atomic<uint64_t> missing_at{0};
    uint64_t loads = 0;
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* answer) {
            *static_cast<uint64_t*>(answer) = info->dlpi_adds;
            return 1;
        },
        &loads);
    if (loads != 0 && missing_at.load(std::memory_order_relaxed) == loads) return std::nullopt;
    // The reference is kept: what was loaded once is never unloaded while we know its functions.
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library == nullptr) {
        missing_at.store(loads, std::memory_order_relaxed);
        return std::nullopt;
    }
    return [library](const char* name) { return ::dlsym(library, name); };
}

Driver::~Driver() {
    const std::unique_ptr<const abi::Functions> functions(functions_.load(std::memory_order_acquire));
    if (functions == nullptr || silent()) return;
    Lock lock(mutex_);
    for (int device = 0; device < kDevicesMax; ++device)
        if (const Retained& held = retained_[static_cast<size_t>(device)]; held.context != nullptr && !dead(device) && !gone())
            notice(functions->primary_release(held.handle));
}

bool Driver::silent() const noexcept {
    if (gone_.load(std::memory_order_acquire)) return true;
    if (const int lost = lost_.load(std::memory_order_acquire); lost != 0 && lost == held_.load(std::memory_order_acquire)) return true;
    const uint64_t used_in = used_in_.load(std::memory_order_acquire);
    return used_in != 0 && used_in != uint64_t{fork_generation()} + 1;
}

void Driver::note_use() noexcept {
    uint64_t never = 0;
    used_in_.compare_exchange_strong(never, uint64_t{fork_generation()} + 1, std::memory_order_acq_rel);
}

const abi::Functions* Driver::functions() {
    if (silent()) return nullptr;
    const abi::Functions* known = functions_.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    const auto lookup = find_();
    if (!lookup) return nullptr;
    auto made = std::make_unique<abi::Functions>();
    if (const char* const missing = bind_needed(*lookup, *made); missing != nullptr) {
        MC_LOG_WARNING_EVERY(60s, "GPU memory cannot be used: libcuda.so.1 has no {}", missing);
        return nullptr;
    }
    bind_wanted(*lookup, *made);
    // No mutex: a forked child may come here while a thread of its parent was inside.
    if (functions_.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) known = made.release();
    return known;
}

void Driver::bury(int device, abi::Status status) noexcept {
    abi::Status alive = 0;
    if (!valid(device) || !cause_[static_cast<size_t>(device)].compare_exchange_strong(alive, status, std::memory_order_acq_rel)) return;
    try {
        MC_LOG_ERROR("GPU {} is not used any more: {}", device, name_of(status));
    } catch (const std::bad_alloc&) {  // who asks for it is told
    }
    if (contexts_[static_cast<size_t>(device)].load(std::memory_order_acquire) != nullptr) lost_.fetch_add(1, std::memory_order_acq_rel);
}

std::string Driver::name_of(abi::Status status) const {
    const char* name = nullptr;
    const abi::Functions* const functions = found();
    if (functions == nullptr || functions->get_error_name == nullptr || functions->get_error_name(status, &name) != abi::kSuccess ||
        name == nullptr)
        return format_text("CUDA error ({})", status);
    return format_text("{} ({})", name, status);
}

Error Driver::failure(int device, std::string_view what, abi::Status status) noexcept {
    const bool shut_down = status == abi::kDeinitialized;
    if (shut_down) gone_.store(true, std::memory_order_release);
    try {
        if (shut_down) return error(Code::kUnavailable, "{}: the CUDA driver has shut down", what);
        const std::string name = name_of(status);
        if (is_sticky(status)) bury(device, status);
        return error(code_of(status), "{} on GPU {}: {}", what, device, name);
    } catch (const std::bad_alloc&) {
        if (!shut_down && is_sticky(status)) bury(device, status);
        return Error(shut_down ? Code::kUnavailable : code_of(status), "out of memory");
    }
}

Result<> Driver::check(int device, std::string_view what, abi::Status status) noexcept {
    if (status == abi::kSuccess) return {};
    return Unexpected(failure(device, what, status));
}

int Driver::only_device() {
    Lock lock(mutex_);
    int only = -1;
    for (int device = 0; device < kDevicesMax; ++device) {
        if (retained_[static_cast<size_t>(device)].context == nullptr) continue;
        if (only >= 0) return -1;
        only = device;
    }
    return only;
}

Result<abi::Context> Driver::context(int device) {
    if (!valid(device)) return fail(Code::kInvalidArgument, "there is no GPU {}", device);
    if (const abi::Status cause = cause_[static_cast<size_t>(device)].load(std::memory_order_acquire); cause != 0)
        return fail(Code::kUnavailable, "GPU {} is not used any more since CUDA error {}", device, cause);
    const abi::Functions* const functions = this->functions();
    if (functions == nullptr) return fail(Code::kUnavailable, "CUDA cannot be used in this process");
    if (const abi::Context known = contexts_[static_cast<size_t>(device)].load(std::memory_order_acquire); known != nullptr) return known;

    Lock lock(mutex_);
    Retained& held = retained_[static_cast<size_t>(device)];
    if (held.context != nullptr) return held.context;
    note_use();
    abi::DeviceHandle handle = -1;
    MC_RETURN_IF_ERROR(check(device, "cuDeviceGet", functions->get_device(&handle, device)));
    uint32_t flags = 0;
    int active = 0;
    MC_RETURN_IF_ERROR(check(device, "cuDevicePrimaryCtxGetState", functions->primary_state(handle, &flags, &active)));
    // Ours would cost half a gigabyte of a GPU that perhaps nobody meant to use.
    if (active == 0) return fail(Code::kInvalidArgument, "nobody in this process has made the primary context of GPU {}", device);
    abi::Context context = nullptr;
    MC_RETURN_IF_ERROR(check(device, "cuDevicePrimaryCtxRetain", functions->primary_retain(&context, handle)));
    held = {.context = context, .handle = handle};
    held_.fetch_add(1, std::memory_order_acq_rel);
    contexts_[static_cast<size_t>(device)].store(context, std::memory_order_release);
    return context;
}

Result<Scope> Scope::enter(Driver& driver, int device) noexcept {
    const abi::Functions* functions = nullptr;
    MC_ASSIGN_OR_RETURN(const abi::Context context, contained([&]() -> Result<abi::Context> {
                            MC_ASSIGN_OR_RETURN(const abi::Context found, driver.context(device));
                            functions = driver.functions();
                            if (functions == nullptr) return fail(Code::kUnavailable, "CUDA cannot be used in this process");
                            return found;
                        }));
    MC_RETURN_IF_ERROR(driver.check(device, "cuCtxPushCurrent", functions->push(context)));
    int mode = abi::kCaptureRelaxed;
    if (const abi::Status status = functions->exchange_capture_mode(&mode); status != abi::kSuccess) {
        Error why = driver.failure(device, "cuThreadExchangeStreamCaptureMode", status);
        abi::Context popped = nullptr;
        if (!driver.gone()) driver.notice(functions->pop(&popped));
        return Unexpected(std::move(why));
    }
    return Scope(driver, *functions, mode);
}

Scope::~Scope() {
    // The thread is its caller's, who expects his own context also when the device is lost; only a driver that is going is left alone.
    if (functions_ == nullptr || driver_->gone()) return;
    driver_->notice(functions_->exchange_capture_mode(&mode_));
    if (driver_->gone()) return;
    abi::Context popped = nullptr;
    driver_->notice(functions_->pop(&popped));
}

}  // namespace mooncake::cuda
