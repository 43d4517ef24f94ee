// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/transport.h"

namespace mooncake {

/// Reaches other processes of the same user on the same host. Memory from allocate_shared_memory() is mapped by the peers and
/// copied at memory speed; all other memory is copied by the kernel. docs/wire/shm.md says what the processes share.
Result<std::unique_ptr<Transport>> make_shm_transport(const TransportContext& context);

}  // namespace mooncake
