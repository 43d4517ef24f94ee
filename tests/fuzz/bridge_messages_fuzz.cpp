// SPDX-License-Identifier: Apache-2.0
// What a process of this host may send to a node, and what a node may answer: no decoder may read beyond the bytes, and what it accepts must mean the same
// after it was written and read again.
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <span>

#include "store/bridge/frame.h"
#include "store/bridge/messages.h"

using namespace mooncake;
using namespace mooncake::store::bridge;

namespace {

void check_request(std::span<const std::byte> bytes) {
    const auto encode = [](const ReceivedRequest& received) {
        Request request;
        request.keys = received.keys;
        request.groups = received.groups;
        request.piece_counts = received.piece_counts;
        request.pieces = received.pieces;
        request.offsets = received.offsets;
        request.config = received.config;
        request.flag = received.flag;
        request.text = received.text;
        return encode_request(request);
    };
    const auto first = decode_request(bytes);
    if (!first) return;
    const auto once = encode(*first);
    const auto second = decode_request(once);
    MC_CHECK(second.has_value());
    MC_CHECK(encode(*second) == once);
}

void check_reply(std::span<const std::byte> bytes) {
    const auto first = decode_reply(bytes);
    if (!first) return;
    const auto once = encode_reply(*first);
    const auto second = decode_reply(once);
    MC_CHECK(second.has_value());
    MC_CHECK(encode_reply(*second) == once);
}

/// As a packet, the way it would come.
void check_frame(const uint8_t* data, size_t size) {
    static int* const ends = [] {
        static int pair[2];
        MC_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
        return pair;
    }();
    if (size == 0 || ::send(ends[0], data, size, MSG_DONTWAIT) != static_cast<ssize_t>(size)) return;
    static const auto room = std::make_unique<PacketRoom>();
    const auto frame = receive_frame(ends[1], *room);
    if (frame) MC_CHECK(frame->body.size() == frame->head.body_bytes && frame->body.size() + sizeof(Head) == size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    check_request(bytes);
    check_reply(bytes);
    check_frame(data, size);
    return 0;
}
