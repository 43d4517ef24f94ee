// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

// What of the binary interfaces of CANN we use: ACL's runtime (C) and the transfer libraries ADXL and HIXL (C++, by mangled names). No header of
// CANN is needed to build. The numbers and layouts hold from CANN 8.2 on; see docs/adr/0050.
namespace mooncake::ascend::abi {

#if !defined(__GLIBCXX__) || defined(_GLIBCXX_DEBUG)
#error "std::map and std::vector cross the border to libraries that use libstdc++"
#endif

// ---- ACL

using AclError = int;
using Context = void*;
using Stream = void*;
using PhysicalHandle = void*;

constexpr AclError kAclNone = 0, kAclRepeatInitialize = 100002, kAclParamInvalid = 107000, kAclContextNull = 107002,
                   kAclNotSupported = 207000, kAclNoMemory = 207001;

enum CopyKind : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };
enum LocationType : uint32_t { kLocationHost = 0, kLocationDevice = 1, kLocationUnregistered = 2, kLocationManaged = 3, kLocationNuma = 4 };
constexpr uint32_t kStreamFastLaunch = 1, kStreamFastSync = 2;
constexpr size_t kBatchMax = 4096;  // of aclrtMemcpyBatch

enum MemoryAttribute : uint32_t { kPages2M = 16, kPages1G = 17 };  // of physical memory that others may reach
constexpr uint64_t kReserveHuge = 1;
constexpr uint32_t kAccessReadWrite = 3;

struct Location {
    uint32_t id = 0;
    uint32_t type = kLocationHost;
};
struct PointerAttributes {
    Location location;
    uint32_t page_size = 0;
    uint32_t reserved[4] = {};
};
struct BatchAttribute {
    Location to, from;
    uint8_t reserved[16] = {};
};
struct PhysicalProperties {
    uint32_t handle_type = 0;
    uint32_t allocation_type = 0;  // pinned
    uint32_t attribute = kPages2M;
    Location location;
    uint64_t reserved = 0;
};
struct AccessDescription {
    uint32_t flags = kAccessReadWrite;
    Location location;
    uint8_t reserved[12] = {};
};
struct FabricHandle {
    uint8_t bytes[128] = {};
};
static_assert(sizeof(Location) == 8 && sizeof(PointerAttributes) == 28 && sizeof(BatchAttribute) == 32);
static_assert(sizeof(PhysicalProperties) == 32 && sizeof(AccessDescription) == 24 && sizeof(FabricHandle) == 128);

/// Null: this runtime does not have it. Those of the first group are always there.
struct Runtime {
    AclError (*get_device_count)(uint32_t*) = nullptr;
    AclError (*get_device)(int32_t*) = nullptr;
    AclError (*set_device)(int32_t) = nullptr;
    AclError (*get_context)(Context*) = nullptr;
    AclError (*set_context)(Context) = nullptr;
    AclError (*create_stream)(Stream*, uint32_t priority, uint32_t flags) = nullptr;
    AclError (*destroy_stream)(Stream) = nullptr;
    AclError (*synchronize)(Stream, int32_t milliseconds) = nullptr;
    AclError (*copy)(void* to, size_t room, const void* from, size_t length, int kind) = nullptr;
    AclError (*copy_async)(void* to, size_t room, const void* from, size_t length, int kind, Stream) = nullptr;
    AclError (*allocate_host)(void**, size_t) = nullptr;
    AclError (*free_host)(void*) = nullptr;
    AclError (*pointer_attributes)(const void*, PointerAttributes*) = nullptr;

    const char* (*recent_error)() = nullptr;
    AclError (*physical_id)(int32_t device, int32_t* physical) = nullptr;
    AclError (*logical_id)(int32_t device, int32_t* logical) = nullptr;
    AclError (*abort_stream)(Stream) = nullptr;
    AclError (*copy_batch)(void** to, size_t* rooms, void** from, size_t* lengths, size_t count, BatchAttribute*, size_t* indices,
                           size_t attributes, size_t* failed) = nullptr;
    AclError (*allocate)(void**, size_t, int policy) = nullptr;
    AclError (*free)(void*) = nullptr;
    AclError (*allocate_physical)(PhysicalHandle*, size_t, const PhysicalProperties*, uint64_t) = nullptr;
    AclError (*free_physical)(PhysicalHandle) = nullptr;
    AclError (*reserve)(void**, size_t, size_t alignment, void* wanted, uint64_t flags) = nullptr;
    AclError (*release)(void*) = nullptr;
    AclError (*map)(void*, size_t, size_t offset, PhysicalHandle, uint64_t flags) = nullptr;
    AclError (*unmap)(void*) = nullptr;
    AclError (*set_access)(void*, size_t, AccessDescription*, size_t) = nullptr;
};

// ---- ADXL and HIXL

using Status = uint32_t;
constexpr Status kSuccess = 0, kParamInvalid = 103900, kTimeout = 103901, kNotConnected = 103902, kAlreadyConnected = 103903,
                 kUnsupported = 103905, kResourceExhausted = 203900, kFailed = 503900;

