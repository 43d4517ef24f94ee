// SPDX-License-Identifier: Apache-2.0
// A library that looks like a newer libfabric: of each function it has the version that we look up and a later one, which is the default and
// must not be taken. It has a NIC of Slingshot and one of EFA, and says by its answers how it was asked.
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "transport/fabric/abi.h"

using namespace mooncake::fabric::abi;

namespace {

/// An Info with everything that hangs on it.
struct Whole {
    Info info{};
    TransmitAttributes transmit{};
    EndpointAttributes endpoint{};
    DomainAttributes domain{};
    FabricAttributes fabric{};
    DeviceAttributes device{};
    NicRecord nic{};
};

Whole* make_whole() {
    auto* const whole = new Whole;
    whole->info.transmit = &whole->transmit;
    whole->info.endpoint = &whole->endpoint;
    whole->info.domain = &whole->domain;
    whole->info.fabric = &whole->fabric;
    return whole;
}

char* copy_of(const char* text) { return text != nullptr ? ::strdup(text) : nullptr; }

Info* offer(const Info& hints, const char* fabric, const char* nic, int mr_mode) {
    Whole* const whole = make_whole();
    whole->info.caps = hints.caps;
    whole->transmit.flags = hints.transmit->flags;
    whole->transmit.size = 64;
    whole->endpoint.message_bytes_max = 1 << 30;
    whole->domain.name = copy_of(nic);
    whole->domain.mr_mode = mr_mode;
    whole->domain.key_bytes = 4;
    whole->fabric.name = copy_of(fabric);
    whole->fabric.provider = copy_of(hints.fabric->provider);
    return &whole->info;
}

}  // namespace

extern "C" {

uint32_t stub_version() { return version(2, 6); }
const char* stub_strerror(int) { return "an error of the other library"; }
int stub_fabric(FabricAttributes*, FabricObject**, void*) { return -ENOSYS; }

Info* stub_dupinfo(const Info* info) {
    if (info == nullptr) return &make_whole()->info;
    Whole* const copy = make_whole();
    copy->transmit = *info->transmit;
    copy->endpoint = *info->endpoint;
    copy->domain = *info->domain;
    copy->domain.name = copy_of(info->domain->name);
    copy->fabric = *info->fabric;
    copy->fabric.name = copy_of(info->fabric->name);
    copy->fabric.provider = copy_of(info->fabric->provider);
    return &copy->info;
}

void stub_freeinfo(Info* info) {
    while (info != nullptr) {
        auto* const whole = reinterpret_cast<Whole*>(info);
        info = info->next;
        std::free(whole->domain.name);
        std::free(whole->fabric.name);
        std::free(whole->fabric.provider);
        delete whole;
    }
}

int stub_getinfo(uint32_t asked, const char*, const char*, uint64_t, const Info* hints, Info** info) {
    if (asked != version(1, 18)) return -ENOSYS;
    const char* const provider = hints->fabric->provider;
    if (std::strcmp(provider, "cxi") == 0) {
        if (hints->domain->control_progress != kProgressManual) return -ENODATA;
        *info = offer(*hints, "cxi", "cxi0", kMrEndpoint | kMrAllocated | kMrProviderKeys);
        return 0;
    }
    if (std::strcmp(provider, "efa") == 0) {
        *info = offer(*hints, "efa", "rdmap0", kMrLocal | kMrVirtualAddresses | kMrAllocated | kMrProviderKeys);
        (*info)->next = offer(*hints, "efa-direct", "rdmap0", kMrLocal | kMrVirtualAddresses | kMrAllocated | kMrProviderKeys);
        return 0;
    }
    return -ENODATA;
}

/// The default of everything: not for who was built for the earlier one.
int stub_later() { ::abort(); }

}  // extern "C"

__asm__(".symver stub_version, fi_version@FABRIC_1.0");
__asm__(".symver stub_strerror, fi_strerror@FABRIC_1.0");
__asm__(".symver stub_fabric, fi_fabric@FABRIC_1.1");
__asm__(".symver stub_getinfo, fi_getinfo@FABRIC_1.3");
__asm__(".symver stub_freeinfo, fi_freeinfo@FABRIC_1.3");
__asm__(".symver stub_dupinfo, fi_dupinfo@FABRIC_1.3");
__asm__(".symver stub_later, fi_getinfo@@FABRIC_1.10");
