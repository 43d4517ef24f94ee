// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace mooncake::fabric {

/// Keys of registrations where we choose them. Random from the start, so that a key of an earlier life of this process, still
/// held by a peer, is not one of ours: a provider would accept it. Thread-safe.
class KeySource {
public:
    /// `key_bytes`: how many the provider keeps of a key (8, or 4 on Slingshot). `seed` is random.
    KeySource(uint32_t key_bytes, uint64_t seed) noexcept;

    /// None of this life comes twice, before 2^32 of them (of 4 bytes: before 2^32 as well).
    uint64_t next() noexcept;

private:
    uint64_t high_ = 0;
    std::atomic<uint32_t> low_;
};

}  // namespace mooncake::fabric
