// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transport/transport.h"

namespace mooncake {

/// One line of the list of transports (engine/transports.cpp). What is particular to a transport is a function of its own folder, and null
/// for most. Plain data.
struct TransportMaker {
    std::string_view name;  // MC_TRANSPORTS, and the endpoint in descriptors
    Result<std::unique_ptr<Transport>> (*make)(const TransportContext& context) = nullptr;
    Reach reach = Reach::kNetwork;
    std::span<const std::string_view> protocols = {};  // by which callers ask for it, besides its name
    /// Null: it is made wherever MC_TRANSPORTS does not leave it out.
    bool (*asked_for)(const EngineOptions& options) = nullptr;
    /// Of one that is asked for: nothing else may go over the network in its place.
    bool (*alone)(const EngineOptions& options) = nullptr;
    /// For who asks what can be used here: in words, or why it cannot be. Null: it always can.
    Result<std::string> (*state)(const EngineOptions& options) = nullptr;
    /// Whether the options can do with what came of it. `absent`: why it was not made.
    Result<> (*check)(const EngineOptions& options, bool made, const Error& absent) = nullptr;
};

}  // namespace mooncake
