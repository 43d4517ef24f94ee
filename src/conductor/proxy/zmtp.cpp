// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/zmtp.h"

namespace mooncake::conductor::zmtp {

namespace {

constexpr unsigned char kMore = 1, kLong = 2, kCommand = 4;

void append_number(std::string& to, uint64_t number, int bytes) {
    for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) to += static_cast<char>(number >> shift);
}

uint64_t number_at(std::string_view text, size_t at, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; ++i) number = number << 8 | static_cast<unsigned char>(text[at + static_cast<size_t>(i)]);
    return number;
}

std::string frame(unsigned char flags, std::string_view body) {
    const bool is_long = body.size() > 255;
    std::string text(1, static_cast<char>(flags | (is_long ? kLong : 0)));
    append_number(text, body.size(), is_long ? 8 : 1);
    return text.append(body);
}

}  // namespace

std::string greeting() {
    std::string text("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
    text.resize(kGreetingBytes, '\0');
    return text;
}

std::string ready(std::string_view socket_type) {
    std::string body = "\x05READY\x0bSocket-Type";
    append_number(body, socket_type.size(), 4);
    body += socket_type;
    return frame(kCommand, body);
}

std::string subscribe_all() { return frame(0, "\x01"); }

std::string encode(std::span<const std::string> frames) {
    std::string text;
    for (size_t i = 0; i < frames.size(); ++i) text += frame(i + 1 < frames.size() ? kMore : 0, frames[i]);
    return text;
}

Result<std::vector<Message>> Parser::feed(std::string_view bytes) {
    rest_ += bytes;
    std::vector<Message> whole;
    if (!greeted_) {
        MC_ASSIGN_OR_RETURN(greeted_, take_greeting());
        if (!greeted_) return whole;
    }
    while (true) {
        MC_ASSIGN_OR_RETURN(const bool more, take_frame(whole));
        if (!more) return whole;
    }
}

Result<bool> Parser::take_greeting() {
    if (!rest_.empty() && rest_[0] != '\xff') return fail(Code::kCorrupt, "this is no ZeroMQ socket");
    if (rest_.size() < kGreetingBytes) return false;
    if (rest_[9] != '\x7f' || rest_[10] < 3) return fail(Code::kCorrupt, "a ZeroMQ socket before version 3 of its protocol");
    if (std::string_view(rest_).substr(12, 5) != std::string_view("NULL\0", 5))
        return fail(Code::kCorrupt, "a ZeroMQ socket that wants to be logged in to");
    rest_.erase(0, kGreetingBytes);
    return true;
}

/// False: there is none that is whole.
Result<bool> Parser::take_frame(std::vector<Message>& whole) {
    if (rest_.size() < 2) return false;
    const auto flags = static_cast<unsigned char>(rest_[0]);
    if ((flags & ~(kMore | kLong | kCommand)) != 0) return fail(Code::kCorrupt, "a ZeroMQ frame with flags {}", flags);
    const int length_bytes = (flags & kLong) != 0 ? 8 : 1;
    const size_t begin = 1 + static_cast<size_t>(length_bytes);
    if (rest_.size() < begin) return false;
    const uint64_t length = number_at(rest_, 1, length_bytes);
    if (length > kFrameBytesMax || message_bytes_ + length > kFrameBytesMax || message_.size() >= kFramesMax)
        return fail(Code::kCorrupt, "a ZeroMQ message that is too large");
    if (rest_.size() - begin < length) return false;
    std::string body = rest_.substr(begin, length);
    rest_.erase(0, begin + length);
    if ((flags & kCommand) != 0) {
        if (body.starts_with("\x05"
                             "ERROR"))
            return fail(Code::kCorrupt, "the ZeroMQ socket refused us");
        return true;
    }
    message_bytes_ += length;
    message_.push_back(std::move(body));
    if ((flags & kMore) != 0) return true;
    whole.push_back(std::move(message_));
    message_.clear();
    message_bytes_ = 0;
    return true;
}

}  // namespace mooncake::conductor::zmtp
