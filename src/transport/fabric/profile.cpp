// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/profile.h"

#include <algorithm>
#include <array>
#include <string>

namespace mooncake::fabric {

namespace {

constexpr ProviderName kEfaNames[] = {{.provider = "efa", .fabric = "efa"}, {.provider = "efa"}};
constexpr ProviderName kEfaDirectNames[] = {{.provider = "efa", .fabric = "efa-direct", .version_min = library_version(2, 1)}};
constexpr ProviderName kVerbsNames[] = {{.provider = "verbs;ofi_rxm"}};
constexpr ProviderName kCxiNames[] = {{.provider = "cxi"}};
// 1.17 knows the reliable datagrams over tcp as "net"; its "tcp" would be tcp;ofi_rxm.
constexpr ProviderName kTcpNames[] = {{.provider = "tcp", .version_min = library_version(1, 18)},
                                      {.provider = "net", .version_end = library_version(1, 18)},
                                      {.provider = "tcp;ofi_rxm"}};
constexpr ProviderName kShmNames[] = {{.provider = "shm"}};

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kEfaPages = 22 * kMiB;  // of about 24 Mi that a NIC has

constexpr ProviderProfile kProfiles[] = {
    {.name = "efa", .providers = kEfaNames, .fence = Fence::kGrace, .page_budget = kEfaPages},
    // The device itself says when bytes are placed.
    {.name = "efa-direct",
     .providers = kEfaDirectNames,
     .delivery_complete_from = kNoVersion,
     .announces = true,
     .fence = Fence::kGrace,
     .operation_bytes_max = 1024 * kMiB,
     .page_budget = kEfaPages},
    // A reliable connection acknowledges a write only when the target's NIC has it.
    {.name = "verbs", .providers = kVerbsNames, .delivery_complete_from = kNoVersion, .fence = Fence::kGrace},
    // The network itself repeats what was not acknowledged, for how long nobody says: only the target can end that.
    {.name = "cxi", .providers = kCxiNames, .fence = Fence::kNeeded, .registrations_max = 60'000},
    {.name = "tcp",
     .providers = kTcpNames,
     .has_devices = false,
     .named_by_address = true,
     .fence = Fence::kNeeded,
     .operation_bytes_max = 64 * kMiB,
     .stall_timeout = 3s},
    // Our own CPU copies. Before 1.18, asking for delivery lets one dead peer block all the others.
    {.name = "shm",
     .providers = kShmNames,
     .delivery_complete_from = library_version(1, 18),
     .has_devices = false,
     .sleeps = false,
     .fence = Fence::kNone,
     .stripe_bytes = 4 * kMiB,
     .operation_bytes_max = 64 * kMiB,
     .stall_timeout = 3s,
     .addresses_max = 256},
};

constexpr std::string_view kPrefix = "fabric:";

bool lists_fabric(const EngineOptions& options) {
    return std::find(options.transports.begin(), options.transports.end(), "fabric") != options.transports.end();
}

Result<const ProviderProfile*> named(std::string_view name) {
    if (const ProviderProfile* const profile = find_profile(name)) return profile;
    return fail(Code::kInvalidArgument, "there is no fabric profile '{}'; there are efa, efa-direct, verbs, cxi, tcp and shm", name);
}

Result<MrStyle> style_of(std::string_view text) {
    if (text.empty() || text == "auto") return MrStyle::kAuto;
    if (text == "offset") return MrStyle::kOffset;
    if (text == "basic") return MrStyle::kBasic;
    return fail(Code::kInvalidArgument, "MC_FABRIC_MR_STYLE is '{}': auto, offset or basic is expected", text);
}

}  // namespace

std::span<const ProviderProfile> all_profiles() noexcept { return kProfiles; }

const ProviderProfile* find_profile(std::string_view name) noexcept {
    for (const ProviderProfile& profile : kProfiles)
        if (profile.name == name) return &profile;
    return nullptr;
}

bool is_fabric_protocol(std::string_view protocol) noexcept {
    return protocol == "efa" || protocol == "rdma" || protocol == "cxi" || protocol.starts_with(kPrefix);
}

Result<const ProviderProfile*> choose_profile(const EngineOptions& options) {
    const std::string_view protocol = options.protocol;
    if (protocol.starts_with(kPrefix)) return named(protocol.substr(kPrefix.size()));
    if (protocol == "rdma") return named("verbs");
    if (is_fabric_protocol(protocol)) return named(protocol);
    if (!lists_fabric(options)) return fail(Code::kNotSupported, "no protocol of the fabric transport was asked for");
    return named(protocol.empty() ? "tcp" : protocol);
}

ProviderProfile tuned(const ProviderProfile& profile, const FabricOptions& options) {
    ProviderProfile result = profile;
    if (options.stripe_bytes != 0) result.stripe_bytes = options.stripe_bytes;
    if (options.stall_timeout != 0s) result.stall_timeout = options.stall_timeout;
    if (options.connect_timeout != 0s) result.connect_timeout = options.connect_timeout;
    if (options.idle_timeout != 0s) result.idle_timeout = options.idle_timeout;
    if (options.page_budget != 0) result.page_budget = options.page_budget;
    if (options.registration_bytes_max != 0) result.registration_bytes_max = options.registration_bytes_max;
    return result;
}

Result<ProviderQueries> queries_for(const ProviderProfile& profile, uint32_t library, const FabricOptions& options, bool device_memory) {
    MC_ASSIGN_OR_RETURN(const MrStyle style, style_of(options.mr_style));
    std::vector<ProviderName> names;
    if (!options.provider.empty()) names.push_back({.provider = options.provider});
    else
        for (const ProviderName& name : profile.providers)
            if (library >= name.version_min && library < name.version_end) names.push_back(name);
    if (names.empty())
        return fail(Code::kNotSupported, "libfabric {}.{} does not have profile {}", library >> 16, library & 0xffff, profile.name);
    ProviderQueries queries;
    for (const ProviderName& name : names) {
        OfferQuery query{.provider = std::string(name.provider),
                         .fabric = std::string(name.fabric),
                         .style = style,
                         .delivery_complete = library >= profile.delivery_complete_from,
                         .device_memory = device_memory};
        std::vector<OfferQuery> attempt;
        for (const std::string& node : options.nodes) {
            query.node = node;
            attempt.push_back(query);
        }
        if (attempt.empty()) attempt.push_back(query);
        queries.tries.push_back(std::move(attempt));
    }
    return queries;
}

}  // namespace mooncake::fabric
