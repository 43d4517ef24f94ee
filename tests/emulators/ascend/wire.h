// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "tests/emulators/ascend/sockets.h"

// What two emulated engines say to each other.
namespace emu {

constexpr uint32_t kMagic = 0x4e505531;

struct Hello {
    uint32_t magic, name_bytes;
    int32_t physical;
    uint32_t client_server;
};
struct Welcome {
    uint32_t status, ranges;
};
struct Ask {
    uint32_t write, parts;
};

constexpr size_t kStep = 256 << 10;

/// Memory of any kind to a socket. `allowed`: so many bytes, then nothing more is sent; `corrupt`: the first of them are wrong.
inline bool send_memory(int socket, uint64_t address, uint64_t length, const Patience& patience, long& allowed, long corrupt = 0) {
    std::vector<std::byte> buffer(std::min<uint64_t>(kStep, length));
    for (uint64_t at = 0; at < length; at += kStep) {
        const size_t step = std::min<uint64_t>(kStep, length - at);
        {
            const auto lock = no_frees();
            const Found found = find(reinterpret_cast<void*>(address + at), step);
            if (!found.inside || !move_bytes(buffer.data(), found.usable, step)) return false;
        }
        for (long i = 0; at == 0 && i < corrupt && i < static_cast<long>(step); ++i) buffer[static_cast<size_t>(i)] ^= std::byte{0xff};
        const auto sent = static_cast<size_t>(std::min<long>(allowed, static_cast<long>(step)));
        if (!send_all(socket, buffer.data(), sent, patience)) return false;
        allowed -= static_cast<long>(sent);
        if (sent < step) {
            while (!patience.over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return false;
        }
    }
    return true;
}

inline bool receive_memory(int socket, uint64_t address, uint64_t length, const Patience& patience, long& allowed) {
    std::vector<std::byte> buffer(std::min<uint64_t>(kStep, length));
    for (uint64_t at = 0; at < length; at += kStep) {
        const size_t step = std::min<uint64_t>(kStep, length - at);
        if (!receive_all(socket, buffer.data(), step, patience)) return false;
        allowed -= static_cast<long>(step);
        if (allowed < 0) {
            while (!patience.over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return false;
        }
        const auto lock = no_frees();
        const Found found = find(reinterpret_cast<void*>(address + at), step);
        if (!found.inside || !move_bytes(found.usable, buffer.data(), step)) return false;
    }
    return true;
}

}  // namespace emu
