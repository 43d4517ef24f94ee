// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/time.h"
#include "base/unique_fd.h"
#include "net/address.h"

namespace mooncake::net {

/// A socket: closed on destruction, and in a forked child. Not thread-safe.
class Socket {
public:
    Socket() noexcept = default;
    explicit Socket(int fd) noexcept : fd_(fd), born_(fork_generation()) { close_in_child(fd); }
    Socket(Socket&&) noexcept = default;
    Socket& operator=(Socket&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::move(other.fd_);
            born_ = other.born_;
        }
        return *this;
    }
    ~Socket() { reset(); }

    int fd() const noexcept { return fd_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    void reset() noexcept {
        // In a child the descriptor is closed already, and its number may be somebody else's by now.
        if (born_ != fork_generation()) fd_.release();
        if (fd_) keep_in_child(fd_.get());
        fd_.reset();
    }
    /// Closes with RST: neither side's kernel delivers what was still under way.
    void reset_hard() noexcept;
    /// Closes with RST and stands for the other one from then on, under its own number: who waits for events of that number need not be
    /// told. Both must be open. Fails where that number is not allowed any more (a limit was lowered); this one is as it was then.
    Result<> replace_hard(Socket other) noexcept;

private:
    void forget_unsent() noexcept;

    UniqueFd fd_;
    uint32_t born_ = 0;
};

/// Ends waits that are under way in other threads, and all later ones. Thread-safe.
class Interrupt {
public:
    /// kUnavailable: there is no descriptor left.
    static Result<std::unique_ptr<Interrupt>> create();
    void set() noexcept;
    bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
    /// Readable once it is set.
    int fd() const noexcept { return event_.fd(); }
    /// Gives the descriptor back. When it is set and nobody waits any more.
    void close() noexcept { event_.reset(); }

private:
    explicit Interrupt(Socket event) noexcept : event_(std::move(event)) {}

    Socket event_;
    std::atomic<bool> set_{false};
};

/// How long to wait: until a deadline or an interrupt, if there is one.
struct Patience {
    Patience(Deadline until) noexcept : deadline(until) {}  // NOLINT(google-explicit-constructor): mostly that is all
    Patience(Deadline until, const Interrupt* end) noexcept : deadline(until), interrupt(end) {}

    bool over() const noexcept { return deadline.passed() || (interrupt != nullptr && interrupt->is_set()); }

    Deadline deadline;
    const Interrupt* interrupt = nullptr;
};

struct Listener {
    Socket socket;
    uint16_t port = 0;
};

/// Listens on the wildcard address of both families (IPv4 only where the machine has no IPv6). Non-blocking.
Result<Listener> listen_on(uint16_t port, int backlog);
/// Listens on one address only. kUnavailable: the host has no such address.
Result<Listener> listen_on(const std::string& host, uint16_t port, int backlog);
/// As listen_on(), with a free port from [port_min, port_max]: tries up to 500, from a random one on, unless it is not the port
/// that is wrong. No host: the wildcard address.
Result<Listener> listen_in_range(const std::string& host, uint16_t port_min, uint16_t port_max, int backlog);

/// Connects to the first address that answers. The result is non-blocking, TCP_NODELAY, with keep-alive.
Result<Socket> connect_to(const std::string& host, uint16_t port, const Patience& patience);
/// TCP_NODELAY and keep-alive: a peer whose machine vanished is noticed within about 15 s also when nothing is sent. Of a connected one that
/// does not leave this machine also the congestion control.
void tune(int fd) noexcept;
/// The connection fails when bytes it sent stay unconfirmed for so long; keep-alive does not run meanwhile, and repeats come ever more slowly. It is
/// also the time after which keep-alive gives up, instead of the one of tune().
void limit_unconfirmed(int fd, Duration time) noexcept;

/// Sends or receives exactly these bytes on a non-blocking socket. For handshakes, not for data.
Result<> send_all(int fd, const void* data, size_t size, const Patience& patience);
Result<> receive_all(int fd, void* data, size_t size, const Patience& patience);
/// Waits for poll() events. False when there are none and the patience is over.
bool wait_ready(int fd, short events, const Patience& patience) noexcept;

}  // namespace mooncake::net
