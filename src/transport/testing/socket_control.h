// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "base/unique_fd.h"
#include "transport/control.h"

namespace mooncake::testing {

/// A ControlPlane between two processes that share a pair of sockets (AF_UNIX, SOCK_SEQPACKET), whatever becomes of their networks. One
/// side calls, the other serves. Thread-safe.
class SocketControl final : public ControlPlane {
public:
    explicit SocketControl(int socket) : socket_(socket) {}
    ~SocketControl() override {
        // Ends the receive of the serving thread.
        ::shutdown(socket_.get(), SHUT_RDWR);
    }
    SocketControl(const SocketControl&) = delete;
    SocketControl& operator=(const SocketControl&) = delete;

    /// For the side that serves.
    void start() {
        thread_ = start_thread("control", [this] { answer_all(); });
    }

    void serve(std::string transport, Handler handler) override {
        Lock lock(mutex_);
        handlers_[std::move(transport)] = std::move(handler);
    }

    Result<Bytes> call(const SegmentDescriptor&, const std::string& transport, Bytes request, Deadline deadline) override {
        Lock lock(mutex_);
        Bytes message(transport.size() + 1);
        std::copy(transport.begin(), transport.end(), reinterpret_cast<char*>(message.data()));
        message.insert(message.end(), request.begin(), request.end());
        // What an earlier call no longer waited for.
        Bytes answer(kBytesMax);
        while (::recv(socket_.get(), answer.data(), answer.size(), MSG_DONTWAIT) > 0) {}
        if (::send(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL) < 0) return fail(Code::kUnavailable, "the peer is gone");
        pollfd waited{.fd = socket_.get(), .events = POLLIN, .revents = 0};
        if (::poll(&waited, 1, deadline.left_ms()) <= 0) return fail(Code::kTimedOut, "the peer does not answer");
        const ssize_t count = ::recv(socket_.get(), answer.data(), answer.size(), 0);
        if (count <= 0) return fail(Code::kUnavailable, "the peer is gone");
        answer.resize(static_cast<size_t>(count));
        if (answer[0] != std::byte{0})
            return fail(static_cast<Code>(answer[0]), "{}", std::string(reinterpret_cast<char*>(answer.data()) + 1, answer.size() - 1));
        answer.erase(answer.begin());
        return answer;
    }

private:
    static constexpr size_t kBytesMax = 128 << 10;

    void answer_all() {
        Bytes message(kBytesMax);
        for (;;) {
            const ssize_t count = ::recv(socket_.get(), message.data(), message.size(), 0);
            if (count <= 0) return;
            const std::string transport(reinterpret_cast<const char*>(message.data()));
            Handler handler;
            {
                Lock lock(mutex_);
                handler = handlers_[transport];
            }
            const auto body = std::span<const std::byte>(message).first(static_cast<size_t>(count)).subspan(transport.size() + 1);
            auto result = handler ? handler(body) : Result<Bytes>(fail(Code::kNotSupported, "no transport {}", transport));
            Bytes answer(1);
            if (result) {
                answer.insert(answer.end(), result->begin(), result->end());
            } else {
                answer[0] = static_cast<std::byte>(result.error().code());
                const auto text = std::as_bytes(std::span(result.error().message()));
                answer.insert(answer.end(), text.begin(), text.end());
            }
            (void)::send(socket_.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
        }
    }

    const UniqueFd socket_;
    Mutex mutex_;
    std::map<std::string, Handler> handlers_ MC_GUARDED_BY(mutex_);
    std::jthread thread_;
};

}  // namespace mooncake::testing
