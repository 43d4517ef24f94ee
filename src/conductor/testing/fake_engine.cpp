// SPDX-License-Identifier: Apache-2.0
#include "conductor/testing/fake_engine.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/thread.h"

namespace mooncake::conductor {

namespace {

constexpr Duration kPatience = 30s;

/// More bytes; false: the end, or nothing came in time.
bool receive_some(int fd, std::string& to, const net::Patience& patience) {
    char bytes[65536];
    while (true) {
        const auto got = ::recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (got > 0) {
            to.append(bytes, static_cast<size_t>(got));
            return true;
        }
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
        if (!net::wait_ready(fd, POLLIN, patience)) return false;
    }
}

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

void parse_head(const std::string& head, SeenRequest& request) {
    request.method = head.substr(0, head.find(' '));
    const size_t target = head.find(' ') + 1;
    request.target = head.substr(target, head.find(' ', target) - target);
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
        const size_t end = std::min(head.find("\r\n", at), head.size()), colon = head.find(':', at);
        if (colon < end) request.headers[lower(head.substr(at, colon - at))] = head.substr(colon + 2, end - colon - 2);
        at = end + 2;
    }
}

}  // namespace

bool FakeConnection::receive(SeenRequest& request) {
    size_t end;
    while ((end = rest_.find("\r\n\r\n")) == std::string::npos) {
        if (!receive_some(socket_.fd(), rest_, {Deadline::never(), &interrupt_})) return false;
    }
    parse_head(rest_.substr(0, end), request);
    rest_.erase(0, end + 4);
    const size_t length = request.headers.contains("content-length") ? std::stoul(request.headers["content-length"]) : 0;
    while (rest_.size() < length) {
        if (!receive_some(socket_.fd(), rest_, {Deadline::never(), &interrupt_})) return false;
    }
    request.body = rest_.substr(0, length);
    rest_.erase(0, length);
    return true;
}

void FakeConnection::send(const std::string& text) {
    if (socket_ && !net::send_all(socket_.fd(), text.data(), text.size(), {Deadline::after(kPatience), &interrupt_})) socket_.reset();
}

void FakeConnection::answer(int status, const std::string& body, const std::string& type, const std::string& more) {
    send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: " + type + "\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

void FakeConnection::begin_stream() {
    send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nX-Engine: fake\r\nTransfer-Encoding: chunked\r\n\r\n");
}

void FakeConnection::event(const std::string& data) {
    const std::string text = "data: " + data + "\n\n";
    char size[32];
    std::snprintf(size, sizeof(size), "%zx\r\n", text.size());
    send(size + text + "\r\n");
}

void FakeConnection::end_stream() { send("0\r\n\r\n"); }

bool FakeConnection::wait_for_close() {
    std::string ignored;
    while (receive_some(socket_.fd(), ignored, {Deadline::after(kPatience), &interrupt_})) {}
    char byte;
    const auto got = ::recv(socket_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

FakeEngine::FakeEngine(Script script) : interrupt_(net::Interrupt::create().value()), script_(std::move(script)) {
    net::Listener listener = net::listen_on("127.0.0.1", 0, 128).value();
    port_ = listener.port;
    listener_ = std::move(listener.socket);
    accepting_ = start_thread("fake-accept", [this] { accept_all(); });
}

FakeEngine::~FakeEngine() {
    interrupt_->set();
    accepting_.join();
    connections_.clear();
}

std::vector<SeenRequest> FakeEngine::seen() const {
    Lock lock(mutex_);
    return seen_;
}

bool FakeEngine::wait_for_requests(size_t count) const {
    const Time end = Clock::now() + kPatience;
    Lock lock(mutex_);
    while (seen_.size() < count) {
        if (changed_.wait_until(mutex_, end) == std::cv_status::timeout) return seen_.size() >= count;
    }
    return true;
}

void FakeEngine::set_script(Script script) {
    Lock lock(mutex_);
    script_ = std::move(script);
}

void FakeEngine::accept_all() {
    while (net::wait_ready(listener_.fd(), POLLIN, {Deadline::never(), interrupt_.get()})) {
        const int fd = ::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) continue;
        connections_.push_back(
            start_thread("fake-serve", [this, socket = std::make_shared<net::Socket>(fd)] { serve(std::move(*socket)); }));
    }
}

void FakeEngine::serve(net::Socket socket) {
    FakeConnection connection(std::move(socket), *interrupt_);
    SeenRequest request;
    while (connection.open() && connection.receive(request)) {
        if (request.target == "/health") {
            connection.answer(healthy_ ? 200 : 503, "{}");
            continue;
        }
        Script script;
        {
            Lock lock(mutex_);
            seen_.push_back(request);
            script = script_;
            changed_.notify_all();
        }
        script(request, connection);
        request = {};
    }
}

FakeClient::FakeClient(uint16_t port) : socket_(net::connect_to("127.0.0.1", port, Deadline::after(kPatience)).value()) {}

void FakeClient::post(const std::string& target, const std::string& body, const std::string& headers) {
    const std::string text = "POST " + target + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + headers +
                             "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    MC_CHECK(net::send_all(socket_.fd(), text.data(), text.size(), Deadline::after(kPatience)));
}

void FakeClient::get(const std::string& target) {
    const std::string text = "GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n";
    MC_CHECK(net::send_all(socket_.fd(), text.data(), text.size(), Deadline::after(kPatience)));
}

bool FakeClient::more() { return receive_some(socket_.fd(), got_, Deadline::after(kPatience)); }

bool FakeClient::read_until(const std::string& text) {
    while (got_.find(text) == std::string::npos) {
        if (!more()) return false;
    }
    return true;
}

FakeClient::Answer FakeClient::read() {
    Answer answer;
    if (!read_until("\r\n\r\n")) return answer;
    const size_t end = got_.find("\r\n\r\n");
    answer.headers = lower(got_.substr(0, end + 2));
    got_.erase(0, end + 4);
    answer.status = std::stoi(answer.headers.substr(9, 3));
    if (answer.headers.find("chunked") == std::string::npos) {
        const size_t at = answer.headers.find("content-length: ");
        const size_t length = at == std::string::npos ? 0 : std::stoul(answer.headers.substr(at + 16));
        while (got_.size() < length && more()) {}
        answer.whole = got_.size() >= length;
        answer.body = got_.substr(0, length);
        got_.erase(0, length);
        return answer;
    }
    while (read_until("\r\n")) {
        const size_t line = got_.find("\r\n"), size = std::stoul(got_.substr(0, line), nullptr, 16);
        while (got_.size() < line + 2 + size + 2) {
            if (!more()) return answer;
        }
        answer.body += got_.substr(line + 2, size);
        got_.erase(0, line + 2 + size + 2);
        if (size == 0) {
            answer.whole = true;
            return answer;
        }
    }
    return answer;
}

}  // namespace mooncake::conductor
