// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "coordination/directory.h"
#include "engine/session.h"
#include "net/address.h"
#include "rpc/rpc.h"

namespace mooncake {

/// Where a segment's control port is, and what it says of itself. In peer-to-peer mode the name is the address; otherwise the
/// directory knows it. Everything else always comes from the peer itself, so a directory full of old entries can only lead to
/// an error, never to wrong memory. Thread-safe.
class Locator final : public DescriptorSource {
public:
    /// `directory` is null in peer-to-peer mode. `own` gives our own descriptor with that many buffers.
    struct Options {
        Directory* directory = nullptr;
        std::string cluster_id;
        std::string own_name;
        uint16_t default_port = 0;  // for names without one, peer-to-peer mode
        std::function<SegmentDescriptor(uint32_t buffers_max)> own;
    };
    Locator(Options options, rpc::Client& client) : options_(std::move(options)), client_(client) {}

    Result<Found> fetch(const std::string& name, uint32_t buffers_max, Deadline deadline) override;
    /// kNotFound: the directory does not know the name. kInvalidArgument: not an address.
    Result<net::HostPort> address(const std::string& name, Deadline deadline);
    bool is_own(const std::string& name) const { return name == options_.own_name; }

private:
    const Options options_;
    rpc::Client& client_;
};

}  // namespace mooncake
