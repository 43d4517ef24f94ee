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

/// Whether the socket's own address is that one. Not for sockets without a port: what was broken is one of them.
bool is_at(int fd, std::span<const std::byte> name) noexcept {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0 || length != name.size()) return false;
    if (own.ss_family == AF_INET) {
        sockaddr_in wanted{};
        std::memcpy(&wanted, name.data(), sizeof wanted);
        const auto& is = reinterpret_cast<const sockaddr_in&>(own);
        return wanted.sin_port != 0 && is.sin_port == wanted.sin_port && is.sin_addr.s_addr == wanted.sin_addr.s_addr;
    }
    if (own.ss_family != AF_INET6) return false;
    sockaddr_in6 wanted{};
    std::memcpy(&wanted, name.data(), sizeof wanted);
    const auto& is = reinterpret_cast<const sockaddr_in6&>(own);
    return wanted.sin6_port != 0 && is.sin6_port == wanted.sin6_port &&
           std::memcmp(&is.sin6_addr, &wanted.sin6_addr, sizeof wanted.sin6_addr) == 0;
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

}  // namespace

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
            // Unlike a shutdown this also throws away what came and was not read.
            const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
            (void)::connect(copy.get(), &nobody, sizeof nobody);
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
