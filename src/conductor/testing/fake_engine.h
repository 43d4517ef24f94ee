// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/socket.h"

namespace mooncake::conductor {

struct SeenRequest {
    std::string method, target, body;
    std::map<std::string, std::string> headers;  // names in lower case
};

/// A connection to a fake engine, as its script sees it. Sends nothing more once the other side is gone.
class FakeConnection {
public:
    FakeConnection(net::Socket socket, const net::Interrupt& interrupt) : socket_(std::move(socket)), interrupt_(interrupt) {}
    bool receive(SeenRequest& request);
    void send(const std::string& text);
    void answer(int status, const std::string& body, const std::string& type = "application/json", const std::string& more = "");
    void begin_stream();
    void event(const std::string& data);
    void end_stream();
    void drop() { socket_.reset_hard(); }
    void close() { socket_.reset(); }
    /// Waits for the other side to close. False: it did not.
    bool wait_for_close();
    bool open() const { return static_cast<bool>(socket_); }

private:
    net::Socket socket_;
    const net::Interrupt& interrupt_;
    std::string rest_;
};

/// A server that does what a test's script says with each request. GET /health is answered by itself. Threads of its own; joined by its end.
class FakeEngine {
public:
    using Script = std::function<void(const SeenRequest&, FakeConnection&)>;
    explicit FakeEngine(Script script);
    ~FakeEngine();
    uint16_t port() const noexcept { return port_; }
    std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
    std::vector<SeenRequest> seen() const MC_EXCLUDES(mutex_);
    /// Waits until so many requests came.
    bool wait_for_requests(size_t count) const MC_EXCLUDES(mutex_);
    void set_script(Script script) MC_EXCLUDES(mutex_);
    void set_healthy(bool healthy) { healthy_ = healthy; }

private:
    void accept_all();
    void serve(net::Socket socket);

    std::unique_ptr<net::Interrupt> interrupt_;
    net::Socket listener_;
    uint16_t port_ = 0;
    std::atomic<bool> healthy_{true};
    mutable Mutex mutex_;
    mutable std::condition_variable_any changed_;
    Script script_ MC_GUARDED_BY(mutex_);
    std::vector<SeenRequest> seen_ MC_GUARDED_BY(mutex_);
    std::vector<std::jthread> connections_;  // only the accepting thread adds
    std::jthread accepting_;
};

/// A client's side of one connection. Waits at most half a minute for anything.
class FakeClient {
public:
    explicit FakeClient(uint16_t port);
    void post(const std::string& target, const std::string& body, const std::string& headers = "");
    void get(const std::string& target);
    struct Answer {
        int status = 0;
        std::string headers, body;  // of a chunked one: put together
        bool whole = false;
    };
    Answer read();
    /// The header and as much of the body as has `text` in it; read() goes on from there.
    bool read_until(const std::string& text);
    void leave() { socket_.reset(); }

private:
    bool more();
    net::Socket socket_;
    std::string got_;
};

}  // namespace mooncake::conductor
