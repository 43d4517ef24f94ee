// SPDX-License-Identifier: Apache-2.0
// Whatever topology_from_json() accepts must come back unchanged through to_json(); the other parser must not crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "topology/sysfs.h"
#include "topology/topology.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto topology = topology_from_json(text)) {
        const std::string written = to_json(*topology);
        const auto again = topology_from_json(written);
        MC_CHECK(again && to_json(*again) == written);
        for (const Nic& nic : topology->nics) MC_CHECK(!nic.name.empty());
    }
    (void)sysfs::parse_cpu_list(text.substr(0, 64));
    return 0;
}
