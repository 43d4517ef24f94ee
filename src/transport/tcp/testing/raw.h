// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "net/socket.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/testing/side.h"
#include "transport/tcp/wire.h"

// Both ends of the protocol by hand, to say what a well-behaved one never would.
namespace mooncake::tcp::testing {

inline Deadline soon() { return Deadline::after(20s); }

/// A connection that speaks bytes.
class Raw {
public:
    explicit Raw(net::Socket socket) : socket_(std::move(socket)) {}
    static Raw to(uint16_t port) {
        auto socket = net::connect_to("127.0.0.1", port, soon());
        MC_CHECK(socket.has_value());
        return Raw(std::move(*socket));
    }

    int fd() const { return socket_.fd(); }
    void close() { socket_.reset(); }
    bool send(const void* data, size_t size) {
        note_sent(fd());
        return net::send_all(fd(), data, size, soon()).has_value();
    }
    bool send(const std::vector<std::byte>& bytes) { return send(bytes.data(), bytes.size()); }
    bool send(std::string_view text) { return send(text.data(), text.size()); }
    bool send(const Hello& hello) { return send(encode(hello)); }
    bool receive(void* data, size_t size) {
        const bool received = net::receive_all(fd(), data, size, soon()).has_value();
        note_received(fd());
        return received;
    }
    std::optional<Hello> receive_hello() {
        std::vector<std::byte> bytes;
        size_t wanted = kHelloBytes;
        while (bytes.size() < wanted) {
            const size_t had = bytes.size();
            bytes.resize(wanted);
            if (!receive(bytes.data() + had, wanted - had)) return std::nullopt;
            // What tells the length may be a few bytes further on.
            wanted = std::max(hello_bytes(bytes), hello_bytes(bytes) == 0 ? bytes.size() + 1 : 0);
        }
        auto hello = decode_hello(bytes);
        return hello ? std::optional(*hello) : std::nullopt;
    }
    std::optional<HelloReply> receive_reply() {
        std::array<std::byte, kHelloReplyBytes> bytes;
        size_t text_bytes = 0;
        if (!receive(bytes.data(), bytes.size())) return std::nullopt;
        auto reply = decode_hello_reply(bytes, text_bytes);
        if (!reply) return std::nullopt;
        reply->text.resize(text_bytes);
        if (!receive(reply->text.data(), text_bytes)) return std::nullopt;
        return *reply;
    }
    std::optional<Header> receive_header() {
        std::array<std::byte, kHeaderBytes> bytes;
        if (!receive(bytes.data(), bytes.size())) return std::nullopt;
        auto header = decode_header(bytes);
        return header ? std::optional(*header) : std::nullopt;
    }
    std::string receive_text(const Header& header) {
        std::string text(header.payload_bytes, ' ');
        return receive(text.data(), text.size()) ? text : "";
    }
    /// True when the other end closes (or resets) within the time; what it sends until then is thrown away.
    bool closed_by_peer(Duration limit = 20s) {
        const Deadline deadline = Deadline::after(limit);
        char nothing[4096];
        while (net::wait_ready(fd(), POLLIN, deadline)) {
            const ssize_t got = ::recv(fd(), nothing, sizeof nothing, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
        }
        return false;
    }

private:
    net::Socket socket_;
};

/// An initiator by hand, greeted by `target`.
inline Raw greeted(const Side& target, const Hello& hello) {
    Raw raw = Raw::to(target.port());
    MC_CHECK(raw.send(hello));
    const auto reply = raw.receive_reply();
    MC_CHECK(reply && reply->status == Status::kOk && reply->version == hello.version);
    return raw;
}
/// The same with a numbered session.
inline Raw greeted(const Side& target, Incarnation initiator, uint64_t number, uint32_t features = 0) {
    return greeted(
        target,
        {.version = kNumberedSessions, .features = features, .initiator = initiator, .target = target.incarnation, .number = number});
}
/// And with a session that has a name.
inline Raw greeted(const Side& target, Incarnation initiator, SessionId session, std::vector<SessionId> ended = {}) {
    return greeted(target, {.initiator = initiator, .target = target.incarnation, .session = session, .ended = std::move(ended)});
}

inline std::vector<std::byte> write_head(uint64_t id, uint64_t address, uint32_t length, bool checked = false) {
    std::vector<std::byte> out;
    const AddressRange range{.address = address, .length = length};
    append_head({.kind = Kind::kWrite, .payload_bytes = length, .id = id}, {&range, 1}, checked, out);
    return out;
}

inline std::vector<std::byte> read_head(uint64_t id, uint64_t address, uint32_t length) {
    std::vector<std::byte> out;
    const AddressRange range{.address = address, .length = length};
    append_head({.kind = Kind::kRead, .payload_bytes = length, .id = id}, {&range, 1}, false, out);
    return out;
}

/// A target by hand: a listener, and a descriptor that leads to it.
class FakeTarget {
public:
    explicit FakeTarget(uint16_t version = kVersion) : version_(version), listener_(*net::listen_in_range("", 20000, 30000, 64)) {}

    SegmentDescriptor descriptor() const {
        SegmentDescriptor made;
        made.name = "fake";
        made.host = "127.0.0.1";
        made.incarnation = incarnation;
        made.endpoints["tcp"] = format_text("port={}", listener_.port);
        if (version_ != kNumberedSessions) made.endpoints["tcp"] += format_text(";version={}", version_);
        return made;
    }
    Raw accept() {
        MC_CHECK(net::wait_ready(listener_.socket.fd(), POLLIN, soon()));
        net::Socket socket(::accept4(listener_.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        MC_CHECK(static_cast<bool>(socket));
        return Raw(std::move(socket));
    }
    /// Accepts and greets.
    Raw welcome(Hello* seen = nullptr, uint32_t features = 0) {
        Raw raw = accept();
        const auto hello = raw.receive_hello();
        MC_CHECK(hello.has_value());
        if (seen != nullptr) *seen = *hello;
        MC_CHECK(raw.send(encode(HelloReply{.version = hello->version, .features = features})));
        return raw;
    }
    /// How many wait to be accepted; takes them all.
    int waiting() {
        int count = 0;
        while (net::Socket(::accept4(listener_.socket.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC))) ++count;
        return count;
    }
    void stop_listening() { listener_.socket.reset(); }

    const Incarnation incarnation = Incarnation::random();

private:
    const uint16_t version_;
    net::Listener listener_;
};

}  // namespace mooncake::tcp::testing