enum MemoryType : int { kMemoryDevice = 0, kMemoryHost = 1 };
enum TransferOp : int { kOpRead = 0, kOpWrite = 1 };
enum TransferState : int { kWaiting = 0, kCompleted = 1, kTimedOut = 2, kStateFailed = 3 };
enum Feature : int32_t { kFeatureAutoConnect = 0, kFeatureClientServer = 1 };

struct MemoryDescription {
    uintptr_t address = 0;
    size_t length = 0;
    uint8_t reserved[128] = {};
};
struct TransferDescription {
    uintptr_t local = 0, remote = 0;
    size_t length = 0;
};
struct TransferArguments {
    uint8_t reserved[128] = {};
};
static_assert(sizeof(MemoryDescription) == 144 && sizeof(TransferDescription) == 24 && sizeof(TransferArguments) == 128);

/// ge::AscendString: one shared_ptr, filled and ordered by the vendor's functions and freed by the control block that they left in it.
struct String {
    std::shared_ptr<void> text;
};
static_assert(sizeof(String) == 16);
/// By the vendor's operator<: without state, as std::less is.
struct StringLess {
    bool operator()(const String& one, const String& other) const noexcept { return function(&one, &other); }
    static inline bool (*function)(const String*,
                                   const String*) = nullptr;  // set once a library is loaded; the same meaning in all of them
};
using Options = std::map<String, String, StringLess>;
using Descriptions = std::vector<TransferDescription>;

struct Strings {
    void (*construct)(void* self, const char* text) = nullptr;
    const char* (*text)(const String* self) = nullptr;
    bool (*less)(const String*, const String*) = nullptr;
};

/// The storage of an engine of the library.
struct alignas(16) EngineObject {
    std::byte storage[64] = {};
};

struct Engine {
    void (*construct)(EngineObject*) = nullptr;
    void (*destroy)(EngineObject*) = nullptr;
    Status (*initialize)(EngineObject*, const String& name, const Options&) = nullptr;
    void (*finalize)(EngineObject*) = nullptr;
    Status (*register_memory)(EngineObject*, const MemoryDescription&, MemoryType, void*& handle) = nullptr;
    Status (*deregister_memory)(EngineObject*, void* handle) = nullptr;
    Status (*connect)(EngineObject*, const String& remote, int32_t milliseconds) = nullptr;
    Status (*disconnect)(EngineObject*, const String& remote, int32_t milliseconds) = nullptr;
    Status (*transfer)(EngineObject*, const String& remote, TransferOp, const Descriptions&, int32_t milliseconds) = nullptr;

    Status (*transfer_async)(EngineObject*, const String& remote, TransferOp, const Descriptions&, const TransferArguments&,
                             void*& request) = nullptr;
    Status (*transfer_status)(EngineObject*, void* const& request, TransferState&) = nullptr;
    Status (*allocate)(MemoryType, size_t, void**) = nullptr;  // of the class, as are those that follow
    Status (*free)(void*) = nullptr;
    Status (*capability)(Feature, int32_t&) = nullptr;
};

// ---- names

constexpr const char* kStringConstruct = "_ZN2ge12AscendStringC1EPKc";
constexpr const char* kStringText = "_ZNK2ge12AscendString9GetStringEv";
constexpr const char* kStringLess = "_ZNK2ge12AscendStringltERKS0_";

/// What comes after "_ZN4adxl10AdxlEngine" or "_ZN4hixl4Hixl".
namespace methods {
constexpr const char* kConstruct = "C1Ev";
constexpr const char* kDestroy = "D1Ev";
constexpr const char* kInitialize = "10InitializeERKN2ge12AscendStringERKSt3mapIS2_S2_St4lessIS2_ESaISt4pairIS3_S2_EEE";
constexpr const char* kFinalize = "8FinalizeEv";
constexpr const char* kRegister = "11RegisterMemERKNS_7MemDescENS_7MemTypeERPv";
constexpr const char* kDeregister = "13DeregisterMemEPv";
constexpr const char* kConnect = "7ConnectERKN2ge12AscendStringEi";
constexpr const char* kDisconnect = "10DisconnectERKN2ge12AscendStringEi";
constexpr const char* kTransfer = "12TransferSyncERKN2ge12AscendStringENS_10TransferOpERKSt6vectorINS_14TransferOpDescESaIS7_EEi";
constexpr const char* kTransferAsync =
    "13TransferAsyncERKN2ge12AscendStringENS_10TransferOpERKSt6vectorINS_14TransferOpDescESaIS7_EERKNS_12TransferArgsERPv";
constexpr const char* kTransferStatus = "17GetTransferStatusERKPvRNS_14TransferStatusE";
constexpr const char* kAllocate = "9MallocMemENS_7MemTypeEmPPv";
constexpr const char* kFree = "7FreeMemEPv";
constexpr const char* kCapability = "13GetCapabilityENS_11FeatureTypeERi";
}  // namespace methods

}  // namespace mooncake::ascend::abi
