// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

/// As much of ZMTP 3.0 (rfc.zeromq.org/spec/23) as it takes to hear what engines publish: the null mechanism, and the client's side of SUB and DEALER. Pure: bytes in,
/// bytes out.
namespace mooncake::conductor::zmtp {

using Message = std::vector<std::string>;  // its frames

inline constexpr size_t kGreetingBytes = 64;
std::string greeting();
/// The handshake's command; `socket_type` is "SUB" or "DEALER".
std::string ready(std::string_view socket_type);
/// Asks a publisher for everything.
std::string subscribe_all();
std::string encode(std::span<const std::string> frames);

/// Takes the bytes of a peer as they come. Not thread-safe.
class Parser {
public:
    static constexpr size_t kFrameBytesMax = 64 << 20, kFramesMax = 16;
    /// The messages that became whole; commands are left out. kCorrupt: it is no such peer, or one that wants a mechanism; nothing more is to be read from it.
    Result<std::vector<Message>> feed(std::string_view bytes);

private:
    Result<bool> take_greeting();
    Result<bool> take_frame(std::vector<Message>& whole);

    std::string rest_;
    Message message_;
    size_t message_bytes_ = 0;
    bool greeted_ = false;
};

}  // namespace mooncake::conductor::zmtp
