// SPDX-License-Identifier: Apache-2.0
//
// What this machine can do at best, without any of our code: the numbers that bench/run.py compares us with.
// Stands alone:  c++ -O3 -std=c++20 -pthread raw_limits.cpp -o raw_limits
//
// Reads commands from stdin, one per line, and answers each with one line "GB/s p50_us p99_us":
//     memcpy   SIZE COUNT SECONDS     one thread copies COUNT scattered blocks from one buffer to another
//     readv    SIZE COUNT SECONDS     the same from another process, process_vm_readv with up to COUNT entries per call
//     writev   SIZE COUNT SECONDS     the same to another process
//     socket   STREAMS CHUNK SECONDS  loopback TCP to another process, one thread per stream, CHUNK bytes per call
//     reno     STREAMS CHUNK SECONDS  the same with the reno congestion control, which does not pace: the fastest over loopback
//     pingpong SIZE 1 SECONDS         SIZE bytes to another process and 16 bytes back, both sides spinning
//     told     SIZE COUNT SECONDS     COUNT times SIZE bytes to another process and back, both sides sleeping; before it answers it sends as much to
//                                     a third one, which looks only every 2 ms
// Blocks are scattered as those of a paged KV cache: in random order, with gaps of their own size.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSpan = size_t{64} << 20;  // what a socket stream walks through
constexpr size_t kAckBytes = 16;

[[noreturn]] void die(const char* what) {
    std::perror(what);
    std::exit(1);
}

/// Touched pages, private to the process that writes them.
class Pages {
public:
    explicit Pages(size_t bytes, int fill) : bytes_(bytes) {
        void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) die("mmap");
        data_ = static_cast<char*>(memory);
        std::memset(data_, fill, bytes);
    }
    ~Pages() { ::munmap(data_, bytes_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    char* data() const { return data_; }

private:
    size_t bytes_;
    char* data_ = nullptr;
};

struct Figures {
    double gigabytes_per_second = 0;
    double p50_us = 0;
    double p99_us = 0;
};

/// Repeats a call for some time. `bytes` are those of one call.
Figures measure(double seconds, uint64_t bytes, const std::function<void()>& call) {
    call();  // the first one pays for page tables and caches
    std::vector<double> micros;
    const auto start = Clock::now();
    const auto end = start + std::chrono::duration<double>(seconds);
    for (auto before = start; before < end;) {
        call();
        const auto after = Clock::now();
        micros.push_back(std::chrono::duration<double, std::micro>(after - before).count());
        before = after;
    }
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    std::sort(micros.begin(), micros.end());
    return {static_cast<double>(bytes) * static_cast<double>(micros.size()) / elapsed / 1e9, micros[micros.size() / 2],
            micros[micros.size() * 99 / 100]};
}

std::vector<size_t> scattered(size_t size, size_t count, unsigned seed) {
    std::vector<size_t> offsets(count);
    for (size_t i = 0; i < count; ++i) offsets[i] = count == 1 ? 0 : 2 * i * size;
    std::shuffle(offsets.begin(), offsets.end(), std::minstd_rand(seed));
    return offsets;
}

size_t room(size_t size, size_t count) { return count == 1 ? size : 2 * count * size; }

Figures run_memcpy(size_t size, size_t count, double seconds) {
    const Pages from(room(size, count), 1), to(room(size, count), 2);
    const auto sources = scattered(size, count, 1), targets = scattered(size, count, 2);
    return measure(seconds, size * count, [&] {
        for (size_t i = 0; i < count; ++i) std::memcpy(to.data() + targets[i], from.data() + sources[i], size);
    });
}

std::vector<iovec> entries(char* base, const std::vector<size_t>& offsets, size_t size) {
    std::vector<iovec> list;
    for (const size_t offset : offsets) list.push_back({base + offset, size});
    return list;
}

Figures run_vectored(size_t size, size_t count, double seconds, bool write) {
    // Mapped before the fork, so both processes know the address; each writes its own copy.
    const Pages remote(room(size, count), 1), local(room(size, count), 2);
    int ready[2];
    if (::pipe(ready) != 0) die("pipe");
    const Child child([&] {
        std::memset(remote.data(), 3, room(size, count));
        if (::write(ready[1], "r", 1) != 1) ::_exit(1);
        for (;;) ::pause();
    });
    char byte = 0;
    if (::read(ready[0], &byte, 1) != 1) die("the other process");
    const auto here = entries(local.data(), scattered(size, count, 1), size);
    const auto there = entries(remote.data(), scattered(size, count, 2), size);
    const auto call = write ? ::process_vm_writev : ::process_vm_readv;
    const Figures figures = measure(seconds, size * count, [&] {
        for (size_t at = 0; at < count; at += IOV_MAX) {
            const size_t now = std::min<size_t>(count - at, IOV_MAX);
            const auto expected = static_cast<ssize_t>(now * size);
            if (call(child.pid(), &here[at], now, &there[at], now, 0) != expected) die("process_vm_readv/writev");
        }
    });
    ::close(ready[0]);
    ::close(ready[1]);
    return figures;
}

/// A connected pair over loopback TCP.
std::pair<int, int> connected_pair(bool reno = false) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    // Accepted sockets inherit it.
    if (reno && ::setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) die("reno");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener, generic, length) != 0 || ::listen(listener, 1) != 0) die("listen");
    ::getsockname(listener, generic, &length);
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    if (reno && ::setsockopt(client, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) die("reno");
    if (::connect(client, generic, length) != 0) die("connect");
    const int server = ::accept(listener, nullptr, nullptr);
    if (server < 0) die("accept");
    ::close(listener);
    const int one = 1;
    for (const int end : {client, server}) ::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return {client, server};
}

