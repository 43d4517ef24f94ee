// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshake.h"

#include <charconv>

#include "transport/tcp/stream.h"

namespace mooncake::tcp {

namespace {

constexpr std::string_view kPortKey = "port=";
constexpr std::string_view kVersionKey = "version=";

/// The number behind `key`; 0 when there is none, or nonsense.
uint16_t number_after(std::string_view key, std::string_view field) {
    uint16_t number = 0;
    if (!field.starts_with(key)) return 0;
    const std::string_view digits = field.substr(key.size());
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return status == std::errc() && end == digits.data() + digits.size() ? number : 0;
}

Error in_stage(Error error, const Target& target, const char* stage) {
    return std::move(error).with_context(format_text("{}: {}", target.to_string(), stage));
}

}  // namespace

std::string Target::to_string() const { return format_text("tcp to {} ({})", name, net::join_host_port(host, port)); }

void tune_data(int fd) noexcept {
    net::tune(fd);
    net::limit_unconfirmed(fd, 30s);
}

Result<net::Socket> send_hello(const Target& target, const Hello& hello, const net::Patience& patience) {
    auto socket = net::connect_to(target.host, target.port, patience);
    if (!socket) return Unexpected(in_stage(std::move(socket).error(), target, "connect"));
    tune_data(socket->fd());
    const auto bytes = encode(hello);
    if (auto sent = net::send_all(socket->fd(), bytes.data(), bytes.size(), patience); !sent)
        return Unexpected(in_stage(std::move(sent).error(), target, "hello"));
    return socket;
}

Result<Greeted> receive_hello_reply(const Target& target, net::Socket socket, const Hello& hello, const net::Patience& patience) {
    const auto refuse = [&](Code code, std::string message) {
        return Unexpected(in_stage(Error(code, std::move(message)), target, "hello"));
    };
    std::array<std::byte, kHelloReplyBytes> bytes;
    auto received = net::receive_all(socket.fd(), bytes.data(), bytes.size(), patience);
    // A peer that hangs is as unavailable as one that is gone; whose deadline passed is for the caller to say.
    if (!received) return refuse(Code::kUnavailable, received.error().to_string());
    note_received(socket.fd());
    size_t text_bytes = 0;
    auto reply = decode_hello_reply(bytes, text_bytes);
    if (!reply) return Unexpected(in_stage(std::move(reply).error(), target, "hello"));
    reply->text.resize(text_bytes);
    received = net::receive_all(socket.fd(), reply->text.data(), text_bytes, patience);
    if (!received) return refuse(Code::kUnavailable, received.error().to_string());
    if (reply->status != Status::kOk) return refuse(code_of(reply->status), std::move(reply->text));
    if (reply->version != hello.version)
        return refuse(Code::kRefused, format_text("the peer answered in version {}, we speak {}", reply->version, hello.version));
    return Greeted{.socket = std::move(socket), .features = reply->features & hello.features};
}

Result<Greeted> greet(const Target& target, const Hello& hello, const net::Patience& patience) {
    MC_ASSIGN_OR_RETURN(auto socket, send_hello(target, hello, patience));
    return receive_hello_reply(target, std::move(socket), hello, patience);
}

std::string format_endpoint(const Endpoint& endpoint) {
    return format_text("{}{};{}{}", kPortKey, endpoint.port, kVersionKey, endpoint.version);
}

Result<Endpoint> parse_endpoint(std::string_view text) {
    Endpoint endpoint{.port = 0, .version = kNumberedSessions};  // which did not say it
    for (std::string_view rest = text; !rest.empty();) {
        const std::string_view field = rest.substr(0, rest.find(';'));
        rest.remove_prefix(std::min(rest.size(), field.size() + 1));
        // Later versions may add others; we ignore what we do not know.
        if (field.starts_with(kPortKey)) endpoint.port = number_after(kPortKey, field);
        else if (const uint16_t version = number_after(kVersionKey, field); version != 0) endpoint.version = version;
    }
    if (endpoint.port == 0) return fail(Code::kCorrupt, "tcp endpoint '{}' makes no sense", text);
    return endpoint;
}

}  // namespace mooncake::tcp
