// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {

MC_INSTANTIATE_CONFORMANCE_OF_TWO(Shm, TransportCase{.name = "private_memory", .make = make_shm_transport},
                                  TransportCase{
                                      .name = "shared_memory", .make = make_shm_transport, .target_memory = MemorySource::kShared});
MC_INSTANTIATE_KINDS(Shm, TransportCase{.name = "shm", .make = make_shm_transport},
                     TransportCase{.name = "shm_libcuda", .make = make_shm_transport, .devices = KindSource::kFakeLibcuda},
                     TransportCase{.name = "shm_chunks", .make = make_shm_transport, .devices = KindSource::kFakeChunks});

}  // namespace mooncake::testing
