// SPDX-License-Identifier: Apache-2.0
// What the proxy adds: proxy_bench PROGRAM [INSTANCES CONNECTIONS SECONDS]. PROGRAM is `mooncake`. Half of the instances prefill, half decode; they answer at once.
// The same client asks a prefill and then a decode instance itself, which is the least that anybody has to do, and then the proxy, in turns.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/time.h"

namespace mooncake {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
template <typename T>
using Task = asio::awaitable<T>;
constexpr auto kAwait = asio::use_awaitable;

constexpr const char* kSaid = R"({"kv_transfer_params": {"remote_host": "h", "remote_port": 1}})";
constexpr const char* kMade = R"({"choices": [{"text": "all"}], "usage": {"prompt_tokens": 5}})";

std::string post_of(const std::string& body) {
    return "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
}

/// One whole message; leaves what follows it in `rest`.
Task<std::string> read_message(Tcp::socket& socket, std::string& rest) {
    const size_t end = co_await asio::async_read_until(socket, asio::dynamic_buffer(rest), "\r\n\r\n", kAwait);
    size_t length = 0;
    for (const char* name : {"Content-Length: ", "content-length: "}) {
        const size_t at = rest.find(name);
        if (at < end) length = std::strtoul(rest.c_str() + at + 16, nullptr, 10);
    }
    if (rest.size() < end + length)
        co_await asio::async_read(socket, asio::dynamic_buffer(rest), asio::transfer_exactly(end + length - rest.size()), kAwait);
    std::string message = rest.substr(0, end + length);
    rest.erase(0, end + length);
    co_return message;
}

Task<void> serve(Tcp::socket socket) {
    std::string rest;
    socket.set_option(Tcp::no_delay(true));
    try {
        while (true) {
            const std::string message = co_await read_message(socket, rest);
            const std::string body = message.find("\"do_remote_decode\":true") != std::string::npos ? kSaid : kMade;
            co_await asio::async_write(socket,
                                       asio::buffer("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
                                                    std::to_string(body.size()) + "\r\n\r\n" + body),
                                       kAwait);
        }
    } catch (const std::exception&) {}  // it has left
}

Task<void> accept_all(Tcp::acceptor& acceptor) {
    while (true) asio::co_spawn(acceptor.get_executor(), serve(co_await acceptor.async_accept(kAwait)), asio::detached);
}

/// A child process that is all instances; it ends with us.
std::vector<uint16_t> start_instances(int count) {
    int pipe_ends[2];
    if (::pipe(pipe_ends) != 0) std::abort();
    if (::fork() == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        asio::io_context context;
        std::vector<Tcp::acceptor> acceptors;
        for (int i = 0; i < count; ++i) {
            acceptors.emplace_back(context, Tcp::endpoint(asio::ip::address_v4::loopback(), 0));
            const uint16_t port = acceptors.back().local_endpoint().port();
            if (::write(pipe_ends[1], &port, sizeof(port)) != sizeof(port)) std::abort();
        }
        for (auto& acceptor : acceptors) asio::co_spawn(context, accept_all(acceptor), asio::detached);
        context.run();
    }
    std::vector<uint16_t> ports(static_cast<size_t>(count));
    for (uint16_t& port : ports)
        if (::read(pipe_ends[0], &port, sizeof(port)) != sizeof(port)) std::abort();
    return ports;
}

std::string addresses(const std::vector<uint16_t>& ports, size_t begin, size_t end) {
    std::string text;
    for (size_t i = begin; i < end; ++i) text += (text.empty() ? "127.0.0.1:" : ",127.0.0.1:") + std::to_string(ports[i]);
    return text;
}

uint16_t start_proxy(const char* program, const std::vector<uint16_t>& ports) {
    int pipe_ends[2];
    if (::pipe(pipe_ends) != 0) std::abort();
    if (::fork() == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::dup2(pipe_ends[1], STDOUT_FILENO);
        const std::string prefill = "--prefill=" + addresses(ports, 0, ports.size() / 2);
        const std::string decode = "--decode=" + addresses(ports, ports.size() / 2, ports.size());
        ::execl(program, program, "proxy", "--host=127.0.0.1", "--port=0", prefill.c_str(), decode.c_str(), nullptr);
        std::abort();
    }
    FILE* said = ::fdopen(pipe_ends[0], "r");
    unsigned port = 0;
    if (said == nullptr || std::fscanf(said, "Proxy started on port %u", &port) != 1) std::abort();
    return static_cast<uint16_t>(port);
}

struct Ways {
    std::vector<uint16_t> instances;
    uint16_t proxy = 0;
};

/// Asks again and again until the end. Directly: a prefill, then a decode instance.
Task<void> client(asio::io_context& context, const Ways& ways, bool direct, size_t number, Time end, std::vector<double>& times) {
    const std::string prompt(2000, static_cast<char>('a' + number % 26));
    const std::string plain = post_of(R"({"model":"m","max_tokens":9,"prompt":")" + prompt + std::to_string(number) + "\"}");
    const std::string prefill = post_of(R"({"model":"m","kv_transfer_params":{"do_remote_decode":true},"prompt":")" + prompt + "\"}");
    const auto connect = [&](uint16_t port) -> Task<Tcp::socket> {
        Tcp::socket socket(context);
        co_await socket.async_connect({asio::ip::address_v4::loopback(), port}, kAwait);
        socket.set_option(Tcp::no_delay(true));
        co_return socket;
    };
    const size_t half = ways.instances.size() / 2;
    Tcp::socket first = co_await connect(direct ? ways.instances[number % half] : ways.proxy);
    Tcp::socket second = co_await connect(ways.instances[half + number % half]);
    std::string rest, other_rest;
    while (Clock::now() < end) {
        const Time began = Clock::now();
        co_await asio::async_write(first, asio::buffer(direct ? prefill : plain), kAwait);
        std::string answer = co_await read_message(first, rest);
        if (direct) {
            co_await asio::async_write(second, asio::buffer(plain), kAwait);
            answer = co_await read_message(second, other_rest);
        }
        if (answer.find("\"all\"") == std::string::npos) {
            std::fprintf(stderr, "unexpected: %s\n", answer.c_str());
            std::abort();
        }
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - began).count());
    }
}

