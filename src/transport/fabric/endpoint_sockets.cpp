// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/endpoint_sockets.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace mooncake::fabric {

namespace {

constexpr int kDescriptorsMax = 65536;

bool is_name_of_socket(std::span<const std::byte> name) noexcept {
    sa_family_t family = AF_UNSPEC;
    if (name.size() < sizeof(sockaddr)) return false;
    std::memcpy(&family, name.data() + offsetof(sockaddr, sa_family), sizeof family);
    return (family == AF_INET && name.size() == sizeof(sockaddr_in)) || (family == AF_INET6 && name.size() == sizeof(sockaddr_in6));
}

/// A socket address by what tells it from others alone, and without its port where only the host matters. Empty: none that we know.
std::vector<std::byte> plain(std::span<const std::byte> name, bool with_port = true) {
    if (!is_name_of_socket(name)) return {};
    std::vector<std::byte> bytes(name.size());
    if (name.size() == sizeof(sockaddr_in)) {
        sockaddr_in given{}, kept{};
        std::memcpy(&given, name.data(), sizeof given);
        kept.sin_family = AF_INET;
        kept.sin_addr = given.sin_addr;
        if (with_port) kept.sin_port = given.sin_port;
        std::memcpy(bytes.data(), &kept, sizeof kept);
    } else {
        sockaddr_in6 given{}, kept{};
        std::memcpy(&given, name.data(), sizeof given);
        kept.sin6_family = AF_INET6;
        kept.sin6_addr = given.sin6_addr;
        if (with_port) kept.sin6_port = given.sin6_port;
        std::memcpy(bytes.data(), &kept, sizeof kept);
    }
    return bytes;
}

/// Its own address, or the other end's. Empty: it has none, or is no socket.
std::vector<std::byte> address_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
    sockaddr_storage found{};
    socklen_t length = sizeof found;
    if (ask(fd, reinterpret_cast<sockaddr*>(&found), &length) != 0 || length > sizeof found) return {};
    return plain(std::as_bytes(std::span(&found, 1)).first(length));
}

bool has_port(std::span<const std::byte> address) noexcept {
    in_port_t port = 0;
    static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
    std::memcpy(&port, address.data() + offsetof(sockaddr_in, sin_port), sizeof port);
    return port != 0;
}

/// Whether the socket's own address is that one. Not for sockets without a port: what was broken is one of them.
bool is_at(int fd, std::span<const std::byte> name) {
    const auto wanted = plain(name);
    return !wanted.empty() && has_port(wanted) && address_of(fd, ::getsockname) == wanted;
}

bool listens(int fd) noexcept {
    int value = 0;
    socklen_t length = sizeof value;
    return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &length) == 0 && value != 0;
}

std::vector<int> descriptors() {
    std::vector<int> found;
    struct Close {
        void operator()(DIR* directory) const noexcept { ::closedir(directory); }
    };
    const std::unique_ptr<DIR, Close> directory(::opendir("/proc/self/fd"));
    for (int fd = 0; !directory && fd < kDescriptorsMax; ++fd) found.push_back(fd);  // where there is no /proc
    if (!directory) return found;
    while (const dirent* const entry = ::readdir(directory.get())) {
        const std::string_view text = entry->d_name;
        int fd = -1;
        if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fd); error == std::errc{})
            found.push_back(fd);
    }
    return found;
}

/// Unlike a shutdown this also throws away what came and was not read.
void disconnect(int fd) noexcept {
    const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
    (void)::connect(fd, &nobody, sizeof nobody);
}

bool is(const MadeConnection& connection, int fd) {
    return address_of(fd, ::getsockname) == connection.local && address_of(fd, ::getpeername) == connection.remote;
}

}  // namespace

std::vector<MadeConnection> connections_from(std::span<const std::byte> name, std::span<const std::vector<std::byte>> peers) {
    const auto host = plain(name, false);
    if (host.empty()) return {};
    std::set<std::vector<std::byte>> wanted;
    for (const auto& peer : peers) wanted.insert(plain(peer));
    std::vector<MadeConnection> found;
    for (const int fd : descriptors()) {
        auto local = address_of(fd, ::getsockname);
        if (plain(local, false) != host) continue;
        auto remote = address_of(fd, ::getpeername);
        if (remote.empty() || !wanted.contains(remote)) continue;
        found.push_back({.fd = fd, .local = std::move(local), .remote = std::move(remote)});
    }
    return found;
}

size_t break_connections(std::span<const MadeConnection> connections) {
    size_t count = 0;
    for (const MadeConnection& connection : connections) {
        const UniqueFd copy(::fcntl(connection.fd, F_DUPFD_CLOEXEC, 0));
        if (!copy || !is(connection, copy.get())) continue;
        // Who is disconnected has nothing more to read; who is shut down besides hears of it as of something to read.
        disconnect(copy.get());
        (void)::shutdown(copy.get(), SHUT_RDWR);
        ++count;
    }
    return count;
}

size_t break_connections_to(std::span<const std::byte> name) {
    if (!is_name_of_socket(name)) return 0;
    size_t count = 0;
    // The listening one first, wherever it is in the list: then no others follow.
    for (const bool listening : {true, false}) {
        for (const int fd : descriptors()) {
            if (!is_at(fd, name)) continue;
            // Another thread may have closed it and got the same number for something else: a copy stays what it is.
            const UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
            if (!copy || !is_at(copy.get(), name) || listens(copy.get()) != listening) continue;
            disconnect(copy.get());
            count += listening ? 0 : 1;
        }
    }
    return count;
}

std::optional<uint64_t> bytes_received_at(std::span<const std::byte> name) {
    if (!is_name_of_socket(name)) return std::nullopt;
    uint64_t total = 0;
    for (const int fd : descriptors()) {
        if (!is_at(fd, name) || listens(fd)) continue;
        tcp_info info{};
        socklen_t length = sizeof info;
        if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0) total += info.tcpi_bytes_received;
    }
    return total;
}

}  // namespace mooncake::fabric
