// SPDX-License-Identifier: Apache-2.0
#include "transport/self/self.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {

MC_INSTANTIATE_CONFORMANCE(Self, TransportCase{.name = "self", .make = make_self_transport, .same_process = true});
MC_INSTANTIATE_KINDS(Self, TransportCase{.name = "self", .make = make_self_transport, .same_process = true},
                     TransportCase{
                         .name = "self_libcuda", .make = make_self_transport, .same_process = true, .devices = KindSource::kFakeLibcuda});

}  // namespace mooncake::testing
