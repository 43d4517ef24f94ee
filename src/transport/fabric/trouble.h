// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "transport/fabric/profile.h"

namespace mooncake::fabric {

/// What an error of libfabric means for what we do next.
enum class Trouble : uint8_t {
    kNone,
    kPath,    // the way is broken, or was: another path may do, and later this one
    kStale,   // the peer does not know the key, address or endpoint: ask it again before repeating
    kMisuse,  // our operation is wrong: repeating does not help
    kAgain,   // no room now
};

/// `error`: positive errno of libfabric; `provider_error`: the provider's own number, whose meaning only the profile knows.
Trouble trouble_of(const ProviderProfile& profile, int error, int provider_error) noexcept;

/// The code a caller sees when nothing more can be done about it.
Code code_of(Trouble trouble) noexcept;

/// "ECONNRESET (104), provider 14: the peer does not know our address"; for texts.
std::string describe_trouble(const ProviderProfile& profile, int error, int provider_error);

// Numbers of libfabric beyond those of the system.
constexpr int kNoKey = 266;      // FI_ENOKEY
constexpr int kNoReceive = 269;  // FI_ENORX

}  // namespace mooncake::fabric
