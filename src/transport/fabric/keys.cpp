// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/keys.h"

namespace mooncake::fabric {

KeySource::KeySource(uint32_t key_bytes, uint64_t seed) noexcept : low_(static_cast<uint32_t>(seed)) {
    if (key_bytes >= sizeof(uint64_t)) high_ = seed >> 32 << 32;
}

uint64_t KeySource::next() noexcept { return high_ | low_.fetch_add(1, std::memory_order_relaxed); }

}  // namespace mooncake::fabric
