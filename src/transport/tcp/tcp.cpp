// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "transport/staged_peer.h"
#include "transport/staging.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/io_thread.h"
#include "transport/tcp/peer.h"
#include "transport/tcp/policy.h"
#include "transport/tcp/server.h"

namespace mooncake::tcp {

namespace {

constexpr std::string_view kName = "tcp";

/// Each side takes care of its own: local memory of any kind that somebody here copies, and whatever the peer has.
KindPairs pairs_of(const Devices& devices) {
    KindPairs pairs;
    for (size_t local = 0; local < kMemoryKinds; ++local)
        for (size_t remote = 0; remote < kMemoryKinds; ++remote)
            if (devices.has(static_cast<MemoryKind>(local))) pairs.add({static_cast<MemoryKind>(local), static_cast<MemoryKind>(remote)});
    return pairs;
}

/// One half for what we ask others, the other for what they ask us: neither waits for the other, or two engines could wait for each other.
Staging::Limits staging_limits(const EngineOptions& options) {
    constexpr size_t kLeast = StagingSlots::count_for(kPayloadBytesMax);
    return {.slots = std::max(kLeast, static_cast<size_t>(options.staging_bytes / StagingSlots::kBytes / 2))};
}

int cores() noexcept { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

/// One connection moves about what one core can copy, so a host with many cores has more of them. Who chose a number gets it.
int lanes(const EngineOptions& options) noexcept {
    const int chosen = std::clamp(options.tcp_lanes, 1, kLanesMax);
    return chosen == EngineOptions().tcp_lanes ? std::clamp(cores() / 2, chosen, kLanesByCores) : chosen;
}

class TcpTransport final : public Transport {
public:
    explicit TcpTransport(const TransportContext& context)
        : context_(context), capabilities_{.name = kName, .reach = Reach::kNetwork, .rank = 100, .pairs = pairs_of(*context.devices)},
          asking_(std::make_unique<Staging>(*context.devices, "mc-tcp-gpu", staging_limits(context.options),
                                            DeviceBytes(context.metrics, "staged_tcp"))),
          serving_(std::make_unique<Staging>(*context.devices, "mc-tcp-gpu-in", staging_limits(context.options),
                                             DeviceBytes(context.metrics, "staged_tcp"))),
          initiator_{.incarnation = context.incarnation,
                     .options = context.options,
                     .io_threads = io_threads_,
                     .closing = context.closing,
                     .lanes = lanes(context.options),
                     .drivers_max = std::max(1, std::min(cores() / 2, lanes(context.options)))} {}

    ~TcpTransport() override {
        if (fork_generation() != birth_) {
            // The threads exist only in the parent; whatever would wait for them must not be destroyed.
            (void)server_.release();
            for (auto& io : io_threads_) (void)io.release();
            (void)asking_.release();
            (void)serving_.release();
            return;
        }
        shut_down();
    }

    Result<> start() {
        const int wanted = context_.options.tcp_io_threads;
        const int count = wanted > 0 ? wanted : std::clamp(cores() / 2, 1, kIoThreadsByCores);
        for (int i = 0; i < count; ++i) {
            MC_ASSIGN_OR_RETURN(auto io, IoThread::create(format_text("mc-tcp-{}", i)));
            io_threads_.push_back(std::move(io));
        }
        MC_ASSIGN_OR_RETURN(server_, Server::create(context_, io_threads_, *serving_));
        port_ = server_->port();
        return {};
    }

    const Capabilities& capabilities() const noexcept override { return capabilities_; }
    std::string endpoint() const override { return format_endpoint({.port = port_}); }

    /// The AccessTable is all we ask.
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion&) override { return nullptr; }

    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline deadline) override {
        if (!server_) return fail(Code::kUnavailable, "the transport is shut down");
        const auto endpoint = descriptor.endpoints.find(std::string(kName));
        if (endpoint == descriptor.endpoints.end()) return fail(Code::kNotSupported, "{} offers no tcp transport", descriptor.name);
        MC_ASSIGN_OR_RETURN(const Endpoint where, parse_endpoint(endpoint->second));
        MC_ASSIGN_OR_RETURN(std::unique_ptr<Peer> peer, TcpPeer::connect(initiator_,
                                                                         {.name = descriptor.name,
                                                                          .host = descriptor.host,
                                                                          .port = where.port,
                                                                          .version = std::min(where.version, kVersion),
                                                                          .incarnation = descriptor.incarnation},
                                                                         deadline));
        return std::make_unique<StagedPeer>(std::move(peer), *asking_);
    }

    /// Needs no deadline: no access of ours blocks, and what a device copies is short.
    Result<> stop_serving(Deadline) override {
        if (fork_generation() == birth_ && server_) server_->stop_serving();
        return {};
    }

    void shut_down() override {
        if (fork_generation() != birth_) return;
        for (const auto& io : io_threads_) io->stop();
        server_.reset();
        io_threads_.clear();
        serving_.reset();
        asking_.reset();
    }

private:
    const TransportContext context_;
    const Capabilities capabilities_;
    const uint32_t birth_ = fork_generation();
    std::unique_ptr<Staging> asking_, serving_;
    std::vector<std::unique_ptr<IoThread>> io_threads_;
    std::unique_ptr<Server> server_;  // null: shut down
    uint16_t port_ = 0;
    Initiator initiator_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_tcp_transport(const TransportContext& context) {
    auto transport = std::make_unique<TcpTransport>(context);
    MC_RETURN_IF_ERROR(transport->start());
    return transport;
}

}  // namespace mooncake::tcp
