// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "base/ascend_options.h"
#include "transport/transport.h"

namespace mooncake::ascend {

/// The transport over the vendor's library, with what the environment says now. kNotSupported, with the reason: no library, self-check failed, no
/// device set, no port; kInvalidArgument: settings that exclude each other.
Result<std::unique_ptr<Transport>> make_ascend_transport(const TransportContext& context);
/// The same with given options.
Result<std::unique_ptr<Transport>> make_ascend_transport(const TransportContext& context, AscendOptions options);
/// What it needs is here, in words; or what is missing.
Result<std::string> ascend_state(const EngineOptions& options);

}  // namespace mooncake::ascend
