// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "base/error.h"
#include "base/shared_memory.h"
#include "net/socket.h"

/// Connections within this host that carry packets and descriptors. Sockets live in the abstract namespace: they have no name in any file
/// system and vanish with their process.
namespace mooncake::net {

constexpr size_t kLocalNameMax = 64, kPacketFilesMax = 2;

/// Who is at the other end, as the kernel says.
struct Credentials {
    pid_t pid = 0;  // 0: it lives in a process namespace that we cannot see
    uid_t uid = 0;
};

/// Non-blocking. kUnavailable: the name is taken.
Result<Socket> listen_local(const std::string& name);
/// kUnavailable: nobody listens there (in our network namespace), or not in time.
Result<Socket> connect_local(const std::string& name, const Patience& patience);
Result<Credentials> credentials_of(int fd);

/// Never blocks. kBusy: the other end does not read; kUnavailable: it is gone.
Result<> send_packet(int fd, std::span<iovec> data, std::span<const int> files = {});

struct Packet {
    size_t length = 0;
    std::array<MemoryFile, kPacketFilesMax> files;
    size_t file_count = 0;  // how many came along; those beyond the array are closed
    bool cut = false;       // it was longer than the room for it
};
/// `wait`: blocks, for as long as the socket's SO_RCVTIMEO. kBusy: nothing there; kUnavailable: the other end is gone.
Result<Packet> receive_packet(int fd, std::span<std::byte> into, bool wait = false);

}  // namespace mooncake::net
