// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm.h"

#include "transport/copy_pool.h"
#include "transport/shm/channel.h"
#include "transport/shm/loop.h"
#include "transport/shm/shm_peer.h"
#include "transport/shm/target.h"

namespace mooncake {

namespace {

constexpr Capabilities kCapabilities{.name = "shm", .reach = Reach::kSameHost, .rank = 10, .maps_memory = true};

class ShmTransport final : public Transport {
public:
    ShmTransport(Incarnation incarnation, std::unique_ptr<shm::Loop> loop, std::unique_ptr<shm::Target> target)
        : incarnation_(incarnation), loop_(std::move(loop)), target_(std::move(target)) {}

    const Capabilities& capabilities() const noexcept override { return kCapabilities; }
    std::string endpoint() const override { return shm::encode_endpoint(target_->socket_name()); }
    Result<std::unique_ptr<Registration>> register_memory(const MemoryRegion& region) override { return target_->add(region); }
    Result<std::unique_ptr<Peer>> connect(const SegmentDescriptor& descriptor, Deadline deadline) override {
        const auto endpoint = descriptor.endpoints.find(std::string(kCapabilities.name));
        if (endpoint == descriptor.endpoints.end()) return fail(Code::kNotSupported, "{} offers no shared memory", descriptor.name);
        if (descriptor.boot_id.empty() || descriptor.boot_id != boot_id())
            return fail(Code::kNotSupported, "{} is on another host", descriptor.name);
        MC_ASSIGN_OR_RETURN(const std::string name, shm::decode_endpoint(endpoint->second));
        return shm::ShmPeer::connect(name, incarnation_, descriptor.incarnation, pool_, *loop_, deadline);
    }
    Result<> stop_serving(Deadline deadline) override { return target_->stop(deadline); }

private:
    const Incarnation incarnation_;
    const std::unique_ptr<shm::Loop> loop_;
    const std::unique_ptr<shm::Target> target_;
    CopyPool pool_{"mc-shm-copy"};
};

}  // namespace

Result<std::unique_ptr<Transport>> make_shm_transport(const TransportContext& context) {
    MC_ASSIGN_OR_RETURN(std::unique_ptr<shm::Loop> loop, shm::Loop::create());
    MC_ASSIGN_OR_RETURN(std::unique_ptr<shm::Target> target, shm::Target::create(context.incarnation, *loop));
    return std::make_unique<ShmTransport>(context.incarnation, std::move(loop), std::move(target));
}

}  // namespace mooncake
