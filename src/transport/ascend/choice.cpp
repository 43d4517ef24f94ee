// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/choice.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/log.h"

namespace mooncake::ascend {

namespace {

std::optional<int> number_after(std::string_view text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return std::nullopt;
    text.remove_prefix(prefix.size());
    int parsed = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (text.empty() || status != std::errc() || stop != text.data() + text.size() || parsed < 0) return std::nullopt;
    return parsed;
}

/// A hint may be the number of the device here, or on the machine.
int device_of_hint(const DeviceWish& wish, int hint) {
    if (wish.current >= 0) {
        const auto current = static_cast<size_t>(wish.current);
        if (hint != wish.current && (current >= wish.physical.size() || wish.physical[current] != hint))
            MC_LOG_WARNING("the name says npu_{}, but this thread's device is {}, which is used", hint, wish.current);
        return wish.current;
    }
    const auto found = std::find(wish.physical.begin(), wish.physical.end(), hint);
    return found == wish.physical.end() ? hint : static_cast<int>(found - wish.physical.begin());
}

}  // namespace

bool asked_for(const EngineOptions& options) {
    const auto& list = options.transports;
    return options.protocol == kProtocol || std::find(list.begin(), list.end(), kProtocol) != list.end();
}

Result<> check_choice(const EngineOptions& options, bool made, const Error& absent) {
    return check_choice(options, load_ascend_options(process_environment()), made, absent);
}

Result<> check_choice(const EngineOptions& options, const AscendOptions& ascend, bool made, const Error& absent) {
    const auto& list = options.transports;
    const bool allowed = list.empty() || std::find(list.begin(), list.end(), kProtocol) != list.end();
    // MC_FORCE_TCP and MC_TRANSPORTS leave it out on purpose.
    if (made || options.protocol != kProtocol || !allowed || !ascend.required.value_or(true)) return {};
    return fail(Code::kNotSupported, "protocol {}: {}; MC_ASCEND_REQUIRED=0 allows other transports in its place", kProtocol,
                absent.message());
}

Result<> check_settings(const AscendOptions& options) {
    if (options.pooled() && options.async)
        return fail(Code::kInvalidArgument,
                    "ASCEND_BUFFER_POOL={} and ASCEND_USE_ASYNC_TRANSFER exclude each other: the library moves only "
                    "synchronous transfers through its pool",
                    options.buffer_pool);
    if (options.pooled() && options.fabric_memory)
        return fail(Code::kInvalidArgument, "ASCEND_BUFFER_POOL={} and ASCEND_ENABLE_USE_FABRIC_MEM exclude each other",
                    options.buffer_pool);
    return {};
}

Result<std::vector<int>> choose_devices(const DeviceWish& wish) {
    std::vector<int> devices;
    for (const std::string& name : wish.names) {
        int device = -1;
        if (name == "all") {
            devices.resize(static_cast<size_t>(wish.count));
            std::iota(devices.begin(), devices.end(), 0);
            continue;
        }
        if (const auto hint = number_after(name, "npu_")) device = device_of_hint(wish, *hint);
        else if (const auto named = number_after(name, name.starts_with("npu:") ? "npu:" : "")) device = *named;
        else return fail(Code::kInvalidArgument, "'{}' is no NPU: N, npu:N or all is expected", name);
        if (device >= wish.count) return fail(Code::kInvalidArgument, "there is no NPU {}: {} are visible here", device, wish.count);
        if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
    }
    if (devices.empty() && wish.current < 0)
        return fail(Code::kNotSupported, "no device set: this thread has no NPU (aclrtSetDevice), and none is named");
    if (devices.empty()) devices.push_back(wish.current);
    return devices;
}

}  // namespace mooncake::ascend
