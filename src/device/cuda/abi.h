// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// What of the CUDA driver's binary interface we use: libcuda is found at run time, and no header of CUDA is needed to build. The numbers and
// layouts are those of CUDA 13.0; the driver keeps them for good.
namespace mooncake::cuda::abi {

using Status = int;  // CUresult
using DevicePointer = uint64_t;
using DeviceHandle = int;
using Handle = uint64_t;  // of physical memory
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Pool = void*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;

// ---- answers

constexpr Status kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kDeinitialized = 4, kStub = 34, kNoDevice = 100,
                 kInvalidDevice = 101, kInvalidContext = 201, kAlreadyMapped = 208, kPeerAccessUnsupported = 217, kInvalidHandle = 400,
                 kNotFound = 500, kNotReady = 600, kPeerAccessAlreadyEnabled = 704, kContextIsDestroyed = 709,
                 kHostMemoryAlreadyRegistered = 712, kHostMemoryNotRegistered = 713, kNotPermitted = 800, kNotSupported = 801,
                 kCaptureUnsupported = 900, kCaptureImplicit = 906, kIllegalAddress = 700;

/// After these the context is beyond help: the process has to be restarted before it can use the device again.
inline constexpr std::array kStickyErrors{214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 911};

// ---- numbers of attributes and flags

enum PointerAttribute : int {
    kAttributeContext = 1,
    kAttributeMemoryType = 2,
    kAttributeDevicePointer = 3,
    kAttributeHostPointer = 4,
    kAttributeSyncMemops = 6,
    kAttributeBufferId = 7,
    kAttributeIsManaged = 8,
    kAttributeDeviceOrdinal = 9,
    kAttributeLegacyIpcCapable = 10,
    kAttributeRangeStart = 11,
    kAttributeRangeSize = 12,
    kAttributeMapped = 13,
    kAttributeAllowedHandleTypes = 14,
    kAttributeMempool = 17,
};

constexpr uint64_t kMemoryTypeHost = 1, kMemoryTypeDevice = 2, kMemoryTypeUnified = 4;

enum DeviceAttribute : int {
    kDeviceMultiprocessors = 16,
    kDeviceAsyncEngines = 40,
    kDeviceUnifiedAddressing = 41,
    kDeviceComputeMajor = 75,
    kDeviceComputeMinor = 76,
    kDeviceHostPointerOfRegistered = 91,
    kDeviceVmm = 102,
    kDeviceFileDescriptors = 103,
    kDeviceRdmaWithVmm = 110,
    kDeviceStreamMemops64 = 122,
    kDeviceIpc = 125,
    kDeviceFabric = 128,
};

constexpr uint32_t kStreamNonBlocking = 1;
constexpr uint32_t kEventDisableTiming = 2, kEventInterprocess = 4;
constexpr uint32_t kHostPortable = 1, kHostDeviceMap = 2;
constexpr int kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2;
constexpr uint32_t kIpcLazyPeerAccess = 1;
constexpr uint32_t kWaitGreaterOrEqual = 0;

/// The default stream of a context, which waits for all blocking streams and they for it.
inline Stream legacy_stream() noexcept { return reinterpret_cast<Stream>(1); }
/// The one that the calling thread has instead, if it was built so.
inline Stream per_thread_stream() noexcept { return reinterpret_cast<Stream>(2); }

// ---- layouts

struct Location {
    uint32_t type = 0;
    int32_t id = 0;
};
constexpr uint32_t kLocationDevice = 1, kLocationHost = 2;

/// How a group of a batch's copies is made.
struct CopyAttributes {
    uint32_t source_order = 0;
    Location source_hint;
    Location destination_hint;
    uint32_t flags = 0;
};
static_assert(sizeof(CopyAttributes) == 24);
constexpr uint32_t kSourceOrderStream = 1;

struct AllocationProperties {
    uint32_t type = 0;
    uint32_t handle_types = 0;
    Location location;
    void* windows = nullptr;
    uint8_t compression = 0;
    uint8_t gpu_direct_rdma = 0;
    uint16_t usage = 0;
    uint8_t reserved[4] = {};
};
static_assert(sizeof(AllocationProperties) == 32);
constexpr uint32_t kAllocationPinned = 1;
constexpr uint32_t kHandleNone = 0, kHandleDescriptor = 1, kHandleFabric = 8;

struct AccessDescription {
    Location location;
    uint32_t flags = 0;
};
static_assert(sizeof(AccessDescription) == 12);
constexpr uint32_t kAccessReadWrite = 3;

/// What a pool is made with.
struct PoolProperties {
    uint32_t type = 0;
    uint32_t handle_types = 0;
    Location location;
    void* windows = nullptr;
    size_t length_max = 0;
    uint16_t usage = 0;
    uint8_t reserved[54] = {};
};
static_assert(sizeof(PoolProperties) == 88);

/// Where in a pool some memory is, for another process.
struct PoolPointer {
    uint8_t bytes[64] = {};
};

struct IpcHandle {
    uint8_t bytes[64] = {};
};
static_assert(sizeof(IpcHandle) == 64);

struct Uuid {
    uint8_t bytes[16] = {};
};

// ---- functions

/// As found in the library; null where this driver does not have one.
struct Functions {
    // what we do not work without
    Status (*get_device_count)(int*) = nullptr;
    Status (*get_device)(DeviceHandle*, int ordinal) = nullptr;
    Status (*get_device_attribute)(int*, int attribute, DeviceHandle) = nullptr;
    Status (*primary_state)(DeviceHandle, uint32_t* flags, int* active) = nullptr;
    Status (*primary_retain)(Context*, DeviceHandle) = nullptr;
    Status (*primary_release)(DeviceHandle) = nullptr;
    Status (*push)(Context) = nullptr;
    Status (*pop)(Context*) = nullptr;
    Status (*exchange_capture_mode)(int*) = nullptr;
    Status (*get_pointer_attributes)(uint32_t count, int* attributes, void** data, DevicePointer) = nullptr;
    Status (*get_address_range)(DevicePointer*, size_t*, DevicePointer) = nullptr;
    Status (*host_allocate)(void**, size_t, uint32_t flags) = nullptr;
    Status (*host_free)(void*) = nullptr;
    Status (*copy_async)(DevicePointer to, DevicePointer from, size_t, Stream) = nullptr;
    Status (*stream_create)(Stream*, uint32_t flags) = nullptr;
    Status (*stream_destroy)(Stream) = nullptr;
    Status (*event_create)(Event*, uint32_t flags) = nullptr;
    Status (*event_record)(Event, Stream) = nullptr;
    Status (*event_query)(Event) = nullptr;
    Status (*event_destroy)(Event) = nullptr;
    // what makes things better or possible
    Status (*init)(uint32_t flags) = nullptr;
    Status (*get_error_name)(Status, const char**) = nullptr;
    Status (*get_driver_version)(int*) = nullptr;
    Status (*get_device_uuid)(Uuid*, DeviceHandle) = nullptr;
    Status (*get_device_bus_id)(char*, int, DeviceHandle) = nullptr;
    Status (*stream_is_capturing)(Stream, int*) = nullptr;
    Status (*stream_query)(Stream) = nullptr;
    Status (*stream_context)(Stream, Context*) = nullptr;
    Status (*stream_wait_event)(Stream, Event, uint32_t flags) = nullptr;
    Status (*stream_wait_value)(Stream, DevicePointer, uint64_t value, uint32_t flags) = nullptr;
    Status (*launch_host_function)(Stream, void (*)(void*), void*) = nullptr;
    Status (*host_device_pointer)(DevicePointer*, void*, uint32_t flags) = nullptr;
    Status (*copy_batch)(DevicePointer* to, DevicePointer* from, size_t*, size_t count, CopyAttributes*, size_t* first_of_attribute,
                         size_t attribute_count, Stream) = nullptr;  // since 13.0
    Status (*copy_batch_old)(DevicePointer* to, DevicePointer* from, size_t*, size_t count, CopyAttributes*, size_t* first_of_attribute,
                             size_t attribute_count, size_t* failed, Stream) = nullptr;  // 12.8 and 12.9: one argument more
    Status (*module_load)(Module*, const void* text) = nullptr;
    Status (*module_function)(Function*, Module, const char* name) = nullptr;
    Status (*module_unload)(Module) = nullptr;
    Status (*launch)(Function, uint32_t blocks_x, uint32_t blocks_y, uint32_t blocks_z, uint32_t threads_x, uint32_t threads_y,
                     uint32_t threads_z, uint32_t shared_bytes, Stream, void** parameters, void** extra) = nullptr;
    Status (*host_register)(void*, size_t, uint32_t flags) = nullptr;
    Status (*host_unregister)(void*) = nullptr;
    // memory of our own
    Status (*allocate)(DevicePointer*, size_t) = nullptr;
    Status (*free)(DevicePointer) = nullptr;
    Status (*context_synchronize)() = nullptr;
    Status (*can_access_peer)(int*, DeviceHandle one, DeviceHandle other) = nullptr;
    // sharing memory between processes
    Status (*ipc_get)(IpcHandle*, DevicePointer) = nullptr;
    Status (*ipc_open)(DevicePointer*, IpcHandle, uint32_t flags) = nullptr;
    Status (*ipc_close)(DevicePointer) = nullptr;
    Status (*vmm_create)(Handle*, size_t, const AllocationProperties*, uint64_t flags) = nullptr;
    Status (*vmm_release)(Handle) = nullptr;
    Status (*vmm_reserve)(DevicePointer*, size_t, size_t alignment, DevicePointer wanted, uint64_t flags) = nullptr;
    Status (*vmm_free)(DevicePointer, size_t) = nullptr;
    Status (*vmm_map)(DevicePointer, size_t, size_t offset, Handle, uint64_t flags) = nullptr;
    Status (*vmm_unmap)(DevicePointer, size_t) = nullptr;
    Status (*vmm_set_access)(DevicePointer, size_t, const AccessDescription*, size_t count) = nullptr;
    Status (*vmm_granularity)(size_t*, const AllocationProperties*, int option) = nullptr;
    Status (*vmm_retain)(Handle*, void*) = nullptr;
    Status (*vmm_export)(void* out, Handle, int type, uint64_t flags) = nullptr;
    Status (*vmm_import)(Handle*, void* shareable, int type) = nullptr;
    Status (*memory_free)(DevicePointer) = nullptr;
    Status (*pool_destroy)(Pool) = nullptr;
    Status (*pool_set_access)(Pool, const AccessDescription*, size_t count) = nullptr;
    Status (*pool_export)(void* out, Pool, int type, uint64_t flags) = nullptr;
    Status (*pool_import)(Pool*, void* shareable, int type, uint64_t flags) = nullptr;
    Status (*pool_export_pointer)(PoolPointer*, DevicePointer) = nullptr;
    Status (*pool_import_pointer)(DevicePointer*, Pool, PoolPointer*) = nullptr;
};

}  // namespace mooncake::cuda::abi
