// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "transport/tcp/handshake.h"
#include "transport/tcp/tcp.h"
#include "transport/testing/local_control.h"
#include "transport/transport.h"

namespace mooncake::tcp::testing {

/// One engine's worth of the transport: options, permissions, the transport itself and some registered memory.
struct Side {
    explicit Side(size_t bytes, EngineOptions given = {}, std::string host_name = "127.0.0.1")
        : options(std::move(given)), host(std::move(host_name)), memory(bytes) {
        auto made = make_tcp_transport({.incarnation = incarnation, .options = options, .access = access, .control = control});
        MC_CHECK(made.has_value());
        transport = std::move(*made);
        region = {.address = memory.data(), .length = bytes};
        if (bytes > 0) access.allow({.address = address(), .length = bytes});
    }

    uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(memory.data()) + offset; }
    SegmentDescriptor descriptor() const {
        SegmentDescriptor made;
        made.name = "side";
        made.incarnation = incarnation;
        made.host = host;
        made.endpoints["tcp"] = transport->endpoint();
        return made;
    }
    uint16_t port() const { return parse_endpoint(transport->endpoint())->port; }
    std::unique_ptr<Peer> connect(const Side& target) {
        auto peer = transport->connect(target.descriptor(), Deadline::after(20s));
        MC_CHECK(peer.has_value());
        return std::move(*peer);
    }
    Slice slice(size_t offset, uint64_t remote, uint64_t length, Completion& completion) {
        return {.local = memory.data() + offset, .remote = remote, .length = length, .completion = &completion, .region = &region};
    }

    EngineOptions options;
    std::string host;
    Incarnation incarnation = Incarnation::random();
    AccessTable access;
    mooncake::testing::LocalControl control{incarnation};
    std::vector<std::byte> memory;
    MemoryRegion region;
    std::unique_ptr<Transport> transport;
};

inline void fill(std::span<std::byte> bytes, uint64_t seed) {
    std::mt19937_64 random(seed);
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        const uint64_t word = random();
        std::memcpy(bytes.data() + i, &word, 8);
    }
    for (; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random());
}

/// Submits and waits, as a synchronous call does. The slices' completion must be `completion`.
inline Result<uint64_t> run(Peer& peer, Direction direction, std::span<const Slice> slices, Completion& completion,
                            Submit how = Submit::kWait, Duration limit = 60s) {
    completion.add(static_cast<uint32_t>(slices.size()));
    peer.submit(direction, slices, how);
    const bool done = how == Submit::kWait ? peer.wait(completion, Deadline::after(limit)) : completion.wait(Deadline::after(limit));
    if (!done) {
        peer.cancel(completion, Error(Code::kTimedOut, "test limit"), Deadline::after(1s));
        return fail(Code::kTimedOut, "not done in time");
    }
    return completion.result();
}

}  // namespace mooncake::tcp::testing
