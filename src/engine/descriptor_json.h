// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "transport/descriptor.h"

// What engines write into a directory (coordination/directory.h): JSON in the public layout, so that tools which read it keep
// working, with our own fields under "mooncake". Pure functions. Decoders ignore unknown fields; nonsense is kCorrupt with a
// text that names the field.
namespace mooncake {

/// `tcp_data_port` is only for such tools; our peers use the endpoints. Characters that are not UTF-8 are replaced.
std::string descriptor_to_json(const SegmentDescriptor& descriptor, uint16_t tcp_data_port = 0);
/// kNotSupported for a descriptor without our own fields: written by another implementation, whose data port we do not speak.
Result<SegmentDescriptor> descriptor_from_json(std::string_view text);

/// Where the control port of a named server is.
struct RpcMeta {
    std::string host;
    uint16_t rpc_port = 0;
};

std::string rpc_meta_to_json(const RpcMeta& meta);
Result<RpcMeta> rpc_meta_from_json(std::string_view text);

}  // namespace mooncake
