// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "store/client/values.h"
#include "store/protocol/objects.h"

/// What thin clients ask a node, and what it answers (schema/bridge.fbs). As in store/protocol/messages.h: decoders accept any bytes, encoders check nothing.
namespace mooncake::store::bridge {

/// Bytes of an entry of the client's table. No entry has the number 0: such a piece is refused, and with it its value.
struct SharedPiece {
    uint32_t entry = 0;
    uint64_t offset = 0, length = 0;
};

/// Of all calls but those about tasks, which have the bodies that the master gets. Lists are as long as `keys`, or empty, but for `pieces`.
struct Request {
    std::span<const std::string_view> keys, groups;
    std::span<const uint32_t> piece_counts;  // of each key
    std::span<const SharedPiece> pieces;
    std::span<const uint64_t> offsets;  // of parts in their values; lengths of reservations
    WriteConfig config;
    bool flag = false;      // replace, force, revoke
    std::string_view text;  // a pattern, the name of a segment
};
/// Views point into the received bytes, or into `copy`. May be moved, not copied.
struct ReceivedRequest {
    std::vector<std::string_view> keys, groups;
    std::vector<uint32_t> piece_counts;
    std::vector<SharedPiece> pieces;
    std::vector<uint64_t> offsets;
    WriteConfig config;
    bool flag = false;
    std::string_view text;
    std::unique_ptr<uint64_t[]> copy;
};

struct Reply {
    std::vector<int64_t> numbers;   // 0 or more, or a StoreCode
    std::vector<ValueInfo> values;  // of find and locate; then numbers are their codes
};

std::vector<std::byte> encode_request(const Request& request);
Result<ReceivedRequest> decode_request(std::span<const std::byte> body);
std::vector<std::byte> encode_reply(const Reply& reply);
Result<Reply> decode_reply(std::span<const std::byte> body);

}  // namespace mooncake::store::bridge
