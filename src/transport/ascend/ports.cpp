// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/ports.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "net/address.h"

namespace mooncake::ascend {

namespace {

constexpr uint32_t kPortMax = 65535, kEphemeralFirst = 32768, kEphemeralLast = 60999;

std::string folder() {
    std::string own = format_text("/run/user/{}", ::getuid());
    return ::access(own.c_str(), W_OK) == 0 ? own : "/tmp";
}

/// Whether nothing listens there now. The library binds by itself, so that it cannot be given the socket.
bool can_bind(const std::string& host, uint16_t port) {
    const auto addresses = net::resolve(host, port);
    if (!addresses || addresses->empty()) return false;
    const net::SocketAddress& address = addresses->front();
    const UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    return socket && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
           ::bind(socket.get(), address.get(), address.length) == 0 && ::listen(socket.get(), 1) == 0;
}

}  // namespace

Result<PortLease> PortLease::take(const std::string& host, uint16_t port) {
    const std::string name = format_text("{}/mooncake_ascend_{}.lock", folder(), port);
    UniqueFd file(::open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0666));
    // One of another user that we may not open is taken as well as one that is locked.
    if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return fail(Code::kBusy, "port {} is leased by another process", port);
    if (!can_bind(host, port)) return fail(Code::kBusy, "something listens on port {}", port);
    return PortLease(std::move(file), port);
}

Result<std::vector<uint16_t>> ports_to_try(uint16_t base, int physical, uint64_t seed) {
    const uint64_t first = base + static_cast<uint64_t>(std::max(physical, 0)) * kPortsPerDevice;
    if (first + kPortsPerDevice - 1 > kPortMax)
        return fail(Code::kInvalidArgument, "ASCEND_BASE_PORT={}: the ports of device {} would be {} to {}", base, physical, first,
                    first + kPortsPerDevice - 1);
    std::vector<uint16_t> ports;
    for (uint32_t i = 0; i < kPortsPerDevice; ++i)
        ports.push_back(static_cast<uint16_t>(first + (seed % kPortsPerDevice + i) % kPortsPerDevice));
    std::stable_partition(ports.begin(), ports.end(), [](uint16_t port) { return port < kEphemeralFirst || port > kEphemeralLast; });
    return ports;
}

}  // namespace mooncake::ascend
