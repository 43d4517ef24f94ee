// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/ascend_options.h"
#include "base/error.h"

// What the options say of this transport, for the list of transports (transport/maker.h). Pure, but for the environment.
namespace mooncake::ascend {

constexpr std::string_view kProtocol = "ascend";

/// By its protocol, or because MC_TRANSPORTS names it.
bool asked_for(const EngineOptions& options);
/// kNotSupported: nothing may take our place, and we are not here. `absent` says why.
Result<> check_choice(const EngineOptions& options, bool made, const Error& absent);
Result<> check_choice(const EngineOptions& options, const AscendOptions& ascend, bool made, const Error& absent);
/// kInvalidArgument: settings that the library takes only one of.
Result<> check_settings(const AscendOptions& options);

/// What a program said about devices, and what is here.
struct DeviceWish {
    std::span<const std::string> names;  // "3", "npu:3", "all"; "npu_3" (of a server's name): a hint for a thread that has no device
    int current = -1;                    // of the calling thread; -1: none
    int count = 0;
    std::span<const int> physical;  // of each of them, if that is known
};
/// Which devices get an engine. kNotSupported: no device is set and none is named; kInvalidArgument: there is no such device.
Result<std::vector<int>> choose_devices(const DeviceWish& wish);

}  // namespace mooncake::ascend
