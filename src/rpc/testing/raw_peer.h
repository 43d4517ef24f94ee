// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "net/socket.h"
#include "rpc/frame.h"
#include "rpc/hello.h"

// Helpers of the tests: one end of a connection in the hands of the test, which can misbehave.
namespace mooncake::rpc::testing {

constexpr Duration kPatience = 20s;  // against hangs; nothing is measured with it

struct RawFrame {
    FrameHeader header;
    Bytes body;
};

/// A bare TCP connection, blocking within kPatience.
class RawPeer {
public:
    explicit RawPeer(net::Socket socket) : socket_(std::move(socket)) {}
    /// To 127.0.0.1.
    static RawPeer connect(uint16_t port);

    Result<> send(std::span<const std::byte> bytes);
    Result<> send(std::string_view text) { return send(std::as_bytes(std::span(text))); }
    Result<> send_frame(FrameHeader header, const Bytes& body);
    Result<RawFrame> read_frame();
    /// Says hello as a client and checks that the server agrees.
    Result<HelloReply> hello(const HelloMessage& message = {.message_bytes_max = 1 << 20});
    /// Reads hello as a server and answers.
    Result<HelloMessage> answer_hello(const HelloReply& reply = {.message = {.message_bytes_max = 1 << 20}});
    /// Reads and drops bytes until the other end closes; false if it does not within `patience`.
    bool closed_by_peer(Duration patience = kPatience);
    int fd() const noexcept { return socket_.fd(); }
    void close() { socket_.reset(); }

private:
    net::Socket socket_;
};

/// A listening socket on a free port.
class RawServer {
public:
    explicit RawServer(int backlog = 16);
    uint16_t port() const noexcept { return listener_.port; }
    std::string address() const { return format_text("127.0.0.1:{}", port()); }
    RawPeer accept();
    /// True when nobody knocks within this time.
    bool quiet_for(Duration duration);
    void close() { listener_.socket.reset(); }

private:
    net::Listener listener_;
};

/// The bytes of one frame.
Bytes frame_bytes(FrameHeader header, const Bytes& body);
Bytes bytes_of(std::string_view text);
std::string text_of(std::span<const std::byte> bytes);

/// Asks again and again until true; false after kPatience. For states nobody announces.
template <typename Predicate>
bool eventually(Predicate&& predicate) {
    const Deadline deadline = Deadline::after(kPatience);
    while (!predicate()) {
        if (deadline.passed()) return false;
        std::this_thread::sleep_for(1ms);
    }
    return true;
}

}  // namespace mooncake::rpc::testing
