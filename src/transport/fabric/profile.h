// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/options.h"
#include "base/time.h"
#include "transport/fabric/api.h"

// What differs between the networks of libfabric, as data. Whatever a provider says of itself (Offer) overrides it. Pure.
namespace mooncake::fabric {

/// A version of libfabric as FabricApi::version() gives it.
constexpr uint32_t library_version(uint32_t major, uint32_t minor) noexcept { return major << 16 | minor; }
constexpr uint32_t kNoVersion = UINT32_MAX;

/// What it takes until bytes of an abandoned write cannot land any more (ADR 0030).
enum class Fence : uint8_t {
    kNeeded,  // the target must close the endpoint
    kGrace,   // closing our endpoint ends it, after a moment for what is on the wire
    kNone,    // closing our endpoint ends it
};

/// A name under which a provider is asked for, and the libraries that know it by that name.
struct ProviderName {
    std::string_view provider;
    std::string_view fabric;            // only this fabric of it; empty: any
    uint32_t version_min = 0;           // of the library
    uint32_t version_end = kNoVersion;  // the first one that does not
};

struct ProviderProfile {
    std::string_view name;                    // "efa"
    std::span<const ProviderName> providers;  // in the order to try
    uint32_t delivery_complete_from = 0;      // library version from which writes ask for delivery; kNoVersion: never needed
    bool has_devices = true;                  // stands for RDMA NICs; false: any machine has it
    bool named_by_address = false;            // rails are source addresses (MC_FABRIC_NODES), not devices
    bool announces = false;                   // a target must know an initiator's address before it is written to
    bool sleeps = true;                       // its completion queue can be slept on; otherwise it is polled now and then
    Fence fence = Fence::kNeeded;
    Duration fence_grace = 1s;             // for kGrace
    uint64_t stripe_bytes = 1 << 20;       // requests of twice this and more are cut for several rails
    uint64_t operation_bytes_max = 0;      // 0: as the provider says
    uint64_t flight_bytes_max = 64 << 20;  // per rail, so that a slow path does not queue what another could carry
    Duration stall_timeout = 30s;          // no completion for this long while something is in flight: the path is down
    Duration connect_timeout = 5s;         // "again" for this long while nothing is in flight: the path is down
    Duration idle_timeout = 10min;         // after which a path that nobody uses is forgotten
    uint32_t addresses_max = 65536;        // peers' rails
    uint64_t page_budget = 0;              // page entries per NIC, over all buffers; 0: no limit known
    uint64_t registration_bytes_max = 0;   // one registration; 0: no limit known
    uint32_t registrations_max = 0;        // per NIC; 0: no limit known
};

/// By its own name ("efa-direct"); null if there is none.
const ProviderProfile* find_profile(std::string_view name) noexcept;
std::span<const ProviderProfile> all_profiles() noexcept;

/// Whether a protocol asks for this transport: `efa`, `rdma`, `cxi`, `fabric:<profile>`.
bool is_fabric_protocol(std::string_view protocol) noexcept;

/// The profile of the options' protocol, also where only MC_TRANSPORTS asks for the fabric (then `tcp` means the profile of that
/// name). kInvalidArgument: a profile we do not have; kNotSupported: nobody asked for the fabric.
Result<const ProviderProfile*> choose_profile(const EngineOptions& options);

/// The profile with the options' settings in place of its own.
ProviderProfile tuned(const ProviderProfile& profile, const FabricOptions& options);

/// What to ask libfabric for, in the order to try; the first query that has offers wins. Per name one query for every node, or
/// one for all NICs.
struct ProviderQueries {
    std::vector<std::vector<OfferQuery>> tries;
};
/// kInvalidArgument: an MR_STYLE that makes no sense. kNotSupported: the library is too old for the profile.
Result<ProviderQueries> queries_for(const ProviderProfile& profile, uint32_t library, const FabricOptions& options, bool device_memory);

}  // namespace mooncake::fabric
