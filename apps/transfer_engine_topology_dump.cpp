// SPDX-License-Identifier: Apache-2.0
#include <gflags/gflags.h>

#include <cstdio>

#include "base/options.h"
#include "base/version.h"
#include "topology/topology.h"

DEFINE_string(device_name, "", "only these NICs, separated by commas");
DEFINE_bool(use_custom_topo, false, "take the topology from the file that MC_CUSTOM_TOPO_JSON names, as an engine would");
DEFINE_string(custom_topo_json, "", "take the topology from this file");
DEFINE_string(backend, "auto", "accepted; there is one engine");

int main(int argc, char** argv) {
    gflags::SetUsageMessage("prints which NICs are near which memory of this machine, as JSON: location -> [preferred, available]");
    gflags::SetVersionString(std::string(mooncake::version()));
    gflags::ParseCommandLineFlags(&argc, &argv, true);
    const mooncake::EngineOptions options = mooncake::load_options();
    std::string file = FLAGS_custom_topo_json;
    if (file.empty() && FLAGS_use_custom_topo) file = options.topology_file;
    auto topology = mooncake::discover_topology(
        {.nic_allow = FLAGS_device_name.empty() ? options.device_allow : mooncake::split_list(FLAGS_device_name),
         .nic_deny = options.device_deny,
         .file = file});
    if (!topology) {
        std::fprintf(stderr, "transfer_engine_topology_dump: %s\n", topology.error().to_string().c_str());
        return 1;
    }
    std::printf("%s\n", mooncake::to_json(*topology).c_str());
    return 0;
}
