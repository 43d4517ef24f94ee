// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mooncake {

/// As many descriptors as this process may have at all: what shells give by default is less than a cluster has connections.
void raise_descriptor_limit() noexcept;

}  // namespace mooncake
