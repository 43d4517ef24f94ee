// SPDX-License-Identifier: Apache-2.0
// The side that is asked.
#include "tests/emulators/ascend/engine_core.h"
#include "tests/emulators/ascend/sockets.h"
#include "tests/emulators/ascend/wire.h"

namespace emu {

uint32_t EngineCore::listen(const std::string& host, int port) {
    if (const auto verdict = enter("bind", std::to_string(port)); verdict.answer) return static_cast<uint32_t>(*verdict.answer);
    listener_ = open_socket(host, port, true, {});
    if (listener_ < 0) return kFailed;
    acceptor_ = std::thread([this] { accept_all(); });
    return kSuccess;
}

void EngineCore::accept_all() {
    const Patience patience{Clock::time_point::max(), [this] { return stop_.load(); }};
    while (wait_for(listener_, POLLIN, patience)) {
        const int made = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (made >= 0) greet(made);
    }
}

void EngineCore::greet(int socket) {
    const Patience patience{Clock::now() + std::chrono::seconds(2), [this] { return stop_.load(); }};
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Hello hello{};
    std::string client;
    bool good = receive_all(socket, &hello, sizeof hello, patience) && hello.magic == kMagic && hello.name_bytes < 256;
    if (good) {
        client.resize(hello.name_bytes);
        good = receive_all(socket, &client[0], client.size(), patience);
    }
    if (!good) {
        ::close(socket);
        return;
    }
    Welcome welcome{kSuccess, 0};
    // All emulated devices are of one machine.
    if (hello.physical == physical_of(context_->device) && !(client_server_ && hello.client_server != 0)) welcome.status = kFailed;
    end_sessions(client);  // one of that name takes the place of the last
    const std::vector<Range> ours = ranges();
    welcome.ranges = static_cast<uint32_t>(ours.size());
    good = send_all(socket, &welcome, sizeof welcome, patience) && welcome.status == kSuccess &&
           send_all(socket, ours.data(), ours.size() * sizeof(Range), patience);
    if (!good) {
        ::close(socket);
        return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    sessions_.emplace_back();
    Session& session = sessions_.back();
    session.client = client;
    session.socket = socket;
    session.ours = ours;
    session.thread = std::thread([this, &session] { serve(session); });
}

void EngineCore::serve(Session& session) {
    while (serve_one(session)) {}
    session.over = true;
    ::shutdown(session.socket, SHUT_RDWR);
}

bool EngineCore::serve_one(Session& session) {
    const Patience patience{Clock::time_point::max(), [this] { return stop_.load(); }};
    Ask ask{};
    if (!receive_all(session.socket, &ask, sizeof ask, patience)) return false;
    std::vector<Part> parts(ask.parts);
    if (!receive_all(session.socket, parts.data(), parts.size() * sizeof(Part), patience)) return false;
    if (enter("serve", session.client, [this] { return stop_.load(); }).drop_link) return false;
    uint32_t status = kSuccess;
    for (const Part& part : parts)
        if (!inside(session.ours, part.remote, part.length)) status = kParamInvalid;
    long allowed = INT64_MAX;
    if (ask.write != 0)
        for (const Part& part : parts)
            if (status != kSuccess || !receive_memory(session.socket, part.remote, part.length, patience, allowed)) return false;
    if (!send_all(session.socket, &status, sizeof status, patience)) return false;
    if (ask.write == 0 && status == kSuccess)
        for (const Part& part : parts)
            if (!send_memory(session.socket, part.remote, part.length, patience, allowed)) return false;
    return true;
}

void EngineCore::end_sessions(const std::string& client) {
    std::list<Session> ended;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (auto at = sessions_.begin(); at != sessions_.end();) {
            const auto next = std::next(at);
            if (client.empty() || at->client == client || at->over) ended.splice(ended.end(), sessions_, at);
            at = next;
        }
    }
    for (Session& session : ended) ::shutdown(session.socket, SHUT_RDWR);
    for (Session& session : ended) {
        session.thread.join();
        ::close(session.socket);
    }
}

}  // namespace emu
