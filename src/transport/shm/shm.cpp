// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.h"

#include "transport/copy_pool.h"
#include "transport/shm/channel.h"
#include "transport/shm/loop.h"
#include "transport/shm/shm_peer.h"
#include "transport/shm/target.h"

namespace mooncake {

namespace {

constexpr std::string_view kName = "shm";

/// Local memory of any kind that somebody copies from and to the host's, and the peer's where its kind can be shared.
KindPairs pairs_of(const Devices& devices) {
    KindPairs pairs;
    for (size_t local = 0; local < kMemoryKinds; ++local)
        for (size_t remote = 0; remote < kMemoryKinds; ++remote) {
            const KindPair pair{static_cast<MemoryKind>(local), static_cast<MemoryKind>(remote)};
            const bool reached = pair.remote == MemoryKind::kHost || (devices.has(pair.remote) && devices.of(pair.remote)->shares());
            if (reached && devices.between(pair.local, pair.remote) != nullptr) pairs.add(pair);
        }
    return pairs;
}

class ShmTransport final : public Transport {
public:
    ShmTransport(const TransportContext& context, std::unique_ptr<shm::Loop> loop, std::unique_ptr<shm::Target> target)
        : incarnation_(context.incarnation), devices_(*context.devices),
          capabilities_{.name = kName, .reach = Reach::kSameHost, .rank = 10, .pairs = pairs_of(devices_), .maps_memory = true},
          loop_(std::move(loop)), target_(std::move(target)), means_{.pool = pool_,
                                                                     .loop = *loop_,
                                                                     .devices = devices_,
                                                                     .bounces = bounces_,
                                                                     .metrics = context.metrics,
                                                                     .closing = context.closing} {}

    const Capabilities& capabilities() const noexcept override { return capabilities_; }
    std::string endpoint() const override { return shm::encode_endpoint(target_->socket_name()); }
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion& region) override { return target_->add(region); }
    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline deadline) override {
        const auto endpoint = descriptor.endpoints.find(std::string(kName));
        if (endpoint == descriptor.endpoints.end()) return fail(Code::kNotSupported, "{} offers no shared memory", descriptor.name);
        if (descriptor.boot_id.empty() || descriptor.boot_id != boot_id())
            return fail(Code::kNotSupported, "{} is on another host", descriptor.name);
        MC_ASSIGN_OR_RETURN(const std::string name, shm::decode_endpoint(endpoint->second));
        return shm::ShmPeer::connect(name, incarnation_, descriptor.incarnation, means_, deadline);
    }
    Result<> stop_serving(Deadline deadline) override { return target_->stop(deadline); }
    void shut_down() override {
        pool_.stop_threads();
        loop_->stop();
        target_->let_go();
    }

private:
    const Incarnation incarnation_;
    const Devices& devices_;
    const Capabilities capabilities_;
    const std::unique_ptr<shm::Loop> loop_;
    const std::unique_ptr<shm::Target> target_;
    CopyPool pool_{"mc-shm-copy"};
    BounceBuffers bounces_;
    const shm::ShmPeer::Means means_;
};

}  // namespace

Result<std::unique_ptr<Transport>> make_shm_transport(const TransportContext& context) {
    MC_ASSIGN_OR_RETURN(std::unique_ptr<shm::Loop> loop, shm::Loop::create());
    MC_ASSIGN_OR_RETURN(std::unique_ptr<shm::Target> target, shm::Target::create(context.incarnation, *loop, *context.devices));
    return std::make_unique<ShmTransport>(context, std::move(loop), std::move(target));
}

}  // namespace mooncake