void drain(int socket, size_t chunk) {
    const Pages pages(kSpan, 1);
    for (size_t at = 0;;) {
        const ssize_t got = ::recv(socket, pages.data() + at, std::min(chunk, kSpan - at), 0);
        if (got <= 0) return;
        at = (at + static_cast<size_t>(got)) % kSpan;
    }
}

void pump(int socket, size_t chunk, const std::atomic<bool>& stop, std::atomic<uint64_t>& total) {
    const Pages pages(kSpan, 1);
    for (size_t at = 0; !stop.load(std::memory_order_relaxed);) {
        const ssize_t sent = ::send(socket, pages.data() + at, std::min(chunk, kSpan - at), MSG_NOSIGNAL);
        if (sent <= 0) die("send");
        total.fetch_add(static_cast<uint64_t>(sent), std::memory_order_relaxed);
        at = (at + static_cast<size_t>(sent)) % kSpan;
    }
}

Figures run_socket(size_t streams, size_t chunk, double seconds, bool reno) {
    std::vector<std::pair<int, int>> pairs;
    for (size_t i = 0; i < streams; ++i) pairs.push_back(connected_pair(reno));
    const Child child([&] {
        for (const auto& pair : pairs) ::close(pair.first);
        std::vector<std::jthread> threads;
        for (const auto& pair : pairs) threads.emplace_back([server = pair.second, chunk] { drain(server, chunk); });
    });
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> total{0};
    std::vector<std::jthread> threads;
    for (const auto& pair : pairs) {
        ::close(pair.second);
        threads.emplace_back([client = pair.first, chunk, &stop, &total] { pump(client, chunk, stop, total); });
    }
    // Until all pages are touched and the windows are open.
    while (total.load() < streams * kSpan) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const uint64_t before = total.load();
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const uint64_t moved = total.load() - before;
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    stop.store(true);
    threads.clear();
    for (const auto& pair : pairs) ::close(pair.first);
    return {static_cast<double>(moved) / elapsed / 1e9, 0, 0};
}

/// Returns false when the other side is gone.
bool receive_spinning(int socket, char* data, size_t size) {
    for (size_t at = 0; at < size;) {
        const ssize_t got = ::recv(socket, data + at, size - at, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
        if (got > 0) at += static_cast<size_t>(got);
    }
    return true;
}

Figures run_pingpong(size_t size, double seconds) {
    const auto [client, server] = connected_pair();
    const Child child([&, server = server, client = client] {
        ::close(client);
        std::vector<char> data(size);
        while (receive_spinning(server, data.data(), size) && ::send(server, data.data(), kAckBytes, MSG_NOSIGNAL) > 0) {}
    });
    ::close(server);
    std::vector<char> data(size, 1), ack(kAckBytes);
    const Figures figures = measure(seconds, size, [&, client = client] {
        if (::send(client, data.data(), size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) die("send");
        if (!receive_spinning(client, ack.data(), kAckBytes)) die("recv");
    });
    ::close(client);
    return figures;
}

bool receive_sleeping(int socket, char* data, size_t size) {
    for (size_t at = 0; at < size;) {
        const ssize_t got = ::recv(socket, data + at, size - at, 0);
        if (got <= 0) return false;
        at += static_cast<size_t>(got);
    }
    return true;
}

Figures run_told(size_t size, size_t count, double seconds) {
    const auto [client, server] = connected_pair();
    const auto [teller, listener] = connected_pair();
    const Child third([&, listener = listener] {
        std::vector<char> data(1 << 20);
        while (::recv(listener, data.data(), data.size(), 0) > 0) ::usleep(2000);
    });
    const Child other([&, server = server, teller = teller] {
        std::vector<char> data(size);
        while (receive_sleeping(server, data.data(), size) && ::send(teller, data.data(), size, MSG_NOSIGNAL) > 0 &&
               ::send(server, data.data(), size, MSG_NOSIGNAL) > 0) {}
    });
    for (const int end : {server, teller, listener}) ::close(end);
    std::vector<char> data(size, 1);
    const Figures figures = measure(seconds, size * count, [&, client = client] {
        for (size_t i = 0; i < count; ++i) {
            if (::send(client, data.data(), size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) die("send");
            if (!receive_sleeping(client, data.data(), size)) die("recv");
        }
    });
    ::close(client);
    return figures;
}

bool answer(const std::string& name, size_t size, size_t count, double seconds) {
    Figures figures;
    if (name == "memcpy") figures = run_memcpy(size, count, seconds);
    else if (name == "readv") figures = run_vectored(size, count, seconds, false);
    else if (name == "writev") figures = run_vectored(size, count, seconds, true);
    else if (name == "socket" || name == "reno") figures = run_socket(size, count, seconds, name == "reno");
    else if (name == "pingpong") figures = run_pingpong(size, seconds);
    else if (name == "told") figures = run_told(size, count, seconds);
    else return false;
    std::printf("%.4f %.3f %.3f\n", figures.gigabytes_per_second, figures.p50_us, figures.p99_us);
    std::fflush(stdout);
    return true;
}

}  // namespace

int main() {
    char name[16];
    size_t size = 0, count = 0;
    double seconds = 0;
    while (std::scanf("%15s %zu %zu %lf", name, &size, &count, &seconds) == 4) {
        if (size == 0 || count == 0 || !answer(name, size, count, seconds)) {
            std::fprintf(stderr, "no such measurement: %s %zu %zu %f\n", name, size, count, seconds);
            return 2;
        }
    }
    return 0;
}