/// Microseconds, in order.
std::vector<double> measure(const Ways& ways, bool direct, size_t connections, Duration time) {
    std::vector<double> times;
    asio::io_context context;
    const Time end = Clock::now() + time;
    for (size_t i = 0; i < connections; ++i)
        asio::co_spawn(context, client(context, ways, direct, i, end, times), [](const std::exception_ptr& problem) {
            if (problem) std::rethrow_exception(problem);
        });
    context.run();
    std::sort(times.begin(), times.end());
    return times;
}

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
    using namespace mooncake;
    if (argc < 2) return std::fprintf(stderr, "proxy_bench PROGRAM [INSTANCES CONNECTIONS SECONDS]\n"), 1;
    const auto argument = [&](int at, long otherwise) { return argc > at ? std::atol(argv[at]) : otherwise; };
    const long instances = argument(2, 100), connections = argument(3, 32), seconds = argument(4, 2);
    Ways ways{.instances = start_instances(static_cast<int>(instances))};
    ways.proxy = start_proxy(argv[1], ways.instances);
    const Duration time = std::chrono::seconds(seconds);
    measure(ways, false, static_cast<size_t>(connections), 1s);  // connections to all instances, measured speeds
    for (const size_t many : {size_t{1}, static_cast<size_t>(connections)}) {
        const auto direct = measure(ways, true, many, time), through = measure(ways, false, many, time);
        const double p50_direct = direct[direct.size() / 2], p50 = through[through.size() / 2];
        std::printf(
            "%ld instances, %zu connections: direct p50 %.0f us, %.0f requests/s; proxy p50 %.0f us, p99 %.0f us, %.0f requests/s; added "
            "p50 %.0f us\n",
            instances, many, p50_direct, static_cast<double>(direct.size()) / static_cast<double>(seconds), p50,
            through[through.size() * 99 / 100], static_cast<double>(through.size()) / static_cast<double>(seconds), p50 - p50_direct);
    }
    std::fflush(stdout);
    ::_exit(0);
}
