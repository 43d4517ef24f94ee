// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/local_socket.h"
#include "store/protocol/ids.h"

/// How thin clients and their node speak: packets on a local socket, each a head and a body. A body that no packet takes lies in a file that comes with
/// its head. Descriptors of shared memory travel the same way. See docs/thin-clients.md.
namespace mooncake::store::bridge {

/// One life of a node.
using BootId = Id<struct BootTag>;

enum class Kind : uint16_t {
    kAnswer = 1,  // from the node; all others are from the client
    kStale,       // from the node: the request was meant for another boot, or knows of a newer table; nothing was done
    kHello,       // first; no keys. Numbers: limits, see Limits
    kPing,        // numbers: whether the master answers, how many entries are known
    kMap,         // pieces[0]: the entry's number and its length; with its file
    kUnmap,       // pieces: entries
    kIsMapped,    // pieces: entries; numbers: 1 or 0 for each
    kWrite,       // flag: replace
    kRead,
    kReadParts,  // offsets
    kFind,       // values
    kLocate,     // values
    kExist,
    kRemove,         // flag: force
    kRemoveByRegex,  // text, flag: force
    kRemoveAll,      // flag: force
    kReplicaClear,   // text: name of the segment
    kOpenReads,
    kReadOpen,     // offsets
    kCloseReads,   // numbers[0]: 1: all were open
    kOpenWrites,   // offsets: lengths
    kWriteOpen,    // offsets
    kCloseWrites,  // flag: revoke
    kDiskReads,    // numbers[0]
    kCreateTask,   // bodies of messages_tasks.h
    kQueryTask,    // likewise; an empty answer: there is none
    kLast = kQueryTask,
};

/// On the wire as it lies in memory: both ends run on one machine.
struct Head {
    static constexpr uint32_t kMagic = 0x6d636272;
    static constexpr uint16_t kVersion = 1;

    uint32_t magic = kMagic;
    uint16_t version = kVersion;
    Kind kind = Kind::kAnswer;
    uint64_t request = 0;  // chosen by the client, repeated in the answer
    uint64_t boot_high = 0, boot_low = 0;
    uint64_t table = 0;  // how many changes of the client's table the sender knows of
    uint64_t body_bytes = 0;

    BootId boot() const noexcept { return {boot_high, boot_low}; }
};
static_assert(sizeof(Head) == 48);

constexpr size_t kPacketBytesMax = 64 << 10;      // head and body
constexpr uint64_t kBodyBytesMax = 128ull << 20;  // in a file
constexpr uint32_t kEntriesMax = 4096;            // of one client

/// Room for a packet; aligned, so that bodies can be read where they are.
struct PacketRoom {
    alignas(16) std::array<std::byte, kPacketBytesMax> bytes;
};

/// The body lies in the room, or in `own`.
struct Frame {
    Head head;
    std::span<const std::byte> body;
    std::vector<std::byte> own;
    MemoryFile file;

    /// So that it stays when the room is used again.
    void keep();
};

std::string socket_name(uint16_t port);

/// Never blocks: kBusy, kUnavailable as send_packet(); kNoSpace: a long body finds no memory. `head.body_bytes` is set here.
Result<> send_frame(int fd, Head head, std::span<const std::byte> body, int file = -1);
/// kBusy, kUnavailable as receive_packet(); kCorrupt.
Result<Frame> receive_frame(int fd, PacketRoom& room, bool wait = false);

}  // namespace mooncake::store::bridge
