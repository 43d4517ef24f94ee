// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/memory.h"
#include "transport/transport.h"

// What the transport needs of libfabric, in our own words: no header of libfabric is seen outside library.cpp, and tests plug
// in a fake (testing/fake_fabric.h). Errors carry the provider's number in Error's errno. None of it is thread-safe unless it
// says so: a Domain with everything opened from it belongs to one rail, and whoever holds the rail's lock may use it.
namespace mooncake::fabric {

/// How we would like memory to be addressed. Providers that can do both let tests see both.
enum class MrStyle : uint8_t {
    kAuto,    // whatever the provider prefers
    kOffset,  // remote addresses are offsets in the registration, we choose the keys (cxi)
    kBasic,   // remote addresses are virtual, the provider chooses the keys (efa, verbs)
};

/// What to ask a provider for.
struct OfferQuery {
    std::string provider;  // "net", "efa", "verbs;ofi_rxm"
    std::string fabric;    // only this fabric ("efa-direct"); empty: any
    std::string node;      // source address; empty: every NIC
    MrStyle style = MrStyle::kAuto;
    bool delivery_complete = true;  // writes complete when the bytes are in the target's memory
    bool device_memory = false;
};

/// One NIC as a provider offers it. Two NICs can talk when provider_family, protocol and address_format are equal.
struct Offer {
    std::string provider;
    std::string fabric;
    std::string domain;
    std::string nic;  // as the topology names it: "rdmap16s27", "mlx5_0", "eth1"; the source address where there is no device
    uint32_t protocol = 0;
    uint32_t address_format = 0;
    bool virtual_addresses = false;
    bool provider_keys = false;
    bool local_keys = false;     // local buffers need a descriptor as well
    bool endpoint_keys = false;  // a registration is bound to the endpoints that serve it
    bool delivery_complete = false;
    bool device_memory = false;
    uint32_t tx_size = 0;
    uint32_t key_bytes = 8;
    uint64_t operation_bytes_max = 0;
    uint64_t speed_bits = 0;             // per second; 0: not known
    std::shared_ptr<const void> record;  // the provider's own, for open()
};

/// Who an operation goes to: a handle of one Domain.
using AddressHandle = uint64_t;

/// What every operation record begins with: room for the provider (fi_context2). Stays put until its completion was read, or
/// its endpoint closed.
struct alignas(16) OperationContext {
    std::byte provider[64];
};

struct Operation {
    Direction direction = Direction::kRead;
    std::byte* local = nullptr;
    uint64_t length = 0;
    void* local_descriptor = nullptr;  // of the registration around `local`; null where !local_keys
    AddressHandle peer = 0;
    uint64_t remote = 0;  // address or offset
    uint64_t key = 0;
    OperationContext* context = nullptr;
};

struct Finished {
    OperationContext* context = nullptr;  // null: an error the provider could not attribute
    int error = 0;                        // 0: success; else a positive errno of libfabric
    int provider_error = 0;
};

/// A registration with the NIC; closed by its destructor.
class MemoryKey {
public:
    virtual ~MemoryKey() = default;
    virtual uint64_t key() const noexcept = 0;
    virtual void* descriptor() const noexcept = 0;
};

class Endpoint {
public:
    /// Closes it: afterwards no operation posted here touches local memory. Completions of those outstanding may or may not
    /// follow.
    virtual ~Endpoint() = default;
    virtual const std::vector<std::byte>& name() const noexcept = 0;
    /// True: posted, a Finished will follow. False: "again" (no room, connecting, or the peer is gone: the caller finds out).
    virtual Result<bool> post(const Operation& operation) = 0;
    /// Nothing is posted here any more; what is under way may still end. Before anything is posted on another endpoint of the domain.
    virtual void retire() {}
};

class Domain {
public:
    virtual ~Domain() = default;

    virtual Result<std::unique_ptr<Endpoint>> open_endpoint() = 0;
    virtual Result<AddressHandle> insert_address(std::span<const std::byte> name) = 0;
    virtual void remove_address(AddressHandle address) = 0;

    struct KeyRequest {
        std::byte* address = nullptr;
        uint64_t length = 0;
        MemoryKind kind = MemoryKind::kHost;
        int device = 0;
        bool remote_access = true;
        bool writable = true;                // by peers with remote access, and by our own reads
        uint64_t key = 0;                    // wanted; ignored with provider_keys. kBusy: taken, try another
        std::span<Endpoint* const> serving;  // for endpoint_keys
    };
    /// kNoSpace when the NIC has no room.
    virtual Result<std::unique_ptr<MemoryKey>> register_memory(const KeyRequest& request) = 0;

    /// Makes progress (also of what peers do to us) and takes finished operations. How many; 0: none now.
    virtual size_t poll(std::span<Finished> into) = 0;
    /// A descriptor that turns readable when poll() may find something, or -1: the caller has to poll now and then.
    virtual int wait_fd() const noexcept = 0;
    /// Whether one may sleep on wait_fd() now; false: poll() once more first.
    virtual bool may_sleep() = 0;
    /// Where a provider leaves wait_fd() readable although poll() finds nothing: ends that. May take a millisecond.
    virtual void calm_wait_fd() {}
    virtual uint32_t completions_max() const noexcept = 0;
};

/// One copy of libfabric (or a fake). Thread-safe.
class FabricApi {
public:
    virtual ~FabricApi() = default;
    virtual std::string description() const = 0;    // "libfabric 1.17 from libfabric.so.1"
    virtual uint32_t version() const noexcept = 0;  // major << 16 | minor
    /// What the provider has here; an empty list where it has nothing.
    virtual Result<std::vector<Offer>> offers(const OfferQuery& query) = 0;
    struct DomainSettings {
        uint32_t addresses_max = 65536;
        bool sleep = true;  // ask for a wait_fd()
    };
    virtual Result<std::unique_ptr<Domain>> open(const Offer& offer, const DomainSettings& settings) = 0;
};

/// The process's libfabric, loaded once: `path` if given, else a copy already loaded, else the one of the EFA installer, else
/// the loader's. kNotSupported with the reason when there is none. Never unloaded.
Result<std::shared_ptr<FabricApi>> load_library(const std::string& path);

}  // namespace mooncake::fabric
