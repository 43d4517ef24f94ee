// SPDX-License-Identifier: Apache-2.0
// Bodies of the engine's RPCs, and what other processes wrote into a directory.
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/descriptor_json.h"
#include "engine/messages.h"

namespace {

using namespace mooncake;

void check_same(const SegmentDescriptor& descriptor, const Result<SegmentDescriptor>& again) {
    MC_CHECK(again);
    MC_CHECK(again->name == descriptor.name && again->incarnation == descriptor.incarnation && again->host == descriptor.host);
    MC_CHECK(again->endpoints == descriptor.endpoints && again->buffers.size() == descriptor.buffers.size());
    MC_CHECK(again->device_memory == descriptor.device_memory);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    (void)decode_describe_request(bytes);
    (void)decode_notification(bytes);
    (void)decode_control_request(bytes);
    (void)rpc_meta_from_json(text);
    // What is understood can be said again.
    if (const auto descriptor = decode_descriptor(bytes)) check_same(*descriptor, decode_descriptor(encode_descriptor(*descriptor)));
    if (const auto descriptor = descriptor_from_json(text)) check_same(*descriptor, descriptor_from_json(descriptor_to_json(*descriptor)));
    return 0;
}
