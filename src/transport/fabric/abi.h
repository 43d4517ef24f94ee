// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

// The binary interface of libfabric, as far as we use it, so that nothing of libfabric is needed to build: the layouts belong to the symbol
// versions that library.cpp looks up, which newer libraries keep. abi_test.cpp compares them with libfabric's own headers where those are
// installed. The library makes almost all of these structures, so what stands behind the last member we need is left out; those that we make
// (kept to the end, with room for what newer libraries append) are zero beyond what we set.
namespace mooncake::fabric::abi {

// ---- numbers

constexpr uint32_t version(uint32_t major, uint32_t minor) noexcept { return major << 16 | minor; }

// What an endpoint can do, how its operations complete, and what registrations allow.
constexpr uint64_t kMsg = 1ull << 1;
constexpr uint64_t kRma = 1ull << 2;
constexpr uint64_t kRead = 1ull << 8;
constexpr uint64_t kWrite = 1ull << 9;
constexpr uint64_t kReceive = 1ull << 10;
constexpr uint64_t kTransmit = 1ull << 11;
constexpr uint64_t kRemoteRead = 1ull << 12;
constexpr uint64_t kRemoteWrite = 1ull << 13;
constexpr uint64_t kCompletion = 1ull << 24;
constexpr uint64_t kDeliveryComplete = 1ull << 28;
constexpr uint64_t kDeviceMemory = 1ull << 47;
constexpr uint64_t kSource = 1ull << 57;

// What a caller has to do for a provider.
constexpr uint64_t kContext = 1ull << 59;
constexpr uint64_t kContext2 = 1ull << 52;

// How memory is registered.
constexpr int kMrBasic = 1;  // the old way to say virtual addresses, allocated, provider's keys
constexpr int kMrLocal = 1 << 2;
constexpr int kMrRaw = 1 << 3;
constexpr int kMrVirtualAddresses = 1 << 4;
constexpr int kMrAllocated = 1 << 5;
constexpr int kMrProviderKeys = 1 << 6;
constexpr int kMrEndpoint = 1 << 9;
constexpr int kMrDeviceMemory = 1 << 10;

constexpr int kReliableDatagrams = 3;  // kind of endpoint
constexpr int kThreadSafe = 1;
constexpr int kProgressAuto = 1;
constexpr int kProgressManual = 2;
constexpr int kResourcesManaged = 2;
constexpr int kAddressTable = 2;
constexpr int kQueueOfData = 3;  // format of completions
constexpr int kWaitNone = 0;
constexpr int kWaitDescriptor = 3;
constexpr int kMemoryOfSystem = 0;
constexpr int kMemoryOfCuda = 1;
constexpr uint32_t kFormatIpv6 = 3;  // of an address
constexpr uint32_t kFormatText = 9;
constexpr uint64_t kNoAddress = UINT64_MAX;

constexpr int kGetWait = 5;  // commands of control()
constexpr int kEnable = 6;
constexpr int kEndpointOption = 0;  // level of an option

constexpr int kErrorAvailable = 259;  // beside those of the system
constexpr int kNoSuchKey = 266;

// ---- what there is

struct TransmitAttributes {
    uint64_t caps;
    uint64_t mode;
    uint64_t flags;
    uint64_t message_order;
    uint64_t completion_order;
    size_t inject_bytes;
    size_t size;
};

struct EndpointAttributes {
    int type;
    uint32_t protocol;
    uint32_t protocol_version;
    size_t message_bytes_max;
};

struct DomainAttributes {
    void* domain;
    char* name;
    int threading;
    int control_progress;
    int data_progress;
    int resources;
    int address_kind;
    int mr_mode;
    size_t key_bytes;
};

struct FabricAttributes {
    void* fabric;
    char* name;
    char* provider;
    uint32_t provider_version;
    uint32_t api_version;
};

struct DeviceAttributes {
    char* name;
};

struct LinkAttributes {
    char* address;
    size_t mtu;
    size_t speed;  // bits per second
};

// ---- objects; each begins with the same

struct Object;

struct ObjectCalls {
    size_t size;
    int (*close)(Object* self);
    int (*bind)(Object* self, Object* to, uint64_t flags);
    int (*control)(Object* self, int command, void* argument);
};

struct Object {
    size_t kind;
    void* context;
    ObjectCalls* calls;
};

struct NicRecord {
    Object object;
    DeviceAttributes* device;
    void* bus;
    LinkAttributes* link;
};

struct Info {
    Info* next;
    uint64_t caps;
    uint64_t mode;
    uint32_t address_format;
    size_t source_bytes;
    size_t destination_bytes;
    void* source;
    void* destination;
    Object* handle;
    TransmitAttributes* transmit;
    void* receive;
    EndpointAttributes* endpoint;
    DomainAttributes* domain;
    FabricAttributes* fabric;
    NicRecord* nic;
};

struct Memory {
    Object object;
    void* descriptor;
    uint64_t key;
};

struct Addresses;

struct AddressCalls {
    size_t size;
    int (*insert)(Addresses* self, const void* names, size_t count, uint64_t* into, uint64_t flags, void* context);
    void* unused[2];
    int (*remove)(Addresses* self, uint64_t* addresses, size_t count, uint64_t flags);
};

struct Addresses {
    Object object;
    AddressCalls* calls;
};

struct Completed {
    void* context;
    uint64_t flags;
    size_t length;
    void* buffer;
    uint64_t data;
};

/// Ours: the provider reads some of it.
struct Failure {
    void* context;
    uint64_t flags;
    size_t length;
    void* buffer;
    uint64_t data;
    uint64_t tag;
    size_t overflow;
    int error;
    int provider_error;
    void* details;
    size_t details_bytes;
    uint64_t later[6];
};

struct Queue;

struct QueueCalls {
    size_t size;
    ssize_t (*read)(Queue* self, void* into, size_t count);
    void* unused;
    ssize_t (*read_failure)(Queue* self, Failure* into, uint64_t flags);
    ssize_t (*read_blocking)(Queue* self, void* into, size_t count, const void* condition, int timeout_ms);
};

struct Queue {
    Object object;
    QueueCalls* calls;
};

/// Where in a peer's memory.
struct RemoteRange {
    uint64_t address;
    size_t length;
    uint64_t key;
};

/// Ours.
struct RmaMessage {
    const iovec* local;
    void** descriptors;
    size_t local_count;
    uint64_t peer;
    const RemoteRange* remote;
    size_t remote_count;
    void* context;
    uint64_t data;
};

struct EndpointObject;

struct EndpointCalls {
    size_t size;
    void* unused;
    int (*get_option)(Object* self, int level, int option, void* value, size_t* length);
    int (*set_option)(Object* self, int level, int option, const void* value, size_t length);
};

struct NameCalls {
    size_t size;
    void* unused;
    int (*get_name)(Object* self, void* name, size_t* length);
};

struct RmaCalls {
    size_t size;
    void* unused_reads[2];
    ssize_t (*read)(EndpointObject* self, const RmaMessage* message, uint64_t flags);
    void* unused_writes[2];
    ssize_t (*write)(EndpointObject* self, const RmaMessage* message, uint64_t flags);
};

struct EndpointObject {
    Object object;
    EndpointCalls* calls;
    NameCalls* names;
    void* messages;
    RmaCalls* rma;
};

/// Ours.
struct AddressAttributes {
    int kind;
    int receive_bits;
    size_t count;
    size_t endpoints_per_node;
    const char* name;
    void* map;
    uint64_t flags;
};

/// Ours.
struct QueueAttributes {
    size_t size;
    uint64_t flags;
    int format;
    int wait;
    int vector;
    int condition;
    void* wait_set;
};

/// Ours.
struct MemoryAttributes {
    const iovec* ranges;
    size_t range_count;
    uint64_t access;
    uint64_t offset;
    uint64_t requested_key;
    void* context;
    size_t authorization_bytes;
    uint8_t* authorization;
    int interface;
    uint64_t device;  // a CUDA device's number is in its first four bytes
    uint64_t later[6];
};

struct DomainObject;

struct DomainCalls {
    size_t size;
    int (*open_addresses)(DomainObject* self, AddressAttributes* attributes, Addresses** made, void* context);
    int (*open_queue)(DomainObject* self, QueueAttributes* attributes, Queue** made, void* context);
    int (*open_endpoint)(DomainObject* self, Info* info, EndpointObject** made, void* context);
};

struct MemoryCalls {
    size_t size;
    void* unused[2];
    int (*register_memory)(Object* domain, const MemoryAttributes* attributes, uint64_t flags, Memory** made);
};

struct DomainObject {
    Object object;
    DomainCalls* calls;
    MemoryCalls* memory;
};

struct FabricObject;

struct FabricCalls {
    size_t size;
    int (*open_domain)(FabricObject* self, Info* info, DomainObject** made, void* context);
    void* unused[3];
    int (*try_wait)(FabricObject* self, Object** objects, int count);
};

struct FabricObject {
    Object object;
    FabricCalls* calls;
};

/// What the library may keep in an operation's context while it is under way.
constexpr size_t kContext2Bytes = 64;

}  // namespace mooncake::fabric::abi
